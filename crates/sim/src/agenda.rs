//! The agenda: everything that is scheduled, in order of time.
//!
//! Items for the same time come out in the order in which they were put in. Without that rule runs would not be repeatable.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::fact::WorldTime;

/// A priority queue of scheduled items.
#[derive(Debug)]
pub(crate) struct Agenda<What> {
    heap: BinaryHeap<Reverse<Item<What>>>,
    put: u64,
}

#[derive(Debug)]
struct Item<What> {
    at: WorldTime,
    order: u64,
    what: What,
}

impl<What> PartialEq for Item<What> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<What> Eq for Item<What> {}

impl<What> PartialOrd for Item<What> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<What> Ord for Item<What> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<What> Default for Agenda<What> {
    fn default() -> Self {
        Agenda { heap: BinaryHeap::new(), put: 0 }
    }
}

impl<What> Agenda<What> {
    /// Schedules an item.
    pub(crate) fn put(&mut self, at: WorldTime, what: What) {
        self.put += 1;
        self.heap.push(Reverse(Item { at, order: self.put, what }));
    }

    /// Takes out the next item, if it is due at `until` or before.
    pub(crate) fn next(&mut self, until: WorldTime) -> Option<(WorldTime, What)> {
        if self.heap.peek().is_none_or(|Reverse(item)| item.at > until) {
            return None;
        }
        self.heap.pop().map(|Reverse(item)| (item.at, item.what))
    }
}
