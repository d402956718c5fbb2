//! A replica with its disk, as a server runs it.
//!
//! The replica says what must be durable, and the node makes it durable. A leader writes and syncs its log on a thread of its own, in
//! order, so that a turn never waits for the disk while requests arrive. A follower syncs inside its turn, because it has nothing else
//! to do. So does a node that is alone and has few requests. They do so only while the disk is quick: waking a thread and being
//! woken by it can take longer than the sync. Another thread makes snapshots. When something is durable, a thread wakes the node,
//! and its next turn tells the replica. The node decides nothing about consensus or locks.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where the replica meets threads and the disk"
)]

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use fencepost_core::KnownVersions;
use raft::eraftpb::{ConfState, Entry, Message};

use fencepost_core::{LogPosition, Nanos};

use crate::bounds::{FED_PER_TURN, FULL_DISK_WAIT, REFILL_WAIT, SLOW_DISK_FOR, SMALL_ENTRY_BYTES, SYNC_IN_TURN_MAX};
use crate::error::Stop;
use crate::log::{GROUP_BEGINS, Log};
use crate::ports::{LogWrite, Output};
use crate::replica::{Replica, Settings};
use crate::snapshot::{GroupId, make_snapshot};
use crate::store::{Identity, LogCounts, LogStore, SnapshotStore, Start, StoreError};
use crate::times::Times;

/// Called from other threads when the next turn should come soon.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Where a node keeps its log and its snapshots.
pub enum StorageLocation<'a> {
    /// In files. What was acknowledged survives a crash of the process and of the machine.
    Directory {
        /// The node's directory.
        path: &'a Path,
        /// Whether a log must be there already.
        start: Start<'a>,
    },
    /// In memory, for trials. The node forgets everything when it stops.
    Memory(Box<Log>),
}

/// A replica with its disk.
pub struct Node {
    replica: Replica,
    group: GroupId,
    disk: Disk,
    finished: Receiver<Finished>,
    finish: Sender<Finished>,
    snapshots: Arc<Snapshots>,
    counts: Arc<LogCounts>,
    times: Times,
    wake: Wake,
    is_disk_short: bool,
    /// The log entries that this node must still send to the thread that makes the snapshot.
    feeding: Option<Feeding>,
    /// The thread that makes the snapshot in progress, or made the last one.
    snapshot: Option<JoinHandle<()>>,
    /// Why the node must stop, if a message between two turns caused it. The next turn returns it.
    stop: Option<Stop>,
}

/// Where writes go.
enum Disk {
    /// Nowhere. Every write counts as durable at once.
    Memory,
    Files {
        store: Arc<LogStore>,
        work: Sender<Work>,
        thread: JoinHandle<()>,
        /// Jobs that the thread has and has not finished. Above zero, a turn does not write, so that writes keep their order.
        under_way: usize,
        /// Until when the disk counts as slow.
        slow_until: Option<Instant>,
    },
    /// The node is closed. It writes nothing.
    Closed,
}

/// The log entries that the thread that makes a snapshot still needs. Each turn sends some of them, because copying all at once would
/// hold up the turn.
struct Feeding {
    entries: Sender<Vec<Entry>>,
    next: u64,
    last: u64,
}

/// A job of the disk's thread.
enum Work {
    Write(LogWrite),
    /// The thread frees `_dropped` after the compaction.
    Compact {
        before: LogPosition,
        members: ConfState,
        _dropped: VecDeque<Entry>,
    },
}

/// A report of the disk's thread, or of the thread that makes snapshots.
enum Finished {
    /// The number of the last durable write, and how many writes were merged into it.
    Persisted(u64, usize),
    Compacted,
    SnapshotMade {
        position: LogPosition,
        state_hash: u64,
    },
    SnapshotPutOff(LogPosition),
    DiskShort(bool),
    Failed(Stop),
}

