//! The log as consensus sees it: the entries of this node, in memory.
//!
//! An entry is here from the moment it is handed to the disk. It stays after it is durable, because followers and apply read it
//! again soon. [`crate::Replica`] gives out the writes for the disk. This file does no I/O and never waits for the disk.

use std::cell::Cell;
use std::collections::VecDeque;

use fencepost_core::LogPosition;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::ports::LogWrite;
use crate::snapshot::SnapshotInfo;

/// The position before the first entry of every group. Not zero: if the members are known, consensus requires that the last index and
/// the last term of the log are above zero.
pub const GROUP_BEGINS: LogPosition = LogPosition { index: 1, term: 1 };

/// The state of consensus that must survive a crash: vote, members, entries.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Vote, term and commit.
    pub(crate) hard_state: HardState,
    /// The members that consensus starts with: as of `before`, or of the snapshot.
    pub(crate) members: ConfState,
    /// The position that the entries follow: one that the newest snapshot includes, or [`GROUP_BEGINS`].
    pub(crate) before: LogPosition,
    /// The newest snapshot, for followers that need entries which are no longer here.
    pub(crate) snapshot: Option<SnapshotInfo>,
    /// Consensus asked for a snapshot for a follower, and no snapshot is usable for that follower.
    snapshot_wanted: Cell<bool>,
    /// Invariant: indexes rise by one, beginning with `before.index + 1`.
    entries: VecDeque<Entry>,
    /// Invariant: the sum of [`entry_bytes`] of all entries.
    bytes: u64,
}

impl Log {
    /// The log of a new group with these voters.
    pub fn new(voters: &[u64]) -> Log {
        let members = ConfState { voters: voters.to_vec(), ..ConfState::default() };
        let hard_state = HardState { term: GROUP_BEGINS.term, commit: GROUP_BEGINS.index, ..HardState::default() };
        Log { hard_state, members, before: GROUP_BEGINS, ..Log::default() }
    }

    /// The log of a new node that joins a group. It is empty, so the leader must send a snapshot, which holds everything else.
    /// Until then the node neither votes nor stands for election.
    pub fn joining() -> Log {
        Log::default()
    }

    /// The log as read from a disk. The caller has checked that the indexes rise by one after `before`.
    pub(crate) fn recovered(
        hard_state: HardState,
        members: ConfState,
        before: LogPosition,
        entries: Vec<Entry>,
    ) -> Log {
        let mut log = Log { hard_state, members, before, ..Log::default() };
        log.append(&entries);
        log
    }

    /// Whether both logs are at the same point: begin, end, and hard state.
    pub(crate) fn is_same_beginning(&self, other: &Log) -> bool {
        (self.before, self.last(), &self.hard_state) == (other.before, other.last(), &other.hard_state)
    }

    /// Removes the entries up to an index that the newest snapshot includes. Returns them, because freeing a hundred thousand
    /// entries takes longer than a turn should.
    pub fn compact(&mut self, through: u64) -> VecDeque<Entry> {
        let count = self.entries.partition_point(|entry| entry.index <= through);
        let kept = self.entries.split_off(count);
        let taken = std::mem::replace(&mut self.entries, kept);
        self.bytes = self.entries.iter().map(entry_bytes).sum();
        if let Some(entry) = taken.back() {
            self.before = LogPosition { index: entry.index, term: entry.term };
        }
        taken
    }

    /// The index up to which entries can be removed, given a snapshot of all entries up to `snapshot_index`. At most `entries_kept` of
    /// those entries stay, and fewer while the whole log has more than `bytes_kept`.
    pub(crate) fn compactable(&self, snapshot_index: u64, entries_kept: u64, bytes_kept: u64) -> u64 {
        let mut bytes = self.bytes;
        let mut through = self.before.index;
        for entry in self.entries.iter().take_while(|entry| entry.index <= snapshot_index) {
            if entry.index.saturating_add(entries_kept) > snapshot_index && bytes <= bytes_kept {
                break;
            }
            bytes -= entry_bytes(entry);
            through = entry.index;
        }
        through
    }

    /// The memory that the entries take, approximately.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a follower waits for a snapshot that does not exist yet. Resets the flag.
    pub(crate) fn take_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.take()
    }

    /// Notes that a newer snapshot is durable.
    pub fn name_snapshot(&mut self, snapshot: SnapshotInfo) {
        self.snapshot = Some(snapshot);
    }

    /// Replaces the whole log by the position of a peer's snapshot. No entry is left.
    pub fn install(&mut self, snapshot: SnapshotInfo) {
        self.before = snapshot.position;
        self.members = snapshot.members.clone();
        self.snapshot = Some(snapshot);
        self.entries.clear();
        self.bytes = 0;
    }

    /// The position that the entries follow.
    pub fn before(&self) -> LogPosition {
        self.before
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The entries beginning with this index. Empty if the index is before the first entry.
    pub(crate) fn entries_from(&self, index: u64) -> impl Iterator<Item = &Entry> {
        let skipped = index.checked_sub(self.before.index + 1).unwrap_or(u64::MAX);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX).min(self.entries.len());
        self.entries.range(skipped..)
    }

    /// The position of the last entry, or [`Log::before()`] if there is none.
    pub fn last(&self) -> LogPosition {
        self.entries.back().map_or(self.before, |entry| LogPosition { index: entry.index, term: entry.term })
    }

    /// Puts entries at their indexes. They replace the old entries there, and all entries after those.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let keep = first.index.checked_sub(self.before.index + 1).expect("compacted entries are never overwritten");
        assert!(keep as usize <= self.entries.len(), "a gap in the log before entry {}", first.index);
        self.bytes -= self.entries.drain(keep as usize..).map(|entry| entry_bytes(&entry)).sum::<u64>();
        self.bytes += entries.iter().map(entry_bytes).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Applies a write as a disk does. For tests and simulations that keep a log in memory.
    pub fn persist(&mut self, write: &LogWrite) {
        if let Some((snapshot, _)) = &write.snapshot {
            self.install(snapshot.clone());
        }
        self.append(&write.entries);
        if let Some(hard_state) = &write.hard_state {
            self.hard_state = hard_state.clone();
        }
    }

    /// The entries, newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.before.index + 1)? as usize)
    }
}

/// The memory that an entry takes, approximately: its data and the structure itself.
pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    (entry.data.len() + size_of::<Entry>()) as u64
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.members.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.before.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let mut entries: Vec<Entry> = (low..high).filter_map(|index| self.get(index).cloned()).collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before.index {
            return Ok(self.before.term);
        }
        if index < self.before.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.get(index).map(|entry| entry.term).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last().index)
    }

    fn snapshot(&self, _request_index: u64, to: u64) -> raft::Result<Snapshot> {
        // A node refuses a snapshot in which it is not a member. A node that was added later needs a newer snapshot.
        let knows = |members: &ConfState| {
            [&members.voters, &members.learners, &members.voters_outgoing].into_iter().any(|list| list.contains(&to))
        };
        let Some(info) = self.snapshot.as_ref().filter(|info| knows(&info.members)) else {
            self.snapshot_wanted.set(true);
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        // Without the bytes: the server sends them beside the message, in pieces.
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = info.position.index;
        metadata.term = info.position.term;
        metadata.set_conf_state(info.members.clone());
        Ok(snapshot)
    }
}
