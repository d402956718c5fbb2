//! The deadlines in the ledger.
//!
//! A keep-alive or a fail-over moves a deadline later. The queue is not updated then: an item that comes up before its real deadline is
//! put back with that deadline.

use std::cmp::Reverse;

use fencepost_core::{Arrival, GrantId, LogicalMs, SessionId, Ttl, bounds};

use super::ledger::{Grant, Ledger};

/// Something with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Session(SessionId),
    Grant(GrantId),
    Wait(Arrival),
    Rest(GrantId),
}

impl Ledger {
    pub(super) fn will_be_due(&mut self, at: LogicalMs, due: Due) {
        self.due.push(Reverse((at, due)));
    }

    /// When a lease ends, from its last renewal and its TTL.
    // Rule: failover-grace
    pub(super) fn lease_ends(&self, renewed_at: LogicalMs, ttl: Ttl) -> LogicalMs {
        let ttl_ms = ttl.millis().get();
        let plain = renewed_at.0 + ttl_ms;
        LogicalMs(match self.grace_at {
            Some(grace_at) if grace_at >= renewed_at => {
                (grace_at.0 + ttl_ms.min(bounds::FAILOVER_GRACE_MS)).clamp(plain, plain + bounds::FAILOVER_GRACE_MS)
            }
            _ => plain,
        })
    }

    /// When a grant ends by its own TTL; `None` if it has none.
    // Rule: ttl
    pub(super) fn ttl_ends(&self, grant: &Grant) -> Option<LogicalMs> {
        let session = self.sessions.get(&grant.session)?;
        grant.lasts.ttl.map(|ttl| self.lease_ends(grant.granted_at.max(session.renewed_at), ttl))
    }

    /// The current deadline of something; `None` if it does not exist or has no deadline.
    pub(super) fn deadline(&self, due: Due) -> Option<LogicalMs> {
        match due {
            Due::Session(id) => self.session(id).map(|session| self.lease_ends(session.renewed_at, session.ttl)),
            Due::Grant(id) => {
                let grant = self.grants.get(&id)?;
                self.ttl_ends(grant).into_iter().chain(grant.hold_until).min()
            }
            Due::Wait(arrival) => self.waiters.get(&arrival)?.until,
            Due::Rest(id) => self.rests.get(&id).map(|rest| rest.until),
        }
    }

    /// Everything that should have ended at the stamp of this entry and has not.
    pub(super) fn overdue(&mut self) -> Vec<Due> {
        let (mut overdue, mut not_yet) = (Vec::new(), Vec::new());
        while let Some(Reverse((at, due))) = self.due.peek().copied()
            && at <= self.stamp
        {
            self.due.pop();
            let Some(deadline) = self.deadline(due) else { continue };
            let is_of_this_entry = matches!(due, Due::Grant(id) if self.grants[&id].timed_at_index == self.index);
            if deadline > self.stamp || is_of_this_entry {
                not_yet.push(Reverse((deadline, due)));
            } else {
                overdue.push(due);
            }
        }
        self.due.extend(not_yet);
        overdue
    }
}
