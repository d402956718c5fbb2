//! The disk is full: the log uses its reserve, reports it, and loses nothing.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "these tests are about files")]

use std::path::Path;
use std::sync::Arc;

use crate::disk::{CRASHES, Directory, Disk};
use fencepost_core::LogPosition;
use fencepost_replica::store::{Identity, LogStore, Start, StoreError, StoreOptions};
use fencepost_replica::{Log, LogWrite};
use raft::eraftpb::{ConfState, Entry};

const GROUP: u64 = 7;
const US: Identity = Identity { cluster: 0xfeed_beef, node: 3 };
const RESERVE_BYTES: usize = 4096;
const OPTIONS: StoreOptions = StoreOptions { file_bytes: 1024, purge_bytes: 4096, reserve_bytes: RESERVE_BYTES as u64 };

type Opened = Result<(LogStore<Disk>, Log), StoreError>;

fn begin(disk: &Arc<Disk>, directory: &Path) -> Opened {
    LogStore::open_on(disk.clone(), directory, US, GROUP, Start::New(&Log::new(&[1, 2, 3])), OPTIONS)
}

fn open_again(disk: &Arc<Disk>, directory: &Path) -> Opened {
    LogStore::open_on(disk.clone(), directory, US, GROUP, Start::Again, OPTIONS)
}

fn entry(index: u64) -> Entry {
    let data = format!("{index:0100}").into_bytes();
    Entry { index, term: 1, data: data.into(), ..Entry::default() }
}

fn append(store: &LogStore<Disk>, index: u64) -> Result<(), StoreError> {
    let entries = vec![entry(index)];
    store.write(GROUP, &LogWrite { snapshot: None, number: 0, hard_state: None, entries, must_sync: true })
}

/// Appends entries, beginning with an index, until `holds` returns true. Returns the index of the next entry.
fn append_until(store: &LogStore<Disk>, mut index: u64, holds: impl Fn() -> bool) -> u64 {
    while !holds() {
        append(store, index).expect("there is room, at least in the reserve");
        index += 1;
    }
    index
}

/// Appends until there is no room at all, and returns the index of the entry that did not fit.
fn append_until_full(store: &LogStore<Disk>, mut index: u64) -> u64 {
    loop {
        match append(store, index) {
            Ok(()) => index += 1,
            Err(StoreError::DiskFull { .. }) => return index,
            Err(error) => panic!("entry {index}: {error}"),
        }
    }
}

fn compact(store: &LogStore<Disk>, index: u64) -> Result<(), StoreError> {
    store.compact(GROUP, LogPosition { index, term: 1 }, &members())
}

fn members() -> ConfState {
    ConfState { voters: vec![1, 2, 3], ..ConfState::default() }
}

#[track_caller]
fn assert_holds(log: &Log, indexes: std::ops::RangeInclusive<u64>) {
    let held: Vec<Entry> = log.entries().cloned().collect();
    assert_eq!(held, indexes.map(entry).collect::<Vec<_>>());
}

#[test]
fn writes_use_the_reserve_and_it_is_filled_again_when_there_is_room() {
    let (disk, directory) = (Disk::new(), Directory::new("reserve"));
    let (store, _) = begin(&disk, &directory.0).expect("there is room");
    assert!(!store.is_short());
    disk.limit(disk.used() + 3000);

    let first_short = append_until(&store, 2, || store.is_short());
    assert!(!store.refill_reserve().expect("a full disk is not a failure"), "there is no room for it");
    let full = append_until_full(&store, first_short);
    println!("{} writes before the store was short, {} in the reserve", first_short - 2, full - first_short);
    // A record is about 220 bytes, and each file has a header.
    assert!(full - first_short >= RESERVE_BYTES as u64 / 300, "the reserve was not used");
    assert!(store.is_short());
    for _ in 0..3 {
        assert!(matches!(append(&store, full), Err(StoreError::DiskFull { .. })));
    }

    disk.limit(disk.used() + 2 * RESERVE_BYTES);
    append(&store, full).expect("there is room again");
    assert!(store.is_short(), "until the reserve is filled again");
    assert!(store.refill_reserve().expect("a sound disk"));
    assert!(!store.is_short());
    drop(store);
    let (store, log) = open_again(&disk, &directory.0).expect("a sound log");
    assert_holds(&log, 2..=full);
    assert!(!store.is_short());
}

#[test]
fn a_node_starts_short_on_a_full_disk() {
    let (disk, directory) = (Disk::new(), Directory::new("starts-short"));
    let (store, _) = begin(&disk, &directory.0).expect("there is room");
    disk.limit(disk.used() + 3000);
    let next = append_until(&store, 2, || store.is_short());
    drop(store);
    let (store, log) = open_again(&disk, &directory.0).expect("a node starts on a full disk");
    assert_holds(&log, 2..=next - 1);
    assert!(store.is_short());
    append(&store, next).expect("there is room left from the reserve");
}

#[test]
fn compaction_while_short_makes_room_for_the_reserve() {
    let (disk, directory) = (Disk::new(), Directory::new("compact-short"));
    let (store, _) = begin(&disk, &directory.0).expect("there is room");
    disk.limit(disk.used() + 4 * RESERVE_BYTES);
    let next = append_until(&store, 2, || store.is_short());
    assert!(!store.refill_reserve().expect("a full disk is not a failure"));
    // The engine rewrites the kept entries before it deletes the old files. That needs some of the reserve.
    compact(&store, next - 3).expect("there is room in the reserve");
    assert!(store.refill_reserve().expect("a sound disk"), "old files were deleted");
    append(&store, next).expect("there is room");
    drop(store);
    let (_, log) = open_again(&disk, &directory.0).expect("a sound log");
    assert_holds(&log, next - 2..=next);
}

