//! A node's log on disk, in TiKV's `raft-engine`: the only file of the replica, with those below it, that touches the
//! operating system.
//!
//! It promises three things. What [`LogStore::write`] has acknowledged is there after a crash, in order and without gaps.
//! What is not as it was written is refused at [`LogStore::open`] with what to do, never served. After the first failed
//! write or sync nothing is acknowledged any more. It decides nothing about consensus, and it never retries, but for
//! what finds a full disk and still fits into the reserve.
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

/// The engine's group in which the store keeps what belongs to no group of the cluster.
const STORE_GROUP: u64 = u64::MAX;
/// In [`STORE_GROUP`]: the number of the write. It is the last item of every record: the scan finds it there.
const KEY_WRITES: &[u8] = b"writes";
/// In each group, and in every record of it: the index of the last entry (8 bytes), then vote, term and commit.
const KEY_STATE: &[u8] = b"state";
/// In each group: the position that the entries follow.
const KEY_BEFORE: &[u8] = b"before";
/// In each group: the members as of that position.
const KEY_MEMBERS: &[u8] = b"members";

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster, drawn when it was founded or restored.
    pub cluster: u128,
    /// The node within it. Never given out twice.
    pub node: u64,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "node {} of cluster {:032x}", self.node, self.cluster)
    }
}

/// What is expected to be there. The caller must know, because an empty directory looks the same on a new node and on one
/// that was wiped, and a wiped node must not vote under its old id.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a> {
    /// Nothing: the group begins here, with this log.
    New(&'a Log),
    /// The log of an earlier run.
    Again,
}

/// Whose log is in a directory, if one was begun there.
///
/// # Errors
/// [`StoreError`] says what to do.
pub fn read_identity(directory: &Path) -> Result<Option<Identity>, StoreError> {
    identity::read(&PrivateFiles, &directory.join("IDENTITY"))
}

/// How large the log's files may get, and what is kept back.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// A new file is begun when one is larger than this.
    pub file_bytes: u64,
    /// Files of compacted entries are deleted when all files together are larger than this.
    pub purge_bytes: u64,
    /// Kept back for when the disk is full. With none there is no such file.
    pub reserve_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { file_bytes: LOG_FILE_BYTES, purge_bytes: PURGE_BYTES, reserve_bytes: RESERVE_BYTES }
    }
}

/// Says where the engine finds the index of an entry.
struct EntryIndex;

impl MessageExt for EntryIndex {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

/// What the store knows of a group without asking the disk.
struct Group {
    /// The newest that was handed in. The commit index in it may be newer than on disk.
    hard_state: HardState,
    before: LogPosition,
    last_index: u64,
}

struct Written<F: FileSystem> {
    groups: BTreeMap<u64, Group>,
    /// How many records there are since the directory was made.
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
    /// Opens the log in a directory, or begins it, and gives back what consensus goes on from. A write that was torn by a
    /// crash, and so never acknowledged, is cut off.
    ///
    /// # Errors
    /// [`StoreError`] says what to do. A log that is damaged, or somebody else's, is left as it is.
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
            let reason = format!("write {marked} was acknowledged, and the log ends with write {writes}");
            StoreError::Damaged { place: log_directory.clone(), reason }
        };
        let scanned = scan::check_directory(file_system.as_ref(), &log_directory)?;
        if let Some(writes) = scanned.filter(|writes| *writes < marked) {
            return Err(lost(writes));
        }

