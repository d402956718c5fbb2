//! Snapshots on disk: after a crash there is always a complete one, and a damaged one is never used.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "these tests are about files")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::disk::{CRASHES, Directory, Disk};
use fencepost_core::{
    Batch, KnownVersions, LogPosition, LogicalMs, Metadata, Open, Operation, Principal, SecretHash, SessionId, Ttl,
};
use fencepost_replica::store::{SnapshotStore, StoreError};
use fencepost_replica::{GROUP_BEGINS, GroupId, Log, make_snapshot, read_snapshot};
use raft::eraftpb::Entry;

const GROUP: GroupId = GroupId { cluster: 0xC, group: 1 };

/// A snapshot at this index: one session for each entry up to it.
fn snapshot(index: u64) -> Vec<u8> {
    let entries = (GROUP_BEGINS.index + 1..=index).map(entry);
    make_snapshot(GROUP, None, &[1], entries, at(index), KnownVersions::THIS_BUILD).expect("the entries are sound").0
}

fn at(index: u64) -> LogPosition {
    LogPosition { index, term: 1 }
}

fn entry(index: u64) -> Entry {
    let open = Operation::Open(Open {
        session: SessionId(index.into()),
        secret_hash: SecretHash([1; 32]),
        principal: Principal::new("tests").expect("a short name"),
        ttl: Ttl::new(600_000).expect("ten minutes are allowed"),
        metadata: Metadata::default(),
    });
    let batch = Batch { operations: vec![open], ..Batch::default() };
    let entry = fencepost_wire::Entry { term: 1, stamp: LogicalMs(index), batch, ..fencepost_wire::Entry::default() };
    Entry { index, term: 1, data: fencepost_wire::encode(&entry).into(), ..Entry::default() }
}

/// A log that begins after `before` and ends with `last`.
fn log(before: LogPosition, last: u64) -> Log {
    let mut log = Log::new(&[1]);
    log.append(&(GROUP_BEGINS.index + 1..=last).map(entry).collect::<Vec<_>>());
    log.compact(before.index);
    log
}

fn open(disk: &Arc<Disk>, directory: &Directory) -> SnapshotStore<Disk> {
    SnapshotStore::open_on(disk.clone(), &directory.0.join("snapshots")).expect("the directory can be used")
}

fn names(directory: &Directory) -> Vec<String> {
    let name = |path: &Path| path.file_name().expect("a file has a name").to_string_lossy().into_owned();
    directory.files().keys().map(|path| name(path)).collect()
}

/// The position of the store's newest snapshot. Reads it and checks that it is complete.
fn newest_whole(store: &SnapshotStore<Disk>, what: &str) -> Option<LogPosition> {
    let newest = store.newest()?;
    let bytes = store.read(newest).unwrap_or_else(|error| panic!("{what}: {error}")).expect("the newest is there");
    let restored =
        read_snapshot(GROUP, &bytes, 0, KnownVersions::THIS_BUILD).unwrap_or_else(|error| panic!("{what}: {error}"));
    let sessions = restored.state.counts().sessions as u64;
    assert_eq!((restored.position, sessions), (newest, newest.index - 1), "{what}");
    Some(newest)
}

#[test]
fn snapshots_survive_a_restart_and_older_ones_are_deleted_on_request() {
    let (disk, directory) = (Disk::new(), Directory::new("snapshots"));
    let store = open(&disk, &directory);
    assert_eq!((store.newest(), store.read(at(5)).expect("a sound disk")), (None, None));
    store.write(at(5), &snapshot(5)).expect("a sound disk");
    store.write(at(9), &snapshot(9)).expect("a sound disk");
    drop(store);
    let store = open(&disk, &directory);
    assert_eq!(newest_whole(&store, "two"), Some(at(9)));
    assert_eq!(store.read(at(5)).expect("a sound disk"), Some(snapshot(5)));

    let error = store.delete_older(at(7)).expect_err("there is none at 7");
    assert!(matches!(error, StoreError::Inconsistent { .. }), "{error}");
    assert_eq!(names(&directory).len(), 2);
    store.delete_older(at(9)).expect("a sound disk");
    assert_eq!(names(&directory), ["00000000000000000009-00000000000000000001.snapshot"]);
    assert_eq!(store.read(at(5)).expect("a deleted snapshot is not a failure"), None);
    assert_eq!(newest_whole(&store, "one"), Some(at(9)));
}

#[test]
fn a_node_does_not_start_from_a_snapshot_that_its_log_does_not_follow() {
    let (disk, directory) = (Disk::new(), Directory::new("not-followed"));
    let store = open(&disk, &directory);
    store.write(at(5), &snapshot(5)).expect("a sound disk");
    // Snapshots of a peer. The node crashed before its log continued from them.
    let ahead = LogPosition { index: 30, term: 2 };
    store.write(ahead, b"of a peer").expect("a sound disk");
    let other_term = LogPosition { index: 8, term: 2 };
    store.write(other_term, b"of a peer").expect("a sound disk");
    assert_eq!(store.newest(), Some(ahead));
    assert_eq!(store.newest_in(&log(at(4), 10)), Some(at(5)));
    assert_eq!(store.newest_in(&log(at(5), 10)), Some(at(5)));
    assert_eq!(store.newest_in(&log(at(6), 10)), None);
}

