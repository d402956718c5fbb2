//! The two tables that every operation uses: resources by name, and sessions by id.
//!
//! The order of a hash table differs between replicas, so it must never be visible. Resources cannot be iterated at all; code
//! that needs an order iterates over grants, waiters or sessions. Sessions are iterated by id, along an ordered set beside
//! the table. Each node seeds the hash by itself, so that a client cannot choose names that collide.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::{Index, RangeBounds};

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::resource::Resource;
use crate::session::Session;
use crate::words::{Name, SessionId};

/// The resources that are held or waited for. A free name is not in the table.
// Rule: free-names
#[derive(Clone, Debug)]
pub(crate) struct ResourceTable {
    hasher: FixedState,
    // Boxed, so that a growing table moves only pointers.
    resources: HashTable<Box<Resource>>,
}

impl ResourceTable {
    pub(crate) fn new(hash_seed: u64) -> ResourceTable {
        ResourceTable { hasher: FixedState::with_seed(hash_seed), resources: HashTable::new() }
    }

    pub(crate) fn get(&self, name: &Name) -> Option<&Resource> {
        self.resources.find(self.hash(name), |resource| resource.name == *name).map(|resource| &**resource)
    }

    pub(crate) fn get_mut(&mut self, name: &Name) -> Option<&mut Resource> {
        let hash = self.hash(name);
        self.resources.find_mut(hash, |resource| resource.name == *name).map(|resource| &mut **resource)
    }

    pub(crate) fn get_or_insert(&mut self, name: &Name) -> &mut Resource {
        let hash = self.hash(name);
        let hasher = &self.hasher;
        self.resources
            .entry(hash, |resource| resource.name == *name, |resource| hasher.hash_one(resource.name.as_str()))
            .or_insert_with(|| Box::new(Resource::new(name.clone())))
            .into_mut()
    }

    /// Forgets a resource that is neither held nor waited for.
    pub(crate) fn forget_if_free(&mut self, name: &Name) {
        let hash = self.hash(name);
        if let Ok(entry) = self.resources.find_entry(hash, |resource| resource.name == *name)
            && entry.get().is_free()
        {
            entry.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.resources.len()
    }

    fn hash(&self, name: &Name) -> u64 {
        self.hasher.hash_one(name.as_str())
    }
}

/// The living sessions.
#[derive(Clone, Debug)]
pub(crate) struct SessionTable {
    hasher: FixedState,
    sessions: HashTable<Box<Session>>,
    /// Invariant: the ids of `sessions`.
    ids: BTreeSet<SessionId>,
}

impl SessionTable {
    pub(crate) fn new(hash_seed: u64) -> SessionTable {
        SessionTable { hasher: FixedState::with_seed(hash_seed), sessions: HashTable::new(), ids: BTreeSet::new() }
    }

    pub(crate) fn get(&self, id: &SessionId) -> Option<&Session> {
        self.sessions.find(self.hasher.hash_one(id), |session| session.record.id == *id).map(|session| &**session)
    }

    pub(crate) fn get_mut(&mut self, id: &SessionId) -> Option<&mut Session> {
        let hash = self.hasher.hash_one(id);
        self.sessions.find_mut(hash, |session| session.record.id == *id).map(|session| &mut **session)
    }

    pub(crate) fn contains_key(&self, id: &SessionId) -> bool {
        self.get(id).is_some()
    }

    /// Inserts a session. Its id must be new.
    pub(crate) fn insert(&mut self, session: Session) {
        let id = session.record.id;
        assert!(self.ids.insert(id), "{id:?} is inserted twice");
        let hasher = &self.hasher;
        self.sessions.insert_unique(hasher.hash_one(id), Box::new(session), |it| hasher.hash_one(it.record.id));
    }

    pub(crate) fn remove(&mut self, id: &SessionId) -> Option<Box<Session>> {
        self.ids.remove(id);
        let hash = self.hasher.hash_one(id);
        let entry = self.sessions.find_entry(hash, |session| session.record.id == *id).ok()?;
        Some(entry.remove().0)
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The sessions with ids in this range, in the order of ids.
    pub(crate) fn range(&self, range: impl RangeBounds<SessionId>) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.ids.range(range).map(|id| (id, &self[id]))
    }
}

impl Index<&SessionId> for SessionTable {
    type Output = Session;

    fn index(&self, id: &SessionId) -> &Session {
        self.get(id).expect("the caller knows that the session is alive")
    }
}
