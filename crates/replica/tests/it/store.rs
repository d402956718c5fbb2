//! The log on disk: what was acknowledged is there after a crash, and damaged data is never served.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "these tests are about files")]

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::disk::{CRASHES, Crash, Directory, Disk};
use fencepost_core::LogPosition;
use fencepost_replica::store::{Identity, LogStore, Start, StoreError, StoreOptions};
use fencepost_replica::{Log, LogWrite};
use raft::Storage;
use raft::eraftpb::{ConfState, Entry, HardState};

const GROUP: u64 = 7;
const US: Identity = Identity { cluster: 0xfeed_beef, node: 3 };
/// Small, so that a test sees several files.
const SMALL: StoreOptions = StoreOptions { file_bytes: 1024, purge_bytes: 4096, reserve_bytes: 0 };

/// The content of a log, as plain fields.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    hard_state: HardState,
    members: ConfState,
    before: LogPosition,
    entries: Vec<Entry>,
}

impl Held {
    fn of(log: &Log) -> Held {
        let state = log.initial_state().expect("a log knows its state");
        let before = log.first_index().expect("a log knows its beginning") - 1;
        let entries = log.entries().cloned().collect::<Vec<_>>();
        let before = LogPosition { index: before, term: log.term(before).expect("a log knows its beginning") };
        Held { hard_state: state.hard_state, members: state.conf_state, before, entries }
    }

