//! Counts of what a node has written to its log since the process began, for operators. They decide nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::Histogram;

/// Entries, syncs and bytes of a node's log. Other threads read them while the log is written, so the three may be from slightly
/// different moments.
#[derive(Debug, Default)]
pub struct LogCounts {
    entries: AtomicU64,
    syncs: AtomicU64,
    bytes: AtomicU64,
    sync_times: Histogram,
}

impl LogCounts {
    /// Appended entries, including those that consensus writes for itself. An entry that replaces another one counts again.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Records that were written, each with one sync. Not counted: snapshots, and what the engine does when it begins a file or deletes
    /// old ones.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Bytes of those records.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How long writing and syncing each of those records took.
    pub fn sync_times(&self) -> &Histogram {
        &self.sync_times
    }

    pub(crate) fn appended(&self, entries: usize) {
        self.entries.fetch_add(entries as u64, Ordering::Relaxed);
    }

    pub(super) fn synced(&self, bytes: usize, took: Duration) {
        self.sync_times.observe(took);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