#[test]
fn a_crash_at_every_step_leaves_the_old_or_the_new_snapshot_complete() {
    let run = |disk: &Arc<Disk>, directory: &Directory| {
        let Ok(store) = SnapshotStore::open_on(disk.clone(), &directory.0.join("snapshots")) else { return None };
        let mut newest = None;
        for index in [5, 9, 20] {
            if store.write(at(index), &snapshot(index)).is_err() {
                return newest;
            }
            newest = Some(at(index));
            if store.delete_older(at(index)).is_err() {
                return newest;
            }
        }
        newest
    };
    let disk = Disk::new();
    assert_eq!(run(&disk, &Directory::new("dry-run")), Some(at(20)));
    let (mut crashes, mut leftovers) = (0, 0);
    for point in 1..=disk.steps() {
        for crash in CRASHES {
            let (disk, directory) = (Disk::crashing_at(point), Directory::new("snapshot-crash"));
            let acknowledged = run(&disk, &directory);
            disk.settle(crash);
            let what = format!("crash {crash:?} at step {point} after {acknowledged:?}");
            leftovers += names(&directory).iter().filter(|name| name.ends_with(".new")).count();
            let store = open(&Disk::new(), &directory);
            assert!(
                names(&directory).iter().all(|name| name.ends_with(".snapshot")),
                "{what}: {:?}",
                names(&directory)
            );
            assert!(newest_whole(&store, &what) >= acknowledged, "{what}: {:?}", store.newest());
            store.write(at(30), &snapshot(30)).unwrap_or_else(|error| panic!("{what}: {error}"));
            store.delete_older(at(30)).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((newest_whole(&store, &what), names(&directory).len()), (Some(at(30)), 1), "{what}");
            crashes += 1;
        }
    }
    println!("{crashes} crashes, {leftovers} left a temporary file");
    assert!(leftovers > 0);
}

#[test]
fn files_with_other_names_are_left_alone() {
    let (disk, directory) = (Disk::new(), Directory::new("foreign"));
    let snapshots = directory.0.join("snapshots");
    fs::create_dir(&snapshots).expect("it can be made");
    let leftover = "00000000000000000009-00000000000000000001.snapshot.new";
    let foreign = [
        "notes.txt",
        "backup.snapshot",
        "9-1.snapshot",
        "+0000000000000000009-00000000000000000001.snapshot",
        "other.snapshot.new",
    ];
    for name in foreign.iter().chain([&leftover]) {
        fs::write(snapshots.join(name), name).expect("it can be written");
    }
    let store = open(&disk, &directory);
    assert_eq!(store.newest(), None);
    store.write(at(9), &snapshot(9)).expect("a sound disk");
    store.delete_older(at(9)).expect("a sound disk");
    for name in foreign {
        assert_eq!(fs::read(snapshots.join(name)).expect("it is there"), name.as_bytes());
    }
    assert_eq!(names(&directory).len(), foreign.len() + 1);
}

#[test]
fn damage_is_found_when_the_bytes_are_read() {
    let (disk, directory) = (Disk::new(), Directory::new("snapshot-damage"));
    let store = open(&disk, &directory);
    store.write(at(5), &snapshot(5)).expect("a sound disk");
    let path = directory.0.join("snapshots").join(&names(&directory)[0]);
    let bytes = fs::read(&path).expect("it is there");
    let is_refused = |damaged: &[u8]| {
        fs::write(&path, damaged).expect("it can be written");
        let found = store.read(at(5)).expect("a sound disk").expect("it is there");
        read_snapshot(GROUP, &found, 0, KnownVersions::THIS_BUILD).is_err()
    };
    assert!(!is_refused(&bytes));
    for place in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[place] ^= 1 << (place % 8);
        assert!(is_refused(&flipped), "byte {place} was flipped");
        assert!(is_refused(&bytes[..place]), "cut to {place} bytes");
    }
    println!("{} bytes: one bit flipped in each, and the file truncated at each", bytes.len());
}

#[test]
fn after_a_failed_sync_no_snapshot_is_written() {
    let (disk, directory) = (Disk::new(), Directory::new("snapshot-sync"));
    let store = open(&disk, &directory);
    store.write(at(5), &snapshot(5)).expect("a sound disk");
    disk.fail_syncs(true);
    let error = store.write(at(9), &snapshot(9)).expect_err("the sync failed");
    assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    disk.fail_syncs(false);
    let syncs = disk.syncs();
    for _ in 0..3 {
        assert!(matches!(store.write(at(9), &snapshot(9)), Err(StoreError::Failed { .. })));
        assert!(matches!(store.delete_older(at(5)), Err(StoreError::Failed { .. })));
    }
    assert_eq!(disk.syncs(), syncs, "it was tried again");
    assert_eq!(newest_whole(&store, "the old one"), Some(at(5)));
    drop(store);
    assert_eq!(newest_whole(&open(&disk, &directory), "after a restart"), Some(at(5)));
}

#[test]
fn a_full_disk_leaves_the_old_snapshot_and_nothing_else() {
    let (disk, directory) = (Disk::new(), Directory::new("snapshot-full"));
    let store = open(&disk, &directory);
    store.write(at(5), &snapshot(5)).expect("there is room");
    let files = directory.files();
    for room in [0, 1, 50] {
        disk.limit(disk.used() + room);
        let error = store.write(at(9), &snapshot(9)).expect_err("there is no room");
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
        assert_eq!(directory.files(), files, "room for {room}");
    }
    // Not even room for a name.
    disk.fill(true);
    assert!(matches!(store.write(at(9), &snapshot(9)), Err(StoreError::DiskFull { .. })));
    disk.fill(false);
    disk.limit(usize::MAX);
    store.write(at(9), &snapshot(9)).expect("there is room again");
    assert_eq!(newest_whole(&store, "the new one"), Some(at(9)));
}