impl Node {
    /// Opens the node that is stored at a location, or begins a new one there.
    ///
    /// # Errors
    /// [`Stop`] says why the node cannot start, and what to do.
    pub fn start(settings: Settings, location: StorageLocation<'_>, wake: Wake, now: Nanos) -> Result<Node, Stop> {
        let (finish, finished) = mpsc::channel();
        let group = settings.group;
        let report = Report { finish: finish.clone(), wake: wake.clone() };
        let (replica, snapshots, counts, disk, is_disk_short) = match location {
            StorageLocation::Memory(log) => {
                let snapshots = Arc::new(Snapshots::Memory(Mutex::new(None)));
                let counts = Arc::new(LogCounts::default());
                (Replica::new(settings, *log, None, now)?, snapshots, counts, Disk::Memory, false)
            }
            StorageLocation::Directory { path, start } => {
                let identity = Identity { cluster: group.cluster, node: settings.id };
                let (store, log) = LogStore::open(path, identity, group.group, start)?;
                let files = SnapshotStore::open(&path.join("snapshots"))?;
                let newest = files.newest_in(&log);
                let bytes = newest.map(|position| files.read(position)).transpose()?.flatten();
                // A joining node and a new group have no snapshot yet.
                if bytes.is_none() && log.before() > GROUP_BEGINS {
                    let reason = format!("the log continues from a snapshot at {:?} that is missing", log.before());
                    return Err(StoreError::Damaged { place: path.join("snapshots"), reason }.into());
                }
                let replica = Replica::new(settings, log, bytes.as_deref(), now)?;
                let (is_short, counts, store) = (store.is_short(), store.counts(), Arc::new(store));
                let snapshots = Arc::new(Snapshots::Files(files));
                let keeper = Keeper {
                    store: store.clone(),
                    snapshots: snapshots.clone(),
                    group: group.group,
                    report,
                    was_short: is_short,
                    looked_at: Instant::now(),
                };
                let (work, to_do) = mpsc::channel();
                let thread = thread("fencepost-disk", move || keeper.run(&to_do));
                let disk = Disk::Files { store, work, thread, under_way: 0, slow_until: None };
                (replica, snapshots, counts, disk, is_short)
            }
        };
        let mut node = Node {
            replica,
            group,
            disk,
            finished,
            finish,
            snapshots,
            counts,
            times: Times::default(),
            wake,
            is_disk_short,
            feeding: None,
            snapshot: None,
            stop: None,
        };
        node.replica.set_disk_short(is_disk_short);
        Ok(node)
    }

