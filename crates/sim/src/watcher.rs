//! A watcher: reads the events of a prefix, each time at another node, and resumes where it stopped.
//!
//! It reports what it receives as facts. The checker of I14 judges whether anything is missing, repeated or wrong.

use fencepost_core::Position;
use fencepost_replica::{GROUP_BEGINS, Replica};

use crate::fact::{Fact, WorldTime};
use crate::observer::Observer;

/// The position before the first event.
const LOG_BEGINS: Position = Position { index: GROUP_BEGINS.index, ordinal: u32::MAX };

/// A watcher of one prefix.
#[derive(Debug)]
pub(crate) struct Watcher {
    id: u64,
    prefix: &'static str,
    after: Position,
}

impl Watcher {
    /// A watcher of this prefix, from the beginning of the log.
    pub(crate) fn new(id: u64, prefix: &'static str) -> Watcher {
        Watcher { id, prefix, after: LOG_BEGINS }
    }

    /// The cluster was restored and has a new log: starts from its beginning.
    pub(crate) fn restart(&mut self) {
        self.after = LOG_BEGINS;
    }

    /// Reads up to `count` new events from a node.
    pub(crate) fn look(&mut self, replica: &Replica, count: usize, now: WorldTime, observer: &mut Observer) {
        let (watcher, prefix) = (self.id, self.prefix);
        let index = replica.applied().index;
        // This node is behind the watcher: it has no new events.
        if index < self.after.index {
            return;
        }
        match replica.events().after(self.after, prefix, count) {
            Ok(events) => {
                let mut seen = 0;
                for event in events {
                    observer.fact(now, &Fact::Watched { watcher, prefix, event });
                    (self.after, seen) = (event.position, seen + 1);
                }
                if seen < count {
                    self.after = Position { index, ordinal: u32::MAX };
                    observer.fact(now, &Fact::WatchedThrough { watcher, prefix, index });
                }
            }
            Err(compacted) => {
                self.after = compacted.oldest;
                observer.fact(now, &Fact::WatchCompacted { watcher, oldest: compacted.oldest });
            }
        }
    }
}
