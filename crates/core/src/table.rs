//! The resources in use, by name: a hash table that cannot be walked.
//!
//! A hash table has no order that two replicas share, so this one offers no iteration at all: what has to be done in order
//! is driven by grants, waiters and sessions. The seed of the hash is each node's own, against chosen collisions.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::resource::Resource;
use crate::words::Name;

/// The resources that somebody holds or waits for. A free name is not in it.
// Rule: free-names
#[derive(Clone, Debug)]
pub(crate) struct ResourceTable {
    hasher: FixedState,
    // Boxed, so that growing the table moves pointers only.
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

    /// Forgets the resource if nobody holds it and nobody waits for it.
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