    /// The replica.
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The replica, to submit to.
    pub fn replica_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }

    /// The durable snapshots, for peers and backups. Reading one waits for the disk.
    pub fn snapshots(&self) -> Arc<Snapshots> {
        self.snapshots.clone()
    }

    /// Entries, syncs and bytes of the log since the process began.
    pub fn log_counts(&self) -> &LogCounts {
        &self.counts
    }

    /// How long commits and steps take.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// Whether the disk is nearly full. Then operations that make the state larger are refused.
    pub fn is_disk_short(&self) -> bool {
        self.is_disk_short
    }

    /// Takes a message of a peer. If the node must stop because of it, the next turn returns the error.
    pub fn handle_message(&mut self, message: Message) {
        let handled = self.replica.handle_message(message);
        self.stop_for(handled);
    }

    /// Takes a message that came with the bytes of a snapshot. If the node must stop because of it, the next turn returns the error.
    pub fn handle_snapshot(&mut self, message: Message, bytes: Arc<[u8]>) {
        let handled = self.replica.handle_snapshot(message, bytes);
        self.stop_for(handled);
    }

    fn stop_for(&mut self, handled: Result<(), Stop>) {
        if let Err(stop) = handled {
            self.stop.get_or_insert(stop);
        }
    }

    /// The latest instant for the next turn.
    pub fn next_turn(&self) -> Nanos {
        self.replica.next_turn()
    }

    /// One turn. Writes, compactions and snapshots are handed to the disk. The caller must do the returned outputs.
    ///
    /// # Errors
    /// [`Stop`] if the node must not continue.
    pub fn turn(&mut self, now: Nanos) -> Result<Vec<Output>, Stop> {
        while let Ok(finished) = self.finished.try_recv() {
            let done = match &finished {
                Finished::Persisted(_, writes) => *writes,
                Finished::Compacted => 1,
                _ => 0,
            };
            if let Disk::Files { under_way, .. } = &mut self.disk {
                *under_way -= done;
            }
            match finished {
                Finished::Persisted(number, _) => self.replica.handle_persisted(number),
                Finished::Compacted => {}
                Finished::SnapshotMade { position, state_hash } => {
                    self.replica.handle_snapshot_made(position, state_hash)?;
                }
                Finished::SnapshotPutOff(position) => self.replica.handle_snapshot_put_off(position),
                Finished::DiskShort(is_short) => {
                    self.is_disk_short = is_short;
                    self.replica.set_disk_short(is_short);
                }
                Finished::Failed(stop) => return Err(stop),
            }
        }
        if let Some(stop) = self.stop.take() {
            return Err(stop);
        }
        let mut rest = Vec::new();
        loop {
            let mut is_durable = false;
            for output in self.step(now)? {
                match output {
                    Output::Write(write) => {
                        if !write.entries.is_empty() {
                            self.times.gave_out(&write, &self.replica, Instant::now());
                        }
                        is_durable |= self.write(write)?;
                    }
                    Output::Compact { before, members, dropped } => {
                        self.give(Work::Compact { before, members, _dropped: dropped });
                    }
                    Output::MakeSnapshot { through, first_voters } => self.make_snapshot(through, first_voters),
                    other => rest.push(other),
                }
            }
            if !is_durable {
                break;
            }
        }
        self.feed_snapshot();
        Ok(rest)
    }

    /// One turn of the replica, with its time taken.
    fn step(&mut self, now: Nanos) -> Result<Vec<Output>, Stop> {
        let (began, applied_before) = (Instant::now(), self.replica.applied());
        let outputs = self.replica.turn(now)?;
        if self.replica.applied() != applied_before {
            self.times.applied(&self.replica, began, Instant::now());
        }
        Ok(outputs)
    }

    /// Writes inside the turn and tells the replica, or hands the write to the disk's thread. Returns whether the write is durable
    /// already.
    fn write(&mut self, write: LogWrite) -> Result<bool, Stop> {
        let in_turn = self.may_write_in_turn(&write);
        match &mut self.disk {
            Disk::Memory => {
                self.counts.appended(write.entries.len());
                if let Some((info, bytes)) = write.snapshot {
                    self.snapshots.write(info.position, bytes)?;
                }
                self.replica.handle_persisted(write.number);
                return Ok(true);
            }
            Disk::Files { store, under_way: 0, slow_until, .. } if in_turn => {
                let began = Instant::now();
                if slow_until.is_none_or(|until| began >= until) {
                    match store.write(self.group.group, &write) {
                        Ok(()) => {
                            *slow_until = (began.elapsed() > SYNC_IN_TURN_MAX).then(|| began + SLOW_DISK_FOR);
                            self.replica.handle_persisted(write.number);
                            return Ok(true);
                        }
                        // Nothing was written. The thread retries until there is room.
                        Err(StoreError::DiskFull { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Disk::Files { .. } | Disk::Closed => {}
        }
        self.give(Work::Write(write));
        Ok(false)
    }

    fn may_write_in_turn(&self, write: &LogWrite) -> bool {
        if write.snapshot.is_some() || self.is_disk_short {
            return false;
        }
        let needs_sync = write.must_sync || !write.entries.is_empty();
        let is_small = || write.entries.iter().map(|entry| entry.data.len()).sum::<usize>() <= SMALL_ENTRY_BYTES;
        !self.replica.serves() || !needs_sync || (self.replica.is_alone() && is_small())
    }

    fn give(&mut self, work: Work) {
        if let Disk::Files { work: disk, under_way, .. } = &mut self.disk {
            *under_way += 1;
            // If the thread has ended, it has reported why, and the next turn reads the report.
            let _ = disk.send(work);
        }
    }

    /// Waits until the disk's thread has finished its jobs, gives up a snapshot in progress, and closes log and snapshots. Then another
    /// process may open them. A closed node makes nothing durable, so it must not be turned again.
    pub fn close(&mut self) {
        self.feeding = None;
        let disk = match std::mem::replace(&mut self.disk, Disk::Closed) {
            Disk::Files { thread, .. } => Some(thread),
            Disk::Memory | Disk::Closed => None,
        };
        for thread in [self.snapshot.take(), disk].into_iter().flatten() {
            // A panic of the thread does not matter here: the node is stopping.
            let _ = thread.join();
        }
    }

    fn make_snapshot(&mut self, through: LogPosition, first_voters: Vec<u64>) {
        let (group, snapshots, previous) = (self.group, self.snapshots.clone(), self.replica.newest_snapshot());
        let known = self.replica.known();
        let (entries, fed) = mpsc::channel();
        let next = previous.map_or(GROUP_BEGINS, |position| position).index + 1;
        self.feeding = Some(Feeding { entries, next, last: through.index });
        let report = Report { finish: self.finish.clone(), wake: self.wake.clone() };
        self.snapshot = Some(thread("fencepost-snapshot", move || {
            let made = snapshots.make(group, known, previous, &first_voters, fed.into_iter().flatten(), through);
            report.say(match made {
                Ok(state_hash) => Finished::SnapshotMade { position: through, state_hash },
                // The log is not compacted. The next snapshot may find room.
                Err(Stop::Disk(StoreError::DiskFull { .. })) => Finished::SnapshotPutOff(through),
                // A peer's snapshot replaced the log meanwhile.
                Err(Stop::SnapshotIncomplete { .. }) => Finished::SnapshotPutOff(through),
                Err(stop) => Finished::Failed(stop),
            });
        }));
    }

    fn feed_snapshot(&mut self) {
        let Some(feeding) = &mut self.feeding else { return };
        let wanted = (feeding.last + 1 - feeding.next).min(FED_PER_TURN as u64);
        let entries: Vec<Entry> = self.replica.entries_from(feeding.next).take(wanted as usize).cloned().collect();
        let is_there = entries.first().is_some_and(|entry| entry.index == feeding.next);
        feeding.next += wanted;
        // Stop if the log no longer has the entries, the thread has ended, or it has all that it needs.
        if !is_there || feeding.entries.send(entries).is_err() || feeding.next > feeding.last {
            self.feeding = None;
        } else {
            (self.wake)();
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).expect("the system has room for another thread")
}

impl Drop for Node {
    fn drop(&mut self) {
        self.close();
    }
}

/// The durable snapshots of a node.
pub enum Snapshots {
    /// In files.
    Files(SnapshotStore),
    /// The newest one, in memory.
    Memory(Mutex<Option<(LogPosition, Arc<[u8]>)>>),
}

impl Snapshots {
    /// The bytes of a snapshot.
    ///
    /// # Errors
    /// [`Stop`] if it cannot be read, or was deleted.
    pub fn read(&self, position: LogPosition) -> Result<Arc<[u8]>, Stop> {
        let found = match self {
            Snapshots::Files(files) => files.read(position)?.map(Arc::from),
            Snapshots::Memory(newest) => {
                let newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
                newest.as_ref().filter(|(at, _)| *at == position).map(|(_, bytes)| bytes.clone())
            }
        };
        found.ok_or(Stop::SnapshotGone { position })
    }

    fn write(&self, position: LogPosition, bytes: Arc<[u8]>) -> Result<(), StoreError> {
        match self {
            Snapshots::Files(files) => files.write(position, &bytes),
            Snapshots::Memory(newest) => {
                *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((position, bytes));
                Ok(())
            }
        }
    }

    /// Makes a snapshot from the previous one and the entries since, makes it durable, and returns its state hash.
    fn make(
        &self,
        group: GroupId,
        known: KnownVersions,
        previous: Option<LogPosition>,
        first_voters: &[u64],
        entries: impl Iterator<Item = Entry>,
        through: LogPosition,
    ) -> Result<u64, Stop> {
        let previous = previous.map(|position| self.read(position)).transpose()?;
        let (bytes, state_hash) = make_snapshot(group, previous.as_deref(), first_voters, entries, through, known)?;
        self.write(through, bytes.into())?;
        Ok(state_hash)
    }
}

/// Sends reports from another thread to the node, and wakes it.
struct Report {
    finish: Sender<Finished>,
    wake: Wake,
}

impl Report {
    fn say(&self, finished: Finished) {
        // A dropped node needs no report.
        let _ = self.finish.send(finished);
        (self.wake)();
    }
}

/// Merges a write with the writes that wait behind it. Returns the merged write, the number of writes in it, and the next job if it
/// could not be merged.
fn together(mut write: LogWrite, to_do: &Receiver<Work>) -> (LogWrite, usize, Option<Work>) {
    let mut writes = 1;
    while let Ok(work) = to_do.try_recv() {
        match work {
            Work::Write(next) => match write.take_in(next) {
                Ok(()) => writes += 1,
                Err(next) => return (write, writes, Some(Work::Write(*next))),
            },
            other => return (write, writes, Some(other)),
        }
    }
    (write, writes, None)
}

/// The disk's thread: does its jobs in order, and reports what is durable.
struct Keeper {
    store: Arc<LogStore>,
    snapshots: Arc<Snapshots>,
    group: u64,
    report: Report,
    was_short: bool,
    /// When it last tried to fill the reserve.
    looked_at: Instant,
}

impl Keeper {
    fn run(mut self, to_do: &Receiver<Work>) {
        let mut next = None;
        while let Ok(work) = next.take().map_or_else(|| self.wait_for_work(to_do), |work| Ok(Some(work))) {
            // Writes that arrived while the disk was busy become one write with one sync.
            let (work, writes) = match work {
                Some(Work::Write(write)) => {
                    let (write, writes, other) = together(write, to_do);
                    next = other;
                    (Some(Work::Write(write)), writes)
                }
                work => (work, 1),
            };
            if let Err(error) = self.carry_out(work.as_ref(), writes) {
                // Never continue after a failure: what a disk answers after a failed sync is not reliable.
                self.report.say(Finished::Failed(error.into()));
                return;
            }
        }
    }

    /// The next job. `Ok(None)` if it is time to check for free disk space instead.
    fn wait_for_work(&self, to_do: &Receiver<Work>) -> Result<Option<Work>, RecvTimeoutError> {
        if !self.was_short {
            return to_do.recv().map(Some).map_err(|_| RecvTimeoutError::Disconnected);
        }
        match to_do.recv_timeout(REFILL_WAIT.saturating_sub(self.looked_at.elapsed())) {
            Err(RecvTimeoutError::Timeout) => Ok(None),
            other => other.map(Some),
        }
    }

    fn carry_out(&mut self, work: Option<&Work>, writes: usize) -> Result<(), StoreError> {
        match work {
            None => {}
            Some(Work::Write(write)) => {
                if let Some((info, bytes)) = &write.snapshot {
                    self.patiently(|keeper| keeper.snapshots.write(info.position, bytes.clone()))?;
                }
                self.patiently(|keeper| keeper.store.write(keeper.group, write))?;
                if let Some((info, _)) = &write.snapshot {
                    self.delete_snapshots_before(info.position)?;
                }
                self.report.say(Finished::Persisted(write.number, writes));
            }
            Some(Work::Compact { before, members, .. }) => {
                self.patiently(|keeper| keeper.store.compact(keeper.group, *before, members))?;
                if let Snapshots::Files(files) = &*self.snapshots
                    && let Some(newest) = files.newest()
                {
                    self.delete_snapshots_before(newest)?;
                }
                self.report.say(Finished::Compacted);
            }
        }
        // A node that is short of room takes no new locks, so its log hardly grows, and a compaction that makes room may never come.
        // Other programs also make room, and they do not tell us. So look from time to time.
        let compacted = matches!(work, Some(Work::Compact { .. }));
        if self.was_short && (compacted || self.looked_at.elapsed() >= REFILL_WAIT) {
            self.store.refill_reserve()?;
            self.looked_at = Instant::now();
        }
        let is_short = self.store.is_short();
        if std::mem::replace(&mut self.was_short, is_short) != is_short {
            self.report.say(Finished::DiskShort(is_short));
        }
        Ok(())
    }

    /// Retries while the disk is full: nothing was written, and there may be room later.
    fn patiently(&self, attempt: impl Fn(&Keeper) -> Result<(), StoreError>) -> Result<(), StoreError> {
        loop {
            match attempt(self) {
                Err(StoreError::DiskFull { .. }) => std::thread::sleep(FULL_DISK_WAIT),
                other => return other,
            }
        }
    }

    fn delete_snapshots_before(&self, position: LogPosition) -> Result<(), StoreError> {
        match &*self.snapshots {
            Snapshots::Files(files) => files.delete_older(position),
            Snapshots::Memory(_) => Ok(()),
        }
    }
}
