//! The port through which the edge of a simulated node submits commands: to its replica, or to the efficiency tier of the term.
//!
//! It notes every command with the stream that asked for it. So the world knows which stream a reply is for without trusting the edge,
//! which is under test.

use std::collections::BTreeMap;

use fencepost_core::{Operation, Renewal, SecretHash, Ticket};
use fencepost_replica::{Replica, Unreplicated};
use fencepost_session::edge::{Command, Lead, StreamId, Submit};
use fencepost_session::{End, NotTaken, Tier};

use crate::fact::{Kind, StreamCommand};
use crate::world::address;

/// The commands that the edge of a node submitted.
#[derive(Debug, Default)]
pub(crate) struct Submitted {
    /// The commands that are not decided yet. With the secret's hash for an open or an attach.
    pub(crate) undecided: BTreeMap<(Tier, Ticket), (StreamCommand, Option<SecretHash>)>,
    /// The commands that were accepted since the world last looked, in order.
    pub(crate) news: Vec<StreamCommand>,
}

/// Both lock states of a node, for the edge while it handles one stream.
pub(crate) struct Port<'a> {
    pub(crate) replica: &'a mut Replica,
    /// `None` while this node does not lead.
    pub(crate) efficiency: Option<&'a mut Unreplicated>,
    /// The stream that the edge handles.
    pub(crate) stream: StreamId,
    pub(crate) submitted: &'a mut Submitted,
}

impl Submit for Port<'_> {
    fn submit(&mut self, tier: Tier, command: Command) -> Result<Ticket, NotTaken> {
        let (noted, secret_hash) = stream_command(self.stream, &command);
        let submitted = match (tier, command, &mut self.efficiency) {
            (Tier::Correctness, Command::Operation(operation), _) => self.replica.submit(operation),
            (Tier::Correctness, Command::Renewal(renewal), _) => self.replica.submit_renewal(renewal),
            (Tier::Efficiency, Command::Operation(operation), Some(efficiency)) => efficiency.submit(operation),
            (Tier::Efficiency, Command::Renewal(renewal), Some(efficiency)) => Ok(efficiency.submit_renewal(renewal)),
            (Tier::Efficiency, _, None) => return Err(NotTaken::NotLeader),
        };
        let ticket = submitted.map_err(|why| match why {
            fencepost_replica::NotTaken::DiskShort => NotTaken::DiskShort,
            fencepost_replica::NotTaken::NotLeader { .. } => NotTaken::NotLeader,
            _ => NotTaken::Overloaded,
        })?;
        self.submitted.undecided.insert((tier, ticket), (noted, secret_hash));
        self.submitted.news.push(noted);
        Ok(ticket)
    }
}

/// The note for a command, and the hash of the secret in it.
fn stream_command(stream: StreamId, command: &Command) -> (StreamCommand, Option<SecretHash>) {
    let (session, kind, secret_hash) = match command {
        Command::Operation(Operation::Open(open)) => (open.session, Kind::Open, Some(open.secret_hash)),
        Command::Operation(Operation::Request(request)) => (request.session, Kind::Request(request.number), None),
        Command::Operation(other) => unreachable!("a stream cannot submit {other:?}"),
        Command::Renewal(Renewal::Attach { session, secret_hash, .. }) => (*session, Kind::Attach, Some(*secret_hash)),
        Command::Renewal(Renewal::KeepAlive { session, .. }) => (*session, Kind::KeepAlive, None),
    };
    (StreamCommand { stream, session, kind }, secret_hash)
}

/// The leadership of this node, or the refusal that names the leader.
pub(crate) fn lead(replica: &Replica) -> Result<Lead, End> {
    match replica.serves() {
        true => {
            let group = replica.group();
            Ok(Lead { cluster: group.cluster, group: group.group, node: replica.id(), term: replica.term() })
        }
        false => Err(not_leader(replica)),
    }
}

/// The refusal of a node that does not serve. Names the leader if the node knows it.
pub(crate) fn not_leader(replica: &Replica) -> End {
    match replica.leader().filter(|leader| *leader != replica.id()) {
        Some(leader) => End::not_leader(address(leader)),
        None => End::no_leader("no node leads"),
    }
}