        // On a full disk the node starts without it, and is short.
        reserve.fill().map_err(|source| StoreError::io("allocate", &reserve_path, source))?;
        let config = engine_config(&log_directory, options)?;
        let engine = on_fresh_thread(&log_directory, || Engine::open_with_file_system(config, guard))?;
        let writes = engine.get(STORE_GROUP, KEY_WRITES).map_or(0, |bytes| number(&bytes));
        // All numbered records may have been rewritten and deleted; then the engine alone knows.
        if marked > writes || scanned.is_some_and(|scanned| scanned != writes) {
            return Err(lost(writes));
        }
        // The engine makes its first files without syncing the directory that names them.
        sync_directory(&log_directory)?;
        let written = Mutex::new(Written { groups: BTreeMap::new(), writes, mark });
        let counts = Arc::default();
        let store = LogStore { directory: log_directory.clone(), engine, failure, reserve, counts, written };
        let log = store.open_group(group, start)?;
        if !identity_is_there {
            // Last, so that a directory without it was never acknowledged to anybody and can be begun again.
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
            // What a beginning that was cut short by a crash has left is begun again.
            (Start::New(log), _) => {
                self.begin(group, log)?;
                Ok(log.clone())
            }
        }
    }

    /// Makes a write of the replica durable. A commit index that comes alone is kept in memory and written with whatever
    /// comes next: a record is then always synced before the next one begins, so only the last can be torn, and consensus
    /// learns the commit index again from its peers.
    ///
    /// # Errors
    /// [`StoreError::Failed`]: stop. [`StoreError::DiskFull`]: the reserve is used up, too; the same write may be tried
    /// again.
    pub fn write(&self, group: u64, write: &LogWrite) -> Result<(), StoreError> {
        // The snapshot's own bytes are durable before this is called; a crash in between leaves the older log.
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

    /// Drops the entries up to a position, once a snapshot holds what they did; `members` are those of that position.
    /// Files that hold nothing else any more are deleted when there are enough of them.
    ///
    /// # Errors
    /// As [`LogStore::write`].
    pub fn compact(&self, group: u64, before: LogPosition, members: &ConfState) -> Result<(), StoreError> {
        let mut written = self.lock();
        self.check_sound()?;
        let held = written.groups.get(&group).ok_or_else(|| unknown(group))?;
        if before.index < held.before.index || before.index > held.last_index {
            let (from, to) = (held.before.index, held.last_index);
            let reason = format!("compaction up to {}, and the log has {from} to {to}", before.index);
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

    /// Replaces the whole log of a group by the position of a snapshot that came from a peer. No entry is left.
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
        // Not `Compact`: the engine forgets those when it deletes files, and the entries behind would come back.
        batch.add_command(group, Command::Clean);
        put_beginning(&mut batch, group, before, members);
        put_state(&mut batch, group, before.index, &hard_state);
        self.commit(&mut written, batch)?;
        written.groups.insert(group, Group { hard_state, before, last_index: before.index });
        self.purge()
    }

    /// Whether the disk was full and the room that was kept back is in use, or could not be allocated at the start. Writes
    /// go on; whoever asks for new locks should be refused until [`LogStore::refill_reserve`] says otherwise.
    pub fn is_short(&self) -> bool {
        self.reserve.is_short()
    }

    /// What the log has cost so far.
    pub fn counts(&self) -> Arc<LogCounts> {
        self.counts.clone()
    }

    /// Keeps room back again, if there is enough; whether the reserve is whole now. To be called after a compaction, and
    /// now and then, while the store is short.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it failed for another reason than a full disk. The log is not touched.
    pub fn refill_reserve(&self) -> Result<bool, StoreError> {
        // A write that finds no room must not meet a reserve that is half filled.
        let _written = self.lock();
        self.reserve.fill().map_err(|source| StoreError::io("allocate the reserve beside", &self.directory, source))
    }

    fn begin(&self, group: u64, log: &Log) -> Result<(), StoreError> {
        if group == STORE_GROUP {
            return Err(StoreError::Inconsistent { reason: format!("group {group} is the store's own") });
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
        let mut write = || self.engine.write(&mut batch, true).map(|length| bytes = length);
        self.settle(catch_unwind(AssertUnwindSafe(&mut write)))?;
        self.counts.synced(bytes);
        written.writes = number;
        if let Err(error) = written.mark.write(number) {
            self.failure.note(format!("the mark beside the log cannot be written: {error}"));
        }
        self.check_sound()
    }

    /// Deletes files that are no longer needed.
    fn purge(&self) -> Result<(), StoreError> {
        // The engine reads entries while it does, so it is kept from its cache as when the log is opened.
        let purged = std::thread::scope(|scope| scope.spawn(|| self.engine.purge_expired_files().map(|_| ())).join());
        if let Ok(Err(error)) = &purged
            && is_full(error)
        {
            // It has forgotten which logs were dropped, and would bring them back by deleting files later. In the files,
            // which are all still there, it finds that again.
            self.failure
                .note("the disk is full, and nothing is left of the reserve for deleting old files: make room".into());
        }
        self.settle(purged)
    }

    /// Decides what an answer of the engine means.
    fn settle(&self, answer: std::thread::Result<raft_engine::Result<()>>) -> Result<(), StoreError> {
        match answer {
            Ok(Ok(())) => {}
            // The engine has cut off what it wrote of the record, and neither it nor the disk holds any of it.
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
            return Err(damaged("what its log follows, its vote or its members are missing".into()));
        };
        let (Some((index, term)), Some((last, hard_state))) = (before.split_at_checked(8), state.split_at_checked(8))
        else {
            return Err(damaged("what its log follows or its vote is cut short".into()));
        };
        let hard_state = HardState::parse_from_bytes(hard_state)?;
        let members = ConfState::parse_from_bytes(&members)?;
        let before = LogPosition { index: number(index), term: number(term) };
        // The engine may give back entries on both sides that are long gone. It forgets a compaction with the file that it
        // stands in; and it applies a compaction to each older part of the log by itself, so that entries behind it come
        // back which had been overwritten by entries that were compacted.
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
            return Err(damaged(format!("the entries end at {}, not at {last}", position.index)));
        }
        if hard_state.commit > last {
            return Err(damaged(format!("entry {} is committed, and the log ends at {last}", hard_state.commit)));
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
        // Nothing here panics between two changes that belong together.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    fn of(log: &Log) -> Group {
        Group { hard_state: log.hard_state.clone(), before: log.before, last_index: log.last().index }
    }

    /// The last index after these entries. The engine would write a gap and panic, then and at each start.
    fn check_follows(&self, entries: &[Entry]) -> Result<u64, StoreError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(self.last_index) };
        let rise = entries.windows(2).all(|pair| pair[1].index == pair[0].index + 1);
        if !rise || first.index <= self.before.index || first.index > self.last_index + 1 {
            let (after, held) = (self.before.index, self.last_index);
            let reason =
                format!("entries {} to {} on a log that follows {after} and ends at {held}", first.index, last.index);
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
        // The scan has made sure that there is nothing to tolerate but one torn record.
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        // One part, in order: parts that are read side by side are not always put together as they were written.
        recovery_threads: 1,
        // Off: whether a record is compressed stands in a byte without a checksum.
        batch_compression_threshold: ReadableSize(0),
        target_file_size: ReadableSize(options.file_bytes),
        purge_threshold: ReadableSize(options.purge_bytes.max(options.file_bytes)),
        // Off: what stands behind the end of a file is then never an older record.
        enable_log_recycle: false,
        ..Config::default()
    })
}

/// Lets the engine read on a thread that ends afterwards. The engine keeps the last block that it read for each thread
/// under the block's place in its file, without saying in which directory: on the thread of another store, or of one that
/// was opened before, it would answer with that one's entries. And where it panics on what it reads, a thread ends instead
/// of the node.
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
        // The engine's word for "no space, also not in a new file".
        raft_engine::Error::TryAgain(_) => true,
        raft_engine::Error::Io(error) => reserve::is_full(error),
        _ => false,
    }
}

/// The engine locks the directory as well, but only after it has been read, and while another process writes there the
/// scan would see its last record half written.
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
