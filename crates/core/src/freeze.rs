//! Freezes: which names are frozen, and which waiters are parked at each freeze.
//!
//! On a frozen name nothing new is granted until every freeze that covers it is thawed. This file only stores and finds
//! freezes; `waiter.rs` makes requests wait for them, and `admin.rs` adds and thaws them.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::Scope;
use crate::digest::Term;
use crate::record::FreezeRecord;
use crate::words::{Arrival, FreezeId, Name};

/// All freezes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freezes {
    by_id: BTreeMap<FreezeId, Freeze>,
    by_name: BTreeMap<Name, BTreeSet<FreezeId>>,
    /// Prefixes by their length, so that a name is looked up once for each length that occurs.
    by_prefix: BTreeMap<usize, BTreeMap<Box<[u8]>, BTreeSet<FreezeId>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Freeze {
    pub(crate) record: FreezeRecord,
    /// The waiters to look at again after the thaw.
    pub(crate) parked: BTreeSet<Arrival>,
    pub(crate) term: Term,
}

impl Freezes {
    /// One of the freezes that cover the name, if it is frozen.
    pub(crate) fn over(&self, name: &Name) -> Option<FreezeId> {
        if self.by_id.is_empty() {
            return None;
        }
        let exact = self.by_name.get(name).into_iter();
        let bytes = name.as_str().as_bytes();
        let prefixes = self.by_prefix.range(..=bytes.len()).filter_map(|(len, frozen)| frozen.get(&bytes[..*len]));
        exact.chain(prefixes).find_map(|ids| ids.first().copied())
    }

    pub(crate) fn get(&self, id: FreezeId) -> Option<&Freeze> {
        self.by_id.get(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Freeze> {
        self.by_id.values()
    }

    pub(crate) fn insert(&mut self, record: FreezeRecord, term: Term) {
        let id = record.id;
        match &record.scope {
            Scope::Name(name) => self.by_name.entry(name.clone()).or_default().insert(id),
            Scope::Prefix(prefix) => {
                self.by_prefix.entry(prefix.len()).or_default().entry(prefix.clone()).or_default().insert(id)
            }
        };
        self.by_id.insert(id, Freeze { record, parked: BTreeSet::new(), term });
    }

    pub(crate) fn remove(&mut self, id: FreezeId) -> Option<Freeze> {
        let freeze = self.by_id.remove(&id)?;
        match &freeze.record.scope {
            Scope::Name(name) => remove_from(&mut self.by_name, name, id),
            Scope::Prefix(prefix) => {
                if let Some(of_length) = self.by_prefix.get_mut(&prefix.len()) {
                    remove_from(of_length, prefix, id);
                    if of_length.is_empty() {
                        self.by_prefix.remove(&prefix.len());
                    }
                }
            }
        }
        Some(freeze)
    }

    pub(crate) fn park(&mut self, id: FreezeId, arrival: Arrival) {
        self.by_id.get_mut(&id).expect("a waiter is parked at a freeze that exists").parked.insert(arrival);
    }

    pub(crate) fn unpark(&mut self, id: FreezeId, arrival: Arrival) {
        self.by_id.get_mut(&id).expect("a thaw unparks its waiters").parked.remove(&arrival);
    }
}

fn remove_from<K: Ord>(map: &mut BTreeMap<K, BTreeSet<FreezeId>>, key: &K, id: FreezeId) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

impl Scope {
    /// Whether a freeze with this scope covers the name.
    pub fn covers(&self, name: &Name) -> bool {
        match self {
            Scope::Name(frozen) => frozen == name,
            Scope::Prefix(prefix) => name.as_str().as_bytes().starts_with(prefix),
        }
    }
}
