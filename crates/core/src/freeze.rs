//! Freezes: names and prefixes on which nobody new is granted anything until each freeze is thawed.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::Scope;
use crate::digest::Term;
use crate::record::FreezeRecord;
use crate::words::{Arrival, FreezeId, Name};

/// All freezes, with who is parked at each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freezes {
    by_id: BTreeMap<FreezeId, Freeze>,
    by_name: BTreeMap<Name, BTreeSet<FreezeId>>,
    /// By length first: a name is under a prefix freeze if one of its beginnings, of a length that occurs here, does.
    by_prefix: BTreeMap<usize, BTreeMap<Box<[u8]>, BTreeSet<FreezeId>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Freeze {
    pub(crate) record: FreezeRecord,
    pub(crate) parked: BTreeSet<Arrival>,
    pub(crate) term: Term,
}

impl Freezes {
    /// A freeze that covers the name, if there is one.
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
        self.by_id.get_mut(&id).expect("who is parked at a freeze was blocked by it").parked.insert(arrival);
    }

    pub(crate) fn unpark(&mut self, id: FreezeId, arrival: Arrival) {
        self.by_id.get_mut(&id).expect("a freeze is thawed after its waiters left it").parked.remove(&arrival);
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
    /// Whether the name is covered.
    pub fn covers(&self, name: &Name) -> bool {
        match self {
            Scope::Name(frozen) => frozen == name,
            Scope::Prefix(prefix) => name.as_str().as_bytes().starts_with(prefix),
        }
    }
}
