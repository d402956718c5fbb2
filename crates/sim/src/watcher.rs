//! Somebody who watches events, now at one node and now at another, and resumes from where it was.

use fencepost_core::Position;
use fencepost_replica::{GROUP_BEGINS, Replica};

use crate::fact::{Fact, WorldTime};
use crate::observer::Observer;

/// Everything comes after this.
const LOG_BEGINS: Position = Position { index: GROUP_BEGINS.index, ordinal: u32::MAX };

/// A watcher.
#[derive(Debug)]
pub(crate) struct Watcher {
    id: u64,
    prefix: &'static str,
    after: Position,
}

impl Watcher {
    /// Of this prefix, from the beginning.
    pub(crate) fn new(id: u64, prefix: &'static str) -> Watcher {
        Watcher { id, prefix, after: LOG_BEGINS }
    }

    /// The cluster is another one now: its log begins anew.
    pub(crate) fn begin_anew(&mut self) {
        self.after = LOG_BEGINS;
    }

    /// Looks at what is new at a node.
    pub(crate) fn look(&mut self, replica: &Replica, count: usize, now: WorldTime, observer: &mut Observer) {
        let (watcher, prefix) = (self.id, self.prefix);
        let index = replica.applied().index;
        // A node that is behind has nothing to say.
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
