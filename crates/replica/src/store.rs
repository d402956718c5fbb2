//! A node's log on disk, in TiKV's `raft-engine`.
//!
//! The store promises three things:
//! - What [`LogStore::write`] has acknowledged is there after a crash, in order and without gaps.
//! - [`LogStore::open`] refuses a damaged log and says what to do. Damaged data is never served.
//! - After the first failed write or sync, nothing is acknowledged.
//!
//! It decides nothing about consensus. It never retries, except for a write that finds a full disk and fits into the reserve.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the implementation of the replica's disk port is where the operating system is asked"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use protobuf::Message;
use raft::eraftpb::{ConfState, Entry, HardState};
use raft_engine::env::FileSystem;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};

use fencepost_core::LogPosition;

use crate::bounds::{LOG_FILE_BYTES, PURGE_BYTES, RESERVE_BYTES};
use crate::log::Log;
use crate::ports::LogWrite;

mod counts;
mod error;
mod guard;
mod identity;
mod private;
mod reserve;
mod scan;
mod snapshots;

pub use counts::LogCounts;
pub use error::StoreError;
use guard::{FirstFailure, Guard};
use identity::Mark;
pub use private::{PrivateFiles, close_to_others};
use reserve::Reserve;
pub use snapshots::SnapshotStore;

/// The engine's group for the store's own keys. No group of the cluster has this id.
const STORE_GROUP: u64 = u64::MAX;
/// In [`STORE_GROUP`]: the number of the write. It is the last item of every record, where the scan finds it.
const KEY_WRITES: &[u8] = b"writes";
/// In each group, and in every record of it: the index of the last entry (8 bytes), then vote, term and commit.
const KEY_STATE: &[u8] = b"state";
/// In each group: the position that the entries follow.
const KEY_BEFORE: &[u8] = b"before";
/// In each group: the members as of that position.
const KEY_MEMBERS: &[u8] = b"members";

/// The node that a log belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's id, drawn when the cluster was founded or restored.
    pub cluster: u128,
    /// The node's id in the cluster. Never given out twice.
    pub node: u64,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "node {} of cluster {:032x}", fencepost_wire::ShownNode(self.node), self.cluster)
    }
}

/// Whether the node is new. The caller must know: an empty directory looks the same on a new node and on a wiped node, and a wiped
/// node must not vote under its old id.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// A new node: no log may be there. The group begins with this log.
    New(&'a Log),
    /// A node that ran before: its log must be there.
    Again,
}

/// The identity in a directory, if a log was begun there.
///
/// # Errors
/// [`StoreError`] says what to do.
pub fn read_identity(directory: &Path) -> Result<Option<Identity>, StoreError> {
    identity::read(&PrivateFiles, &directory.join("IDENTITY"))
}

/// The sizes of the log's files and of the reserve.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// A new file begins when the last one is larger than this.
    pub file_bytes: u64,
    /// Files of compacted entries are deleted when all files together are larger than this.
    pub purge_bytes: u64,
    /// The size of the reserve for a full disk. With zero there is no reserve.
    pub reserve_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { file_bytes: LOG_FILE_BYTES, purge_bytes: PURGE_BYTES, reserve_bytes: RESERVE_BYTES }
    }
}

/// Tells the engine the index of an entry.
struct EntryIndex;

