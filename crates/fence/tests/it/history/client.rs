//! A client of a history: what it believes to hold, and what it has read under that.
//!
//! Its belief may be wrong. `History::holds` compares it with the lock state.

use std::collections::BTreeMap;

use fencepost_core::{GrantId, Locks, Name, SessionId, Token};

use super::store::{Store, Version};

#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) session: SessionId,
    /// A client that is not awake sends no keep-alives and receives nothing. Its reads and writes may still be in flight.
    pub(crate) awake: bool,
    pub(crate) last_number: u64,
    pub(crate) works: BTreeMap<GrantId, Work>,
}

impl Default for Client {
    fn default() -> Client {
        Client { session: SessionId(0), awake: true, last_number: 0, works: BTreeMap::new() }
    }
}

/// What a client does under one grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) locks: Locks,
    pub(crate) token: Token,
    /// The places that it has read, and the versions that it found there and below.
    pub(crate) read: BTreeMap<Name, BTreeMap<Name, Version>>,
}

impl Client {
    /// Notes the client's own write in what it has read. A change that it did not know of before stays unknown to it.
    pub(crate) fn has_written(&mut self, datum: &Name, store: &Store) {
        let version = store.version(datum);
        let found = self.works.values_mut().flat_map(|work| work.read.values_mut());
        for known in found.filter_map(|found| found.get_mut(datum)) {
            if *known + 1 == version {
                *known = version;
            }
        }
    }
}
