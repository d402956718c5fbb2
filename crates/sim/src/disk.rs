//! The disk of a simulated node: what is durable, what a crash may lose, how slow syncs are, and damage.
//!
//! Writes become durable in order, in the batches in which they were handed over, as in the real log. A crash keeps a random prefix
//! of the writes in flight and loses the rest. Torn and flipped bytes in log files are not simulated: the tests of the real log cover
//! them. Here only a snapshot can be damaged, and its node must then refuse to start.

use fencepost_core::{KnownVersions, LogPosition};
use std::collections::VecDeque;
use std::sync::Arc;

use fencepost_replica::{GroupId, Log, LogWrite, Stop, make_snapshot, read_snapshot};

use crate::random::Random;

/// What survives a crash.
#[derive(Clone, Debug)]
pub(crate) struct Durable {
    pub(crate) log: Log,
    /// The newest snapshot.
    pub(crate) snapshot: Option<Arc<[u8]>>,
}

/// The disk of one node.
#[derive(Debug)]
pub(crate) struct Disk {
    durable: Durable,
    unsynced: VecDeque<LogWrite>,
    /// How many writes of `unsynced`, from the front, the sync in flight covers. 0 if no sync is in flight.
    syncing: usize,
    /// The position of the snapshot in progress, and the voters that the group began with. The node's first snapshot uses them.
    pub(crate) making: Option<(LogPosition, Vec<u64>)>,
    pub(crate) speed: Speed,
    /// Completed syncs.
    pub(crate) syncs: u64,
}

/// How long a sync takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// 0.1 to 4 milliseconds.
    Well,
    /// 20 to 800 milliseconds.
    Slow,
    /// No sync completes until the disk is healed.
    Stalled,
}

impl Disk {
    /// A disk with this content, without writes in flight.
    pub(crate) fn new(durable: Durable) -> Disk {
        Disk { durable, unsynced: VecDeque::new(), syncing: 0, making: None, speed: Speed::Well, syncs: 0 }
    }

    /// The durable content.
    pub(crate) fn durable(&self) -> &Durable {
        &self.durable
    }

    /// Takes a write. Returns true if the caller must begin a sync.
    pub(crate) fn write(&mut self, write: LogWrite) -> bool {
        self.unsynced.push_back(write);
        self.syncing == 0
    }

    /// Begins to sync all pending writes. Returns the duration in nanoseconds; `None` if the disk is stalled, a sync is in flight, or
    /// there is nothing to sync.
    pub(crate) fn begin_sync(&mut self, random: &mut Random) -> Option<u64> {
        let took = match self.speed {
            Speed::Well => random.delay(100_000, 4_000_000),
            Speed::Slow => random.delay(20_000_000, 800_000_000),
            Speed::Stalled => return None,
        };
        if self.unsynced.is_empty() || self.syncing > 0 {
            return None;
        }
        self.syncing = self.unsynced.len();
        Some(took)
    }

    /// Completes the sync. Returns the number of the last write that is durable now.
    pub(crate) fn end_sync(&mut self) -> Option<u64> {
        self.syncs += 1;
        let writes = std::mem::take(&mut self.syncing);
        self.persist(writes)
    }

    fn persist(&mut self, writes: usize) -> Option<u64> {
        let mut last = None;
        for write in self.unsynced.drain(..writes) {
            self.durable.log.persist(&write);
            if let Some((_, bytes)) = &write.snapshot {
                self.durable.snapshot = Some(bytes.clone());
                self.making = None;
            }
            last = Some(write.number);
        }
        last
    }

    /// The node crashed, or its sync failed. A random prefix of the writes in flight becomes durable; the rest is lost.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let kept = random.below(self.unsynced.len() as u64 + 1) as usize;
        self.persist(kept);
        self.unsynced.clear();
        (self.syncing, self.making) = (0, None);
    }

    /// Drops the log entries up to and including this position.
    pub(crate) fn compact(&mut self, before: LogPosition) {
        drop(self.durable.log.compact(before.index));
    }

    /// Makes the requested snapshot durable. Returns its position and state hash; `None` if no snapshot is requested.
    ///
    /// # Errors
    /// [`Stop`], as on a real node.
    pub(crate) fn make_snapshot(
        &mut self,
        group: GroupId,
        known: KnownVersions,
    ) -> Option<Result<(LogPosition, u64), Stop>> {
        let (through, first_voters) = self.making.take()?;
        let previous = self.durable.snapshot.as_deref();
        let entries = self.durable.log.entries().cloned();
        let made =
            make_snapshot(group, previous, &first_voters, entries, through, known).and_then(|(bytes, state_hash)| {
                // A snapshot that cannot be read must fail here, not when a node needs it.
                read_snapshot(group, &bytes, 7, known)?;
                self.durable.snapshot = Some(bytes.into());
                Ok((through, state_hash))
            });
        Some(made)
    }

    /// Flips one bit of the snapshot. Returns false if there is no snapshot.
    pub(crate) fn flip_a_bit(&mut self, random: &mut Random) -> bool {
        let Some(snapshot) = self.durable.snapshot.as_mut().filter(|bytes| !bytes.is_empty()) else { return false };
        let mut bytes = snapshot.to_vec();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        *snapshot = bytes.into();
        true
    }
}