    fn last(&self) -> LogPosition {
        self.entries.last().map_or(self.before, |entry| LogPosition { index: entry.index, term: entry.term })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(LogWrite),
    Compact(LogPosition, ConfState),
    RestartAfter(LogPosition, ConfState),
}

impl Step {
    fn run<F: raft_engine::env::FileSystem>(&self, store: &LogStore<F>) -> Result<(), StoreError> {
        match self {
            Step::Write(write) => store.write(GROUP, write),
            Step::Compact(before, members) => store.compact(GROUP, *before, members),
            Step::RestartAfter(before, members) => store.restart_after(GROUP, *before, members),
        }
    }
}

/// A log in memory, and random steps for it. `held` is what the disk must hold. `latest` has the newest commit index, which need not
/// be on disk.
struct Model {
    held: Held,
    latest: HardState,
    random: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let held = Held::of(&beginning());
        Model { latest: held.hard_state.clone(), held, random: seed * 2 + 1 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn next(&mut self) -> Step {
        let (before, last) = (self.held.before, self.held.last());
        match self.draw(12) {
            0 if last.index > before.index => {
                let keep = self.draw(last.index - before.index) as usize;
                let entry = &self.held.entries[keep];
                let position = LogPosition { index: entry.index, term: entry.term };
                let members = ConfState { voters: vec![1, 2, position.index], ..ConfState::default() };
                self.held.entries.drain(..=keep);
                (self.held.before, self.held.members) = (position, members.clone());
                self.held.hard_state = self.latest.clone();
                Step::Compact(position, members)
            }
            1 if self.draw(3) == 0 => {
                let position = LogPosition { index: last.index + self.draw(4), term: self.latest.term };
                let members = ConfState { voters: vec![position.index], ..ConfState::default() };
                self.latest.commit = self.latest.commit.max(position.index);
                let hard_state = self.latest.clone();
                self.held = Held { hard_state, members: members.clone(), before: position, entries: Vec::new() };
                Step::RestartAfter(position, members)
            }
            2 => {
                self.latest.commit = last.index;
                Step::Write(write(Some(self.latest.clone()), Vec::new(), false))
            }
            3 => {
                self.latest.term += 1;
                self.latest.vote = self.draw(5);
                self.held.hard_state = self.latest.clone();
                Step::Write(write(Some(self.latest.clone()), Vec::new(), true))
            }
            kind => {
                // Sometimes a new leader overwrites entries that are not committed.
                let floor = before.index.max(self.latest.commit);
                let overwrites = kind == 4 && last.index > floor;
                let first = if overwrites { floor + 1 + self.draw(last.index - floor) } else { last.index + 1 };
                self.latest.term += u64::from(overwrites);
                let term = self.latest.term;
                let entries: Vec<Entry> =
                    (first..=first + self.draw(4)).map(|index| entry(index, term, self.draw(1000))).collect();
                self.held.entries.retain(|entry| entry.index < first);
                self.held.entries.extend(entries.iter().cloned());
                self.held.hard_state = self.latest.clone();
                Step::Write(write(Some(self.latest.clone()), entries, true))
            }
        }
    }
}

fn beginning() -> Log {
    Log::new(&[1, 2, 3])
}

fn entry(index: u64, term: u64, content: u64) -> Entry {
    let data = format!("content {content} of entry {index}").into_bytes();
    Entry { index, term, data: data.into(), ..Entry::default() }
}

fn write(hard_state: Option<HardState>, entries: Vec<Entry>, must_sync: bool) -> LogWrite {
    LogWrite { snapshot: None, number: 0, hard_state, entries, must_sync }
}

fn append(indexes: std::ops::RangeInclusive<u64>) -> LogWrite {
    write(None, indexes.map(|index| entry(index, 1, 0)).collect(), true)
}

fn open(disk: Arc<Disk>, directory: &Path, start: Start<'_>) -> Result<(LogStore<Disk>, Held), StoreError> {
    let (store, log) = LogStore::open_on(disk, directory, US, GROUP, start, SMALL)?;
    let held = Held::of(&log);
    Ok((store, held))
}

fn open_again(directory: &Path) -> Result<(LogStore<Disk>, Held), StoreError> {
    open(Disk::new(), directory, Start::Again)
}

#[track_caller]
fn refused<T>(result: Result<T, StoreError>) -> StoreError {
    match result {
        Ok(_) => panic!("it must be refused"),
        Err(error) => error,
    }
}

#[test]
fn random_writes_are_there_again_after_each_reopening() {
    let mut reopened = 0;
    for seed in 0..6 {
        let directory = Directory::new("round-trip");
        let mut model = Model::new(seed);
        let (mut store, held) = open(Disk::new(), &directory.0, Start::New(&beginning())).expect("an empty directory");
        assert_eq!(held, model.held);
        for round in 0..60 {
            let step = model.next();
            step.run(&store).unwrap_or_else(|error| panic!("seed {seed} round {round}, {step:?}: {error}"));
            drop(store);
            let (again, held) = open_again(&directory.0).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(held, model.held, "seed {seed} round {round} after {step:?}");
            // A commit index that was not written is lost, so the model forgets it, too.
            model.latest = model.held.hard_state.clone();
            store = again;
            reopened += 1;
        }
    }
    println!("reopened {reopened} times");
}

#[test]
fn long_logs_are_purged_and_read_back_complete() {
    let directory = Directory::new("purge");
    let mut model = Model::new(99);
    let (mut store, _) = open(Disk::new(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    let mut files_max = 0;
    for round in 0..3000 {
        model.next().run(&store).unwrap_or_else(|error| panic!("round {round}: {error}"));
        if round % 100 == 0 {
            files_max = files_max.max(directory.files().len());
            drop(store);
            let (again, held) = open_again(&directory.0).unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_eq!(held, model.held, "round {round}");
            model.latest = model.held.hard_state.clone();
            store = again;
        }
    }
    println!("at most {files_max} files of {} bytes after 3000 steps", SMALL.file_bytes);
    assert!(files_max < 60, "{files_max} files: nothing was purged");
}

#[test]
fn what_was_acknowledged_survives_a_crash_at_every_step() {
    let (mut points, mut crashes, mut ahead) = (0, 0, 0);
    for seed in 5..6 {
        let directory = Directory::new("dry-run");
        let disk = Disk::new();
        assert_eq!(run_until_crash(&disk, &directory.0, seed), (CRASH_STEPS, true));
        let mut model = Model::new(seed);
        let mut states = vec![model.held.clone()];
        states.extend((0..CRASH_STEPS).map(|_| {
            model.next();
            model.held.clone()
        }));
        for point in 1..=disk.steps() {
            for crash in CRASHES {
                ahead += usize::from(crash_and_check(seed, point, crash, &states));
                crashes += 1;
            }
            points += 1;
        }
    }
    println!("{crashes} crashes at {points} steps; in {ahead} the unacknowledged write was there");
}

const CRASH_STEPS: usize = 40;

/// Runs steps until the disk crashes. Returns the number of acknowledged steps, and whether the store was opened.
fn run_until_crash(disk: &Arc<Disk>, directory: &Path, seed: u64) -> (usize, bool) {
    let mut model = Model::new(seed);
    let Ok((store, _)) = open(disk.clone(), directory, Start::New(&beginning())) else { return (0, false) };
    ((0..CRASH_STEPS).take_while(|_| model.next().run(&store).is_ok()).count(), true)
}

/// Crashes, crashes again during the next starts, and then checks the log. Returns whether the unacknowledged write was there.
fn crash_and_check(seed: u64, point: u64, crash: Crash, states: &[Held]) -> bool {
    let directory = Directory::new("crash");
    let disk = Disk::crashing_at(point);
    let (done, was_open) = run_until_crash(&disk, &directory.0, seed);
    disk.settle(crash);
    let what = format!("seed {seed}, crash {crash:?} at step {point} after {done} writes");
    let identity_is_there = directory.0.join("IDENTITY").exists();
    assert!(identity_is_there || !was_open, "{what}: the identity is gone");
    let new = beginning();
    let start = if identity_is_there { Start::Again } else { Start::New(&new) };
    for second in (1..4).filter(|_| identity_is_there) {
        let disk = Disk::crashing_at(second);
        drop(open(disk.clone(), &directory.0, start));
        disk.settle(crash);
    }
    let (store, held) = open(Disk::new(), &directory.0, start).unwrap_or_else(|error| panic!("{what}: {error}"));
    // The write during the crash may be there or not: it was not acknowledged.
    assert!(held == states[done] || Some(&held) == states.get(done + 1), "{what}: {held:?}");
    let after = held.last().index + 1;
    let mut more = append(after..=after);
    more.entries[0].term = held.hard_state.term.max(held.last().term);
    store.write(GROUP, &more).expect("a store that was opened can be written");
    held != states[done]
}

/// What opening found in a log whose files were damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Same,
    LastRecordCut,
    MoreCut,
    Refused,
}

/// A directory with a few records in several files, and the content of the log after each record.
fn recorded() -> (Directory, Vec<Held>) {
    let directory = Directory::new("recorded");
    let (store, held) = open(Disk::new(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    let mut states = vec![held];
    for first in (2..30).step_by(4) {
        store.write(GROUP, &append(first..=first + 3)).expect("a sound disk");
        let mut held = states[states.len() - 1].clone();
        held.entries.extend((first..=first + 3).map(|index| entry(index, 1, 0)));
        states.push(held);
    }
    drop(store);
    (directory, states)
}

/// Whether a log file has no records.
fn is_empty(bytes: &[u8]) -> bool {
    bytes.len() <= 69
}

fn outcome(directory: &Directory, states: &[Held], what: &str) -> Outcome {
    let opened = catch_unwind(AssertUnwindSafe(|| open_again(&directory.0).map(|(_, held)| held)));
    match opened.unwrap_or_else(|_| panic!("{what}: opening panicked")) {
        Ok(held) => match states.iter().rev().position(|state| *state == held) {
            Some(0) => Outcome::Same,
            Some(1) => Outcome::LastRecordCut,
            Some(_) => Outcome::MoreCut,
            None => panic!("{what}: the log never had this content: {held:?}"),
        },
        Err(StoreError::Damaged { .. } | StoreError::NotThere { .. } | StoreError::NewerFormat { .. }) => {
            Outcome::Refused
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let (directory, states) = recorded();
    let files = directory.files();
    let newest = files.keys().rfind(|path| path.to_string_lossy().ends_with(".raftlog")).expect("there is a log");
    for marked in [true, false] {
        let mut outcomes = BTreeMap::new();
        for (path, bytes) in files.iter().filter(|(path, _)| marked || !path.ends_with("MARK")) {
            for at in 0..bytes.len() {
                let copy = directory.copy();
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(copy.0.join(path), flipped).expect("a file can be written");
                if !marked {
                    fs::remove_file(copy.0.join("MARK")).expect("there was a mark");
                }
                let what = format!("byte {at} of {}, marked {marked}", path.display());
                let outcome = outcome(&copy, &states, &what);
                match outcome {
                    // An unreadable mark counts as none, and the file of rewritten records is empty here.
                    Outcome::Same => assert!(path.ends_with("MARK") || is_empty(bytes), "{what}: not found"),
                    Outcome::LastRecordCut => assert!(!marked && path == newest, "{what}: cut"),
                    Outcome::MoreCut => panic!("{what}: too much was cut"),
                    Outcome::Refused => {}
                }
                *outcomes.entry(outcome).or_insert(0) += 1;
            }
        }
        println!("one bit flipped, mark {}: {outcomes:?}", if marked { "there" } else { "lost" });
    }
}

#[test]
fn a_truncated_file_is_found_or_only_the_end_of_the_log_is_lost() {
    let (directory, states) = recorded();
    let files = directory.files();
    let log_files = || files.iter().filter(|(path, _)| path.starts_with("log"));
    let newest = log_files().map(|(path, _)| path).rfind(|path| path.to_string_lossy().ends_with(".raftlog"));
    for marked in [true, false] {
        let mut outcomes = BTreeMap::new();
        for (path, bytes) in log_files() {
            for length in 0..bytes.len() {
                let copy = directory.copy();
                fs::write(copy.0.join(path), &bytes[..length]).expect("a file can be written");
                if !marked {
                    fs::remove_file(copy.0.join("MARK")).expect("there was a mark");
                }
                let what = format!("{} cut to {length}, marked {marked}", path.display());
                let outcome = outcome(&copy, &states, &what);
                match outcome {
                    Outcome::Same => assert!(is_empty(bytes), "{what}: not found"),
                    // Without the file `MARK`, a truncated newest log file looks like a file that was never longer.
                    Outcome::LastRecordCut | Outcome::MoreCut => {
                        assert!(!marked && Some(path) == newest, "{what}: {outcome:?}");
                    }
                    Outcome::Refused => {}
                }
                *outcomes.entry(outcome).or_insert(0) += 1;
            }
        }
        println!("cut short, mark {}: {outcomes:?}", if marked { "there" } else { "lost" });
    }
}

#[test]
fn a_file_that_ends_between_two_records_is_found() {
    let (directory, states) = recorded();
    let files = directory.files();
    let (path, bytes) =
        files.iter().find(|(path, _)| path.starts_with("log") && path.extension().is_some()).expect("a log");
    let length = u64::from_be_bytes(bytes[69..77].try_into().expect("eight bytes")) >> 8;
    let copy = directory.copy();
    fs::write(copy.0.join(path), &bytes[..69 + length as usize]).expect("a file can be written");
    let error = refused(open_again(&copy.0));
    assert!(error.to_string().contains("the one before it is missing"), "{error}");
    assert_eq!(outcome(&directory, &states, "nothing changed"), Outcome::Same);
}

#[test]
fn opening_a_damaged_log_does_not_change_it() {
    let (directory, _) = recorded();
    let files = directory.files();
    let (path, bytes) =
        files.iter().find(|(path, _)| path.starts_with("log") && path.extension().is_some()).expect("a log");
    let mut flipped = bytes.clone();
    flipped[100] ^= 1;
    fs::write(directory.0.join(path), flipped).expect("a file can be written");
    let files = directory.files();
    let error = refused(open_again(&directory.0));
    assert!(error.to_string().contains("add it again under a new id"), "{error}");
    assert_eq!(directory.files(), files);
}

#[test]
fn a_missing_file_is_found() {
    let (directory, states) = recorded();
    let names: Vec<_> = directory.files().into_keys().filter(|path| path.extension().is_some()).collect();
    assert!(names.len() >= 3, "the log must have several files: {names:?}");
    for name in names.iter().filter(|name| name.to_string_lossy().ends_with(".raftlog")) {
        let copy = directory.copy();
        fs::remove_file(copy.0.join(name)).expect("it was there");
        assert_eq!(outcome(&copy, &states, &format!("{} missing", name.display())), Outcome::Refused);
    }
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged() {
    let (disk, directory) = (Disk::new(), Directory::new("failed-sync"));
    let (store, _) = open(disk.clone(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    store.write(GROUP, &append(2..=4)).expect("a sound disk");
    disk.fail_syncs(true);
    let error = refused(store.write(GROUP, &append(5..=5)));
    assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    assert!(error.to_string().contains("must stop and be restarted; do not retry"), "{error}");

    // Not even when syncs succeed again: what the disk lost in between is unknown.
    disk.fail_syncs(false);
    let syncs = disk.syncs();
    for _ in 0..3 {
        assert!(matches!(refused(store.write(GROUP, &append(5..=5))), StoreError::Failed { .. }));
        let members = ConfState::default();
        let before = LogPosition { index: 3, term: 1 };
        assert!(matches!(refused(store.compact(GROUP, before, &members)), StoreError::Failed { .. }));
    }
    drop(store);
    assert_eq!(disk.syncs(), syncs, "it was tried again");
    let (_, held) = open_again(&directory.0).expect("a restart reads the disk again");
    assert!(held.last().index >= 4);
}

#[test]
fn a_full_disk_has_its_own_error_and_the_same_write_succeeds_when_there_is_room() {
    let (disk, directory) = (Disk::new(), Directory::new("full"));
    let (store, _) = open(disk.clone(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    store.write(GROUP, &append(2..=4)).expect("there is room");
    disk.fill(true);
    for _ in 0..3 {
        let error = refused(store.write(GROUP, &append(5..=9)));
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
    }
    disk.fill(false);
    store.write(GROUP, &append(5..=9)).expect("there is room again");
    store.write(GROUP, &append(10..=12)).expect("the next write works, too");
    drop(store);
    let (_, held) = open_again(&directory.0).expect("a sound log");
    assert_eq!(held.entries, (2..=12).map(|index| entry(index, 1, 0)).collect::<Vec<_>>());
}

#[test]
fn a_crash_while_the_disk_is_full_loses_nothing() {
    let (disk, directory) = (Disk::new(), Directory::new("full-crash"));
    let (store, _) = open(disk.clone(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    store.write(GROUP, &append(2..=4)).expect("there is room");
    disk.fill(true);
    refused(store.write(GROUP, &append(5..=9)));
    let held = CRASHES.map(|crash| {
        disk.settle(crash);
        let copy = directory.copy();
        open_again(&copy.0).unwrap_or_else(|error| panic!("{crash:?}: {error}")).1.last().index
    });
    assert_eq!(held, [4; 5]);
}

#[test]
fn the_directory_of_another_node_is_refused() {
    let (directory, _) = recorded();
    let files = directory.files();
    for other in [Identity { cluster: 1, ..US }, Identity { node: 4, ..US }] {
        let opened = LogStore::open_on(Disk::new(), &directory.0, other, GROUP, Start::Again, SMALL);
        let error = refused(opened);
        assert!(matches!(error, StoreError::Foreign { found: US, .. }), "{error}");
        assert!(error.to_string().contains("start the node with its own directory"), "{error}");
    }
    assert_eq!(directory.files(), files, "a directory that is refused is not touched");
}

#[test]
fn a_newer_format_is_refused() {
    let (directory, _) = recorded();
    let path = directory.0.join("IDENTITY");
    let newer = fs::read_to_string(&path).expect("it is text").replace("fencepost-log 1", "fencepost-log 2");
    fs::write(&path, newer + "something that only format 2 knows\n").expect("a file can be written");
    let files = directory.files();
    let error = refused(open_again(&directory.0));
    assert!(matches!(error, StoreError::NewerFormat { found: 2, known: 1 }), "{error}");
    assert!(error.to_string().contains("start the version that wrote it, or a newer one"), "{error}");
    assert_eq!(directory.files(), files, "a directory that is refused is not touched");
}

#[test]
fn a_wiped_node_is_not_taken_for_a_new_one() {
    let (directory, _) = recorded();
    let error = refused(open(Disk::new(), &directory.0, Start::New(&beginning())));
    assert!(matches!(error, StoreError::AlreadyThere { .. }), "{error}");
    let empty = Directory::new("wiped");
    let error = refused(open_again(&empty.0));
    assert!(error.to_string().contains("added again under a new id"), "{error}");
    // Only the log is deleted.
    fs::remove_dir_all(directory.0.join("log")).expect("it was there");
    fs::create_dir(directory.0.join("log")).expect("it can be made");
    refused(open_again(&directory.0));
    // Only the identity is deleted.
    let (directory, _) = recorded();
    fs::remove_file(directory.0.join("IDENTITY")).expect("it was there");
    refused(open_again(&directory.0));
    refused(open(Disk::new(), &directory.0, Start::New(&beginning())));
}

#[test]
fn a_directory_cannot_be_opened_twice_at_the_same_time() {
    let directory = Directory::new("twice");
    let (store, _) = open(Disk::new(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    let error = refused(open_again(&directory.0));
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);
    open_again(&directory.0).expect("it is free again");
}

#[test]
fn a_gap_is_refused_before_it_is_written() {
    let directory = Directory::new("gap");
    let (store, _) = open(Disk::new(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    store.write(GROUP, &append(2..=4)).expect("a sound disk");
    let gap = write(None, vec![entry(5, 1, 0), entry(7, 1, 0)], true);
    for bad in [append(6..=6), append(1..=1), gap] {
        let error = refused(store.write(GROUP, &bad));
        assert!(matches!(error, StoreError::Inconsistent { .. }), "{error}");
    }
    store.write(GROUP, &append(5..=5)).expect("the gap changed nothing");
    drop(store);
    assert_eq!(open_again(&directory.0).expect("a sound log").1.last().index, 5);
}

#[test]
fn groups_share_a_store_and_nothing_else() {
    let directory = Directory::new("groups");
    let (store, _) = open(Disk::new(), &directory.0, Start::New(&beginning())).expect("an empty directory");
    store.open_group(8, Start::New(&Log::new(&[4]))).expect("a second group can be begun");
    store.write(GROUP, &append(2..=4)).expect("a sound disk");
    store.write(8, &append(2..=3)).expect("a sound disk");
    refused(store.write(9, &append(2..=3)));
    drop(store);
    let (store, held) = open_again(&directory.0).expect("a sound log");
    let other = Held::of(&store.open_group(8, Start::Again).expect("a sound log"));
    assert_eq!((held.last().index, other.last().index), (4, 3));
    assert_eq!(other.members.voters, [4]);
    refused(store.open_group(9, Start::Again));
}

#[test]
fn stores_on_one_thread_do_not_see_each_others_entries() {
    // Both logs have the same layout, so the engine's cache has the same key for both (see tests/engine.rs).
    let directories = [1, 2].map(|content| {
        let directory = Directory::new("twins");
        let (store, _) = open(Disk::new(), &directory.0, Start::New(&beginning())).expect("an empty directory");
        store.write(GROUP, &write(None, vec![entry(2, 1, content)], true)).expect("a sound disk");
        directory
    });
    let held = directories.each_ref().map(|directory| open_again(&directory.0).expect("a sound log").1.entries);
    assert_eq!(held, [vec![entry(2, 1, 1)], vec![entry(2, 1, 2)]]);
}
