//! A client as it sees itself: what it believes to hold, and what it has read under that.

use std::collections::BTreeMap;

use fencepost_core::{GrantId, Locks, Name, SessionId, Token};

use super::store::{Store, Version};

#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) session: SessionId,
    /// A client that is not awake sends no signs of life and hears nothing. Its reads and writes may be on their way all the same.
    pub(crate) awake: bool,
    pub(crate) last_number: u64,
    pub(crate) works: BTreeMap<GrantId, Work>,
}

impl Default for Client {
    fn default() -> Client {
        Client { session: SessionId(0), awake: true, last_number: 0, works: BTreeMap::new() }
    }
}

/// What is done under one grant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) locks: Locks,
    pub(crate) token: Token,
    /// Where it has read, and what it found there and below.
    pub(crate) read: BTreeMap<Name, BTreeMap<Name, Version>>,
}

impl Client {
    /// It knows what it has written itself. What had changed before, without its knowledge, stays unknown to it.
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
