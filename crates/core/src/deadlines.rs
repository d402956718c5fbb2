//! What is due when: one ordered set over everything that time can end.
//!
//! A session is in it once, for itself and for all its locks with a TTL. After a fail-over its place may be too early,
//! never too late; `LockState` moves it on when it comes first, so the head of the set is exact after every entry.

use std::collections::BTreeSet;

use crate::words::{Arrival, GrantId, LogicalMs, SessionId};

/// Something that time can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A session, or a lock of it with a TTL of its own.
    Session(SessionId),
    /// The `max_hold` of a grant.
    Hold(GrantId),
    /// A wait.
    Wait(Arrival),
    /// A rest.
    Rest(GrantId),
}

/// The deadlines, earliest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines(BTreeSet<(LogicalMs, Due)>);

impl Deadlines {
    pub(crate) fn insert(&mut self, at: LogicalMs, due: Due) {
        let is_new = self.0.insert((at, due));
        assert!(is_new, "{due:?} has two deadlines at {at:?}");
    }

    pub(crate) fn remove(&mut self, at: LogicalMs, due: Due) {
        let was_there = self.0.remove(&(at, due));
        assert!(was_there, "{due:?} has no deadline at {at:?}");
    }

    pub(crate) fn first(&self) -> Option<(LogicalMs, Due)> {
        self.0.first().copied()
    }

    /// Everything up to a stamp, which stays in the set until it is ended or moved.
    pub(crate) fn up_to(&self, stamp: LogicalMs) -> impl Iterator<Item = Due> + '_ {
        self.0.iter().take_while(move |(at, _)| *at <= stamp).map(|(_, due)| *due)
    }
}