impl MessageExt for EntryIndex {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

/// What the store knows of a group without reading the disk.
struct Group {
    /// The newest hard state of the caller. Its commit index may be newer than on disk.
    hard_state: HardState,
    before: LogPosition,
    last_index: u64,
}

struct Written<F: FileSystem> {
    groups: BTreeMap<u64, Group>,
    /// The number of records since the directory was created.
    writes: u64,
    mark: Mark<Guard<F>>,
}

/// The log of a node on disk: one file sequence, and one sync, for all groups.
///
/// One thread writes at a time; the others wait.
pub struct LogStore<F: FileSystem = PrivateFiles> {
    directory: PathBuf,
    engine: Engine<Guard<F>>,
    failure: FirstFailure,
    reserve: Arc<Reserve<F>>,
    counts: Arc<LogCounts>,
    written: Mutex<Written<F>>,
}

impl LogStore {
    /// Opens the log in a directory, or begins it, and returns the log for consensus. A write that a crash tore was never
    /// acknowledged, and is cut off.
    ///
    /// # Errors
    /// [`StoreError`] says what to do. A damaged log, and the log of another node, are left unchanged.
    pub fn open(
        directory: &Path,
        identity: Identity,
        group: u64,
        start: Start<'_>,
    ) -> Result<(LogStore, Log), StoreError> {
        LogStore::open_on(Arc::new(PrivateFiles), directory, identity, group, start, StoreOptions::default())
    }
}

impl<F: FileSystem> LogStore<F> {
    /// As [`LogStore::open`], on a file system of the caller's choice.
    ///
    /// # Errors
    /// As [`LogStore::open`].
    pub fn open_on(
        file_system: Arc<F>,
        directory: &Path,
        identity: Identity,
        group: u64,
        start: Start<'_>,
        options: StoreOptions,
    ) -> Result<(LogStore<F>, Log), StoreError> {
        let (log_directory, identity_path) = (directory.join("log"), directory.join("IDENTITY"));
        let identity_is_there = identity::check(file_system.as_ref(), &identity_path, identity)?;
        match start {
            Start::Again if !identity_is_there => {
                return Err(StoreError::NotThere { group, directory: directory.into() });
            }
            Start::New(_) if identity_is_there => {
                return Err(StoreError::AlreadyThere { group, directory: directory.into() });
            }
            Start::New(_) => private::create_directory(&log_directory)?,
            Start::Again => {}
        }
        check_not_in_use(&log_directory)?;
        let failure = FirstFailure::default();
        let reserve_path = directory.join("RESERVE");
        let reserve = Arc::new(Reserve::new(file_system.clone(), reserve_path.clone(), options.reserve_bytes));
        let guard = Arc::new(Guard { inner: file_system.clone(), failure: failure.clone(), reserve: reserve.clone() });
        let mark_path = directory.join("MARK");
        let (mark, marked) =
            Mark::open(guard.as_ref(), &mark_path).map_err(|source| StoreError::io("open", &mark_path, source))?;
        let lost = |writes| {
            let reason = format!("write {marked} was acknowledged, but the log ends with write {writes}");
            StoreError::Damaged { place: log_directory.clone(), reason }
        };
        let scanned = scan::check_directory(file_system.as_ref(), &log_directory)?;
        if let Some(writes) = scanned.filter(|writes| *writes < marked) {
            return Err(lost(writes));
        }

        // `fill` returns no error on a full disk: the node starts without a reserve, and counts as short of disk space.
        reserve.fill().map_err(|source| StoreError::io("allocate", &reserve_path, source))?;
        let config = engine_config(&log_directory, options)?;
        let engine = on_fresh_thread(&log_directory, || Engine::open_with_file_system(config, guard))?;
        let writes = engine.get(STORE_GROUP, KEY_WRITES).map_or(0, |bytes| number(&bytes));
        // If the engine has rewritten all numbered records and deleted their files, only the engine knows the number.
        if marked > writes || scanned.is_some_and(|scanned| scanned != writes) {
            return Err(lost(writes));
        }
        // The engine creates its first files without syncing the directory.
        sync_directory(&log_directory)?;
        let written = Mutex::new(Written { groups: BTreeMap::new(), writes, mark });
        let counts = Arc::default();
        let store = LogStore { directory: log_directory.clone(), engine, failure, reserve, counts, written };
        let log = store.open_group(group, start)?;
        if !identity_is_there {
            // Last: a directory without an identity was never acknowledged to the caller, and can be begun again.
            identity::write(file_system.as_ref(), &identity_path, identity)
                .map_err(|source| StoreError::io("write", &identity_path, source))?;
            sync_directory(directory)?;
            if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                sync_directory(parent)?;
            }
        }
        Ok((store, log))
    }

