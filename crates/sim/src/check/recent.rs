//! A map with a bound that forgets its oldest entries first.
//!
//! A run can be long, and most facts are needed soon or never. Each checker chooses how much it remembers.

use std::collections::VecDeque;
use std::hash::Hash;

use super::ledger::Map;

/// The newest entries, by key.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    map: Map<K, V>,
    /// Keys in the order of insertion. A key that was taken out stays here until its turn.
    order: VecDeque<K>,
    max: usize,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(super) fn up_to(max: usize) -> Recent<K, V> {
        Recent { map: Map::default(), order: VecDeque::new(), max }
    }

    /// Inserts an entry, unless the key exists already.
    pub(super) fn note(&mut self, key: K, value: V) {
        if self.map.contains_key(&key) {
            return;
        }
        self.map.insert(key, value);
        self.order.push_back(key);
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    pub(super) fn take(&mut self, key: &K) -> Option<V> {
        self.map.remove(key)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.map.clear();
        self.order.clear();
    }
}
