//! The deadlines: one ordered set of everything that time can end.
//!
//! A session has one entry, for itself and for all its locks with a TTL. A fail-over grace moves no entry, so a session's
//! entry can be too early, but never too late. `LockState` moves it when it comes first, so the first entry of the set is
//! exact after every log entry. This file decides nothing about what a deadline is; see `lease.rs`.

use std::collections::BTreeSet;

use crate::words::{Arrival, GrantId, LogicalMs, SessionId};

/// Something that time can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A session, or one of its locks with a TTL.
    Session(SessionId),
    /// The `max_hold` of a grant.
    Hold(GrantId),
    /// The time limit of a wait.
    Wait(Arrival),
    /// The rest of a grant.
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

    /// Everything due at or before a stamp. It stays in the set until it is removed or moved.
    pub(crate) fn up_to(&self, stamp: LogicalMs) -> impl Iterator<Item = Due> + '_ {
        self.0.iter().take_while(move |(at, _)| *at <= stamp).map(|(_, due)| *due)
    }
}