#[test]
fn a_store_stops_when_deleting_old_files_finds_no_room_at_all() {
    let (mut stopped, mut refused) = (0, 0);
    // The engine forgets which logs were dropped (see tests/engine.rs). Some of the old entries are rewritten by then.
    for room in (0..1000).step_by(40) {
        let (disk, directory) = (Disk::new(), Directory::new("purge-full"));
        let (store, _) = begin(&disk, &directory.0).expect("there is room");
        (2..60).for_each(|index| append(&store, index).expect("there is room"));
        compact(&store, 50).expect("there is room");
        (60..120).for_each(|index| append(&store, index).expect("there is room"));
        // From here on the reserve is used up.
        disk.limit(disk.used());
        append_until_full(&store, 120);
        disk.limit(disk.used() + room);
        let before = LogPosition { index: 1000, term: 1 };
        let restarted = store.restart_after(GROUP, before, &members());
        disk.limit(usize::MAX);
        match restarted {
            Ok(()) => {}
            Err(StoreError::DiskFull { .. }) => {
                refused += 1;
                store.restart_after(GROUP, before, &members()).expect("there is room");
            }
            Err(StoreError::Failed { reason }) => {
                stopped += 1;
                assert!(reason.contains("make room"), "{reason}");
                assert!(append(&store, 1001).is_err(), "a failed store stays failed");
            }
            Err(error) => panic!("room for {room}: {error}"),
        }
        drop(store);
        let (store, log) = open_again(&Disk::new(), &directory.0).unwrap_or_else(|error| panic!("{room}: {error}"));
        assert_eq!((log.last(), log.entries().count()), (before, 0), "room for {room}");
        (1001..1100).for_each(|index| append(&store, index).expect("there is room"));
        compact(&store, 1090).expect("there is room");
        drop(store);
        let (_, log) = open_again(&Disk::new(), &directory.0).unwrap_or_else(|error| panic!("{room}: {error}"));
        assert_holds(&log, 1091..=1099);
    }
    println!("{refused} times nothing was written, {stopped} times the store had to stop");
    assert!(stopped > 0 && refused > 0, "{stopped} {refused}");
}

/// Fills the disk and the reserve, makes room, and appends more, until the disk crashes. Returns the last acknowledged entry, and whether
/// the store was opened.
fn fill_until_crash(disk: &Arc<Disk>, directory: &Path) -> (u64, bool) {
    let Ok((store, _)) = begin(disk, directory) else { return (1, false) };
    let mut last = 1;
    disk.limit(disk.used() + 1500);
    let mut has_room_again = false;
    while last < 45 {
        match append(&store, last + 1) {
            Ok(()) => last += 1,
            Err(StoreError::DiskFull { .. }) if !has_room_again => {
                has_room_again = true;
                // So little that the disk is full again in the middle of a file.
                disk.limit(disk.used() + 600);
            }
            Err(StoreError::DiskFull { .. }) => {
                disk.limit(disk.used() + 100_000);
                let _ = store.refill_reserve();
            }
            Err(_) => break,
        }
    }
    (last, true)
}

#[test]
fn what_was_acknowledged_survives_a_crash_at_every_step_of_a_disk_that_fills_up() {
    let disk = Disk::new();
    assert_eq!(fill_until_crash(&disk, &Directory::new("dry-run").0), (45, true));
    let (mut crashes, mut ahead, mut short) = (0, 0, 0);
    for point in 1..=disk.steps() {
        for crash in CRASHES {
            let directory = Directory::new("reserve-crash");
            let disk = Disk::crashing_at(point);
            let (acknowledged, was_open) = fill_until_crash(&disk, &directory.0);
            disk.settle(crash);
            crashes += 1;
            let what = format!("crash {crash:?} at step {point} after entry {acknowledged}");
            if !was_open {
                continue;
            }
            // Hardly more room than the files take.
            let used: usize = directory.files().values().map(Vec::len).sum();
            let disk = Disk::new();
            disk.limit(used + 400);
            let (store, log) = open_again(&disk, &directory.0).unwrap_or_else(|error| panic!("{what}: {error}"));
            let last = log.last().index;
            assert!(last == acknowledged || last == acknowledged + 1, "{what}: the log ends at {last}");
            assert_holds(&log, 2..=last);
            append(&store, last + 1).unwrap_or_else(|error| panic!("{what}: {error}"));
            ahead += u64::from(last > acknowledged);
            short += u64::from(store.is_short());
        }
    }
    println!(
        "{crashes} crashes; in {ahead} the unacknowledged write was there; {short} times the store was short afterwards"
    );
    assert!(short > 0, "no start was short");
}

#[cfg(unix)]
#[test]
fn the_reserve_is_really_allocated() {
    use std::os::unix::fs::MetadataExt;
    let directory = Directory::new("reserve-real");
    let start = Start::New(&Log::new(&[1]));
    let (store, _) = LogStore::open(&directory.0, US, GROUP, start).expect("there is room");
    let metadata = std::fs::metadata(directory.0.join("RESERVE")).expect("it is there");
    assert!(!store.is_short());
    // A sparse file would have the length and no blocks.
    assert_eq!(metadata.len(), StoreOptions::default().reserve_bytes);
    assert!(metadata.blocks() * 512 >= metadata.len(), "{} blocks", metadata.blocks());
}
