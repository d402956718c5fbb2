//! Where the edge submits commands: the replica, and beside it the efficiency tier of the term.
//!
//! It also translates the replica's refusals into the session protocol's errors. It decides nothing else.

use fencepost_core::Ticket;
use fencepost_replica::{NotTaken, Replica, Unreplicated};
use fencepost_session::edge::{Command, Submit};
use fencepost_session::{self as session, End, Reason, Tier};

/// Both lock states of a node, as the edge sees them.
pub(crate) struct Port<'a> {
    pub(crate) replica: &'a mut Replica,
    /// `None` while this node does not lead.
    pub(crate) efficiency: Option<&'a mut Unreplicated>,
}

impl Submit for Port<'_> {
    fn submit(&mut self, tier: Tier, command: Command) -> Result<Ticket, session::NotTaken> {
        let submitted = match (tier, command, &mut self.efficiency) {
            (Tier::Correctness, Command::Operation(operation), _) => self.replica.submit(operation),
            (Tier::Correctness, Command::Renewal(renewal), _) => self.replica.submit_renewal(renewal),
            (Tier::Efficiency, Command::Operation(operation), Some(efficiency)) => efficiency.submit(operation),
            (Tier::Efficiency, Command::Renewal(renewal), Some(efficiency)) => Ok(efficiency.submit_renewal(renewal)),
            (Tier::Efficiency, _, None) => return Err(session::NotTaken::NotLeader),
        };
        submitted.map_err(|why| match why {
            NotTaken::NotLeader { .. } => session::NotTaken::NotLeader,
            NotTaken::DiskShort => session::NotTaken::DiskShort,
            _ => session::NotTaken::Overloaded,
        })
    }
}

/// The replica's refusal as the session protocol's error. For a refusal because this node does not lead, see `Engine::refusal`, which
/// knows where to ask instead.
pub(crate) fn refusal(why: &NotTaken) -> End {
    let reason = match why {
        NotTaken::NotLeader { .. } => return session::NotTaken::NotLeader.into(),
        NotTaken::Overloaded => return session::NotTaken::Overloaded.into(),
        NotTaken::DiskShort => return session::NotTaken::DiskShort.into(),
        NotTaken::ChangeUnderWay => return End::wait_for_change(Reason::ChangeUnderWay, why.to_string()),
        NotTaken::NotCaughtUp { .. } => return End::wait_for_change(Reason::NotCaughtUp, why.to_string()),
        NotTaken::UnknownNode { .. } => Reason::UnknownNode,
        NotTaken::AlreadyMember { .. } => Reason::AlreadyMember,
        NotTaken::NameTaken { .. } => Reason::NameTaken,
        NotTaken::VersionUnknown { .. } => Reason::FormatVersion,
        _ => Reason::Refused,
    };
    End::new(reason, why.to_string())
}