    /// Opens the log of one more group, or begins it.
    ///
    /// # Errors
    /// As [`LogStore::open`].
    pub fn open_group(&self, group: u64, start: Start<'_>) -> Result<Log, StoreError> {
        let found = on_fresh_thread(&self.directory, || self.read_group(group))?;
        match (start, found) {
            (Start::Again, None) => Err(StoreError::NotThere { group, directory: self.directory.clone() }),
            (Start::New(log), Some(found)) if !found.is_same_beginning(log) || self.knows(group) => {
                Err(StoreError::AlreadyThere { group, directory: self.directory.clone() })
            }
            (Start::Again, Some(log)) => {
                self.lock().groups.insert(group, Group::of(&log));
                Ok(log)
            }
            // New, or left by a beginning that a crash interrupted: begin it, or begin it again.
            (Start::New(log), _) => {
                self.begin(group, log)?;
                Ok(log.clone())
            }
        }
    }

    /// Makes a write of the replica durable. A commit index alone is kept in memory and written with the next write. So every record
    /// is synced before the next one begins, and only the last one can be torn. After a crash, consensus learns the commit index again
    /// from its peers.
    ///
    /// # Errors
    /// [`StoreError::Failed`]: the node must stop. [`StoreError::DiskFull`]: the reserve is used up, too. The caller may try the same write again.
    pub fn write(&self, group: u64, write: &LogWrite) -> Result<(), StoreError> {
        // The caller has made the snapshot's bytes durable already. A crash before this line leaves the older log.
        if let Some((snapshot, _)) = &write.snapshot {
            self.restart_after(group, snapshot.position, &snapshot.members)?;
        }
        let mut written = self.lock();
        self.check_sound()?;
        let held = written.groups.get(&group).ok_or_else(|| unknown(group))?;
        let last_index = held.check_follows(&write.entries)?;
        let hard_state = write.hard_state.as_ref().unwrap_or(&held.hard_state).clone();
        let votes_alike = (hard_state.term, hard_state.vote) == (held.hard_state.term, held.hard_state.vote);
        if write.must_sync || !write.entries.is_empty() || !votes_alike {
            let mut batch = LogBatch::default();
            add_entries(&mut batch, group, &write.entries)?;
            put_state(&mut batch, group, last_index, &hard_state);
            self.commit(&mut written, batch)?;
            self.counts.appended(write.entries.len());
        }
        let held = written.groups.get_mut(&group).ok_or_else(|| unknown(group))?;
        (held.hard_state, held.last_index) = (hard_state, last_index);
        Ok(())
    }

    /// Drops the entries up to a position. A durable snapshot must include them. `members` are the members as of that position. Files
    /// without other entries are deleted when there are enough of them.
    ///
    /// # Errors
    /// As [`LogStore::write`].
    pub fn compact(&self, group: u64, before: LogPosition, members: &ConfState) -> Result<(), StoreError> {
        let mut written = self.lock();
        self.check_sound()?;
        let held = written.groups.get(&group).ok_or_else(|| unknown(group))?;
        if before.index < held.before.index || before.index > held.last_index {
            let (from, to) = (held.before.index, held.last_index);
            let reason = format!("compaction up to {}, and the log follows {from} and ends at {to}", before.index);
            return Err(StoreError::Inconsistent { reason });
        }
        let mut batch = LogBatch::default();
        put_beginning(&mut batch, group, before, members);
        put_state(&mut batch, group, held.last_index, &held.hard_state);
        batch.add_command(group, Command::Compact { index: before.index + 1 });
        self.commit(&mut written, batch)?;
        written.groups.get_mut(&group).ok_or_else(|| unknown(group))?.before = before;
        self.purge()
    }

