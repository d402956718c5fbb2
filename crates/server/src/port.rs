//! Where the edge submits commands: the replica, and beside it the efficiency tier of the term.
//!
//! It notes when commands came, for metrics, and translates the replica's refusals into the session protocol's errors. It decides nothing else.

use fencepost_core::{Nanos, Ticket};
use fencepost_replica::{NotTaken, Replica, Unreplicated};
use fencepost_session::edge::{Command, Submit};
use fencepost_session::{self as session, End, Reason, Tier};

use crate::metrics::Metrics;

/// Both lock states of a node, as the edge sees them.
pub(crate) struct Port<'a> {
    pub(crate) replica: &'a mut Replica,
    /// `None` while this node does not lead.
    pub(crate) efficiency: Option<&'a mut Unreplicated>,
    pub(crate) metrics: &'a mut Metrics,
    /// When the commands came.
    pub(crate) now: Nanos,
}

impl Submit for Port<'_> {
    fn submit(&mut self, tier: Tier, command: Command) -> Result<Ticket, session::NotTaken> {
        let is_operation = matches!(command, Command::Operation(_));
        let submitted = match (tier, command, &mut self.efficiency) {
            (Tier::Correctness, Command::Operation(operation), _) => self.replica.submit(operation),
            (Tier::Correctness, Command::Renewal(renewal), _) => self.replica.submit_renewal(renewal),
            (Tier::Efficiency, Command::Operation(operation), Some(efficiency)) => efficiency.submit(operation),
            (Tier::Efficiency, Command::Renewal(renewal), Some(efficiency)) => Ok(efficiency.submit_renewal(renewal)),
            (Tier::Efficiency, _, None) => return Err(session::NotTaken::NotLeader),
        };
        match submitted {
            Ok(ticket) => {
                if is_operation {
                    self.metrics.taken(tier, ticket, self.now);
                }
                Ok(ticket)
            }
            Err(why) => {
                self.metrics.not_taken(&why);
                Err(match why {
                    NotTaken::NotLeader { .. } => session::NotTaken::NotLeader,
                    NotTaken::DiskShort => session::NotTaken::DiskShort,
                    _ => session::NotTaken::Overloaded,
                })
            }
        }
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
