//! What a node's log has cost since the process began, for those who look after it. It decides nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// Entries, syncs and bytes of a node's log. Read by other threads while the log is written, so the three may be of slightly
/// different moments.
#[derive(Debug, Default)]
pub struct LogCounts {
    entries: AtomicU64,
    syncs: AtomicU64,
    bytes: AtomicU64,
}

impl LogCounts {
    /// Entries that were appended, those of consensus itself included. One that replaces another counts again.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Records that were written and synced, each with one sync. What the engine does by itself when it begins a file or deletes
    /// old ones is not counted, nor are snapshots.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Bytes of those records.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn appended(&self, entries: usize) {
        self.entries.fetch_add(entries as u64, Ordering::Relaxed);
    }

    pub(super) fn synced(&self, bytes: usize) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