    /// Replaces the whole log of a group by the position of a peer's snapshot. No entry is left.
    ///
    /// # Errors
    /// As [`LogStore::write`].
    pub fn restart_after(&self, group: u64, before: LogPosition, members: &ConfState) -> Result<(), StoreError> {
        let mut written = self.lock();
        self.check_sound()?;
        let mut hard_state = written.groups.get(&group).ok_or_else(|| unknown(group))?.hard_state.clone();
        hard_state.commit = hard_state.commit.max(before.index);
        hard_state.term = hard_state.term.max(before.term);
        let mut batch = LogBatch::default();
        // Not `Compact`: the engine forgets compactions when it deletes files, and later entries would come back.
        batch.add_command(group, Command::Clean);
        put_beginning(&mut batch, group, before, members);
        put_state(&mut batch, group, before.index, &hard_state);
        self.commit(&mut written, batch)?;
        written.groups.insert(group, Group { hard_state, before, last_index: before.index });
        self.purge()
    }

    /// Whether the reserve is in use or could not be allocated at the start. Writes still work. The caller should refuse new locks until
    /// [`LogStore::refill_reserve`] returns `true`.
    pub fn is_short(&self) -> bool {
        self.reserve.is_short()
    }

    /// Entries, syncs and bytes of the log since the process began.
    pub fn counts(&self) -> Arc<LogCounts> {
        self.counts.clone()
    }

    /// Allocates the reserve again, if there is room. Returns whether it is complete. While the store is short, the caller does this
    /// after a compaction, and from time to time.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it failed for another reason than a full disk. The log is unchanged.
    pub fn refill_reserve(&self) -> Result<bool, StoreError> {
        // Locked, so that a write that finds no room does not meet a half-filled reserve.
        let _written = self.lock();
        self.reserve.fill().map_err(|source| StoreError::io("allocate the reserve beside", &self.directory, source))
    }

    fn begin(&self, group: u64, log: &Log) -> Result<(), StoreError> {
        if group == STORE_GROUP {
            return Err(StoreError::Inconsistent { reason: format!("group {group} is reserved for the store") });
        }
        let mut written = self.lock();
        self.check_sound()?;
        let entries: Vec<Entry> = log.entries().cloned().collect();
        let mut batch = LogBatch::default();
        put_beginning(&mut batch, group, log.before, &log.members);
        put_state(&mut batch, group, log.last().index, &log.hard_state);
        add_entries(&mut batch, group, &entries)?;
        self.commit(&mut written, batch)?;
        written.groups.insert(group, Group::of(log));
        Ok(())
    }

    /// Writes a record and syncs it.
    fn commit(&self, written: &mut Written<F>, mut batch: LogBatch) -> Result<(), StoreError> {
        let number = written.writes + 1;
        put(&mut batch, STORE_GROUP, KEY_WRITES, number.to_le_bytes().to_vec());
        let mut bytes = 0;
        let began = Instant::now();
        let mut write = || self.engine.write(&mut batch, true).map(|length| bytes = length);
        self.settle(catch_unwind(AssertUnwindSafe(&mut write)))?;
        self.counts.synced(bytes, began.elapsed());
        written.writes = number;
        if let Err(error) = written.mark.write(number) {
            self.failure.note(format!("the file MARK beside the log cannot be written: {error}"));
        }
        self.check_sound()
    }

    /// Deletes files that are no longer needed.
    fn purge(&self) -> Result<(), StoreError> {
        // The engine reads entries for it. A fresh thread keeps it from a wrong cache: see `on_fresh_thread`.
        let purged = std::thread::scope(|scope| scope.spawn(|| self.engine.purge_expired_files().map(|_| ())).join());
        if let Ok(Err(error)) = &purged
            && is_full(error)
        {
            // The engine has forgotten which logs were dropped. If it deleted files later, it would bring those logs back. All
            // files are still there, so a restart reads from them which logs were dropped.
            self.failure
                .note("the disk is full, and nothing is left of the reserve for deleting old files: make room".into());
        }
        self.settle(purged)
    }

