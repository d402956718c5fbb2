//! The disk of a simulated node: what is durable, what a crash may lose, and how slow and how faithful it is.
//!
//! Writes become durable in order, in the batches in which they were handed over, as the real log does it; a crash keeps any
//! number of the first that were under way and loses the rest. What the real log does with torn and flipped bytes is tested with
//! its own files; here a disk that was damaged is one whose node must not come back.

use fencepost_core::{KnownVersions, LogPosition};
use std::collections::VecDeque;
use std::sync::Arc;

use fencepost_replica::{GroupId, Log, LogWrite, Stop, make_snapshot, read_snapshot};

use crate::random::Random;

/// What a node finds again after a crash.
#[derive(Clone, Debug)]
pub(crate) struct Durable {
    /// The log.
    pub(crate) log: Log,
    /// The newest snapshot.
    pub(crate) snapshot: Option<Arc<[u8]>>,
}

/// A disk.
#[derive(Debug)]
pub(crate) struct Disk {
    durable: Durable,
    unsynced: VecDeque<LogWrite>,
    /// How many of them the sync that is under way takes in.
    syncing: usize,
    /// The snapshot that is being made, and the group's first voters.
    pub(crate) making: Option<(LogPosition, Vec<u64>)>,
    /// How slow it is.
    pub(crate) speed: Speed,
    /// Syncs that were made.
    pub(crate) syncs: u64,
}

/// How long a sync takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speed {
    /// A fraction of a millisecond to a few.
    Well,
    /// Tens to hundreds of milliseconds.
    Slow,
    /// Until it is healed.
    Stalled,
}

impl Disk {
    /// With this on it.
    pub(crate) fn new(durable: Durable) -> Disk {
        Disk { durable, unsynced: VecDeque::new(), syncing: 0, making: None, speed: Speed::Well, syncs: 0 }
    }

    /// What is on it.
    pub(crate) fn durable(&self) -> &Durable {
        &self.durable
    }

    /// Takes a write. True: a sync is to be begun.
    pub(crate) fn write(&mut self, write: LogWrite) -> bool {
        self.unsynced.push_back(write);
        self.syncing == 0
    }

    /// Begins to sync all that was written, and says how long it takes in nanoseconds; none if it stalls, or there is nothing.
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

    /// The sync is done: gives back the number of the last write that is durable now.
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

    /// The node crashed, or its sync failed: any number of the writes under way made it to the disk, in order.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let kept = random.below(self.unsynced.len() as u64 + 1) as usize;
        self.persist(kept);
        self.unsynced.clear();
        (self.syncing, self.making) = (0, None);
    }

    /// Entries up to here are not needed any more.
    pub(crate) fn compact(&mut self, before: LogPosition) {
        drop(self.durable.log.compact(before.index));
    }

    /// Makes the snapshot that was asked for, and makes it durable. Gives back its state hash.
    ///
    /// # Errors
    /// [`Stop`] as a real node would say it.
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
                // Whoever writes a snapshot that cannot be read should hear it now, not when it is needed.
                read_snapshot(group, &bytes, 7, known)?;
                self.durable.snapshot = Some(bytes.into());
                Ok((through, state_hash))
            });
        Some(made)
    }

    /// Flips one bit of the snapshot, if there is one.
    pub(crate) fn flip_a_bit(&mut self, random: &mut Random) -> bool {
        let Some(snapshot) = self.durable.snapshot.as_mut().filter(|bytes| !bytes.is_empty()) else { return false };
        let mut bytes = snapshot.to_vec();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        *snapshot = bytes.into();
        true
    }
}
