//! Where the edge of a simulated node submits: its replica.

use fencepost_core::Ticket;
use fencepost_replica::Replica;
use fencepost_session::edge::{Command, Lead, Submit};
use fencepost_session::{End, NotTaken, Tier};

use crate::world::address;

/// A replica, as the edge sees it.
pub(crate) struct Port<'a>(pub(crate) &'a mut Replica);

impl Submit for Port<'_> {
    fn submit(&mut self, _: Tier, command: Command) -> Result<Ticket, NotTaken> {
        let submitted = match command {
            Command::Operation(operation) => self.0.submit(operation),
            Command::Renewal(renewal) => self.0.submit_renewal(renewal),
        };
        submitted.map_err(|why| match why {
            fencepost_replica::NotTaken::DiskShort => NotTaken::DiskShort,
            fencepost_replica::NotTaken::NotLeader { .. } => NotTaken::NotLeader,
            _ => NotTaken::Overloaded,
        })
    }
}

/// The lead, if this node has it, or where to ask instead.
pub(crate) fn lead(replica: &Replica) -> Result<Lead, End> {
    match replica.serves() {
        true => {
            let group = replica.group();
            Ok(Lead { cluster: group.cluster, group: group.group, node: replica.id(), term: replica.term() })
        }
        false => Err(not_leader(replica)),
    }
}

/// Why this node does not serve.
pub(crate) fn not_leader(replica: &Replica) -> End {
    match replica.leader().filter(|leader| *leader != replica.id()) {
        Some(leader) => End::not_leader(address(leader)),
        None => End::no_leader("no node leads"),
    }
}