    /// Turns an answer of the engine into success, a full disk, or a failure that stops the store.
    fn settle(&self, answer: std::thread::Result<raft_engine::Result<()>>) -> Result<(), StoreError> {
        match answer {
            Ok(Ok(())) => {}
            // The engine has cut off the part of the record that it wrote. Neither it nor the disk holds any of it.
            Ok(Err(error)) if is_full(&error) && self.failure.reason().is_none() => {
                return Err(StoreError::DiskFull { directory: self.directory.clone() });
            }
            Ok(Err(error)) => self.failure.note(error.to_string()),
            Err(panic) => self.failure.note(format!("the log engine panicked: {}", panic_message(&*panic))),
        }
        self.check_sound()
    }

    fn read_group(&self, group: u64) -> raft_engine::Result<Option<Log>> {
        let engine = &self.engine;
        let found = (engine.get(group, KEY_BEFORE), engine.get(group, KEY_STATE), engine.get(group, KEY_MEMBERS));
        if found == (None, None, None) && engine.last_index(group).is_none() {
            return Ok(None);
        }
        let damaged = |reason: String| raft_engine::Error::Corruption(format!("group {group}: {reason}"));
        let (Some(before), Some(state), Some(members)) = found else {
            return Err(damaged("the start of its log, its vote or its members are missing".into()));
        };
        let (Some((index, term)), Some((last, hard_state))) = (before.split_at_checked(8), state.split_at_checked(8))
        else {
            return Err(damaged("the start of its log or its vote is incomplete".into()));
        };
        let hard_state = HardState::parse_from_bytes(hard_state)?;
        let members = ConfState::parse_from_bytes(&members)?;
        let before = LogPosition { index: number(index), term: number(term) };
        // The engine may return old entries before the beginning and after the end. It forgets a compaction when it deletes the file
        // with that compaction. And it applies a compaction to each older part of the log separately: if the newer entries were
        // compacted, the older entries that they had overwritten come back.
        let (first, last) = (before.index + 1, number(last));
        let mut entries = Vec::new();
        if first <= last {
            engine.fetch_entries_to::<EntryIndex>(group, first, last + 1, None, &mut entries)?;
        }
        let mut position = before;
        for entry in &entries {
            if entry.index != position.index + 1 || entry.term < position.term {
                return Err(damaged(format!("entry {} of term {} follows {position:?}", entry.index, entry.term)));
            }
            position = LogPosition { index: entry.index, term: entry.term };
        }
        if position.index != last {
            return Err(damaged(format!("the entries end at {} instead of {last}", position.index)));
        }
        if hard_state.commit > last {
            return Err(damaged(format!("entry {} is committed, but the log ends at {last}", hard_state.commit)));
        }
        Ok(Some(Log::recovered(hard_state, members, before, entries)))
    }

    fn check_sound(&self) -> Result<(), StoreError> {
        match self.failure.reason() {
            Some(reason) => Err(StoreError::Failed { reason: reason.into() }),
            None => Ok(()),
        }
    }

    fn knows(&self, group: u64) -> bool {
        self.lock().groups.contains_key(&group)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Written<F>> {
        // Poisoning does not matter: no code here panics between two changes that belong together.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    fn of(log: &Log) -> Group {
        Group { hard_state: log.hard_state.clone(), before: log.before, last_index: log.last().index }
    }

    /// The last index after these entries. Refuses a gap: the engine would write it and panic, now and at each start.
    fn check_follows(&self, entries: &[Entry]) -> Result<u64, StoreError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(self.last_index) };
        let rise = entries.windows(2).all(|pair| pair[1].index == pair[0].index + 1);
        if !rise || first.index <= self.before.index || first.index > self.last_index + 1 {
            let (after, held) = (self.before.index, self.last_index);
            let reason =
                format!("entries {} to {} for a log that follows {after} and ends at {held}", first.index, last.index);
            return Err(StoreError::Inconsistent { reason });
        }
        Ok(last.index)
    }
}

fn unknown(group: u64) -> StoreError {
    StoreError::Inconsistent { reason: format!("group {group} is not open") }
}

fn put(batch: &mut LogBatch, group: u64, key: &[u8], value: Vec<u8>) {
    batch.put(group, key.to_vec(), value).expect("only keys with the engine's own prefix are refused");
}

fn put_beginning(batch: &mut LogBatch, group: u64, before: LogPosition, members: &ConfState) {
    put(batch, group, KEY_BEFORE, [before.index.to_le_bytes(), before.term.to_le_bytes()].concat());
    put(batch, group, KEY_MEMBERS, encode(members));
}

fn put_state(batch: &mut LogBatch, group: u64, last_index: u64, hard_state: &HardState) {
    put(batch, group, KEY_STATE, [last_index.to_le_bytes().to_vec(), encode(hard_state)].concat());
}

fn encode(message: &impl Message) -> Vec<u8> {
    message.write_to_bytes().expect("these messages have no required fields that could be missing")
}

fn add_entries(batch: &mut LogBatch, group: u64, entries: &[Entry]) -> Result<(), StoreError> {
    let added = batch.add_entries::<EntryIndex>(group, entries);
    added
        .map_err(|error| StoreError::Inconsistent { reason: format!("the entries do not fit into one write: {error}") })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn engine_config(directory: &Path, options: StoreOptions) -> Result<Config, StoreError> {
    let not_text = || StoreError::io("use", directory, io::Error::other("the path is not UTF-8"));
    Ok(Config {
        dir: directory.to_str().ok_or_else(not_text)?.to_owned(),
        // The scan has made sure that one torn record is all there is to tolerate.
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        // One thread: parts that several threads read are not always merged in the order in which they were written.
        recovery_threads: 1,
        // Off: the byte that says whether a record is compressed has no checksum.
        batch_compression_threshold: ReadableSize(0),
        target_file_size: ReadableSize(options.file_bytes),
        purge_threshold: ReadableSize(options.purge_bytes.max(options.file_bytes)),
        // Off, so that the bytes after the end of a file are never an older record.
        enable_log_recycle: false,
        ..Config::default()
    })
}

/// Lets the engine read on a thread that ends afterwards. The engine caches the last block that each thread read. The cache's key is
/// the file's number and the block's offset, without the directory. On a thread that has read another store, or an earlier opening of this
/// one, it would return that store's entries. And if it panics on what it reads, only this thread ends, not the node.
fn on_fresh_thread<T: Send>(
    directory: &Path,
    read: impl FnOnce() -> raft_engine::Result<T> + Send,
) -> Result<T, StoreError> {
    let damaged = |reason| StoreError::Damaged { place: directory.into(), reason };
    match std::thread::scope(|scope| scope.spawn(read).join()) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) if is_full(&error) => Err(StoreError::DiskFull { directory: directory.into() }),
        Ok(Err(raft_engine::Error::Io(error))) => Err(StoreError::io("open the log in", directory, error)),
        Ok(Err(error)) => Err(damaged(error.to_string())),
        Err(panic) => Err(damaged(format!("the log engine panicked: {}", panic_message(&*panic)))),
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it did not say why")
}

fn is_full(error: &raft_engine::Error) -> bool {
    match error {
        // The engine's error for "no space, not even in a new file".
        raft_engine::Error::TryAgain(_) => true,
        raft_engine::Error::Io(error) => reserve::is_full(error),
        _ => false,
    }
}

/// Checks that no other process has the log open. The engine checks this too, but only after the scan. While another process writes,
/// the scan would see a half-written record.
fn check_not_in_use(log_directory: &Path) -> Result<(), StoreError> {
    let path = log_directory.join("LOCK");
    let file = private::create_file(&path).map_err(|source| StoreError::io("create", &path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => Err(StoreError::InUse { directory: log_directory.into() }),
        Err(std::fs::TryLockError::Error(source)) => Err(StoreError::io("lock", &path, source)),
    }
}

fn sync_directory(directory: &Path) -> Result<(), StoreError> {
    File::open(directory).and_then(|open| open.sync_all()).map_err(|source| StoreError::io("sync", directory, source))
}
