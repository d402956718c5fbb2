//! How `raft-engine` behaves when a disk fails: the reasons for the store's guards around it.
//!
//! These tests pin the engine's behaviour, not ours. If one of them fails after an upgrade, the engine has become better there, and
//! the guard that the test names may be removed.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "these tests are about files")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Directory, Disk};
use raft::eraftpb::Entry;
use raft_engine::env::FileSystem;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};

const GROUP: u64 = 7;
const FILE_HEADER_BYTES: usize = 69;

struct EntryIndex;

impl MessageExt for EntryIndex {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

fn config(directory: &Path) -> Config {
    Config {
        dir: directory.to_str().expect("a temporary directory has a plain name").to_owned(),
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        target_file_size: ReadableSize::kb(1),
        purge_threshold: ReadableSize::kb(4),
        enable_log_recycle: false,
        ..Config::default()
    }
}

fn engine(directory: &Path) -> Engine {
    Engine::open(config(directory)).expect("the engine finds nothing wrong")
}

fn append<F: FileSystem>(engine: &Engine<F>, term: u64, indexes: std::ops::RangeInclusive<u64>) {
    let entries: Vec<Entry> = indexes.map(|index| Entry { index, term, ..Entry::default() }).collect();
    let mut batch = LogBatch::default();
    batch.add_entries::<EntryIndex>(GROUP, &entries).expect("a small batch");
    engine.write(&mut batch, true).expect("a sound disk");
}

fn put<F: FileSystem>(engine: &Engine<F>, group: u64, key: &[u8], length: usize) {
    let mut batch = LogBatch::default();
    batch.put(group, key.to_vec(), vec![b'x'; length]).expect("a plain key");
    engine.write(&mut batch, true).expect("a sound disk");
}

fn log_file(directory: &Directory, number: u64) -> PathBuf {
    directory.0.join(format!("{number:016}.raftlog"))
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("a file can be read");
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("a file can be written");
}

/// The store's guard against this engine behaviour: `store/scan.rs` refuses a bad record with a good one after it.
#[test]
fn synced_records_after_a_damaged_one_are_dropped_silently() {
    let directory = Directory::new("engine-middle");
    let log = engine(&directory.0);
    (1..=5).for_each(|index| append(&log, 1, index..=index));
    drop(log);
    let path = log_file(&directory, 1);
    let record = (fs::read(&path).expect("a file can be read").len() - FILE_HEADER_BYTES) / 5;
    // The last byte of the second record, which is part of its checksum.
    flip(&path, FILE_HEADER_BYTES + 2 * record - 1);
    assert_eq!(engine(&directory.0).last_index(GROUP), Some(1), "of five entries that were synced");
}

/// The store's guard against this engine behaviour: `store/scan.rs` compares a file's first bytes.
#[test]
fn a_flipped_bit_in_the_header_empties_the_newest_file_silently() {
    let directory = Directory::new("engine-header");
    let log = engine(&directory.0);
    append(&log, 1, 1..=5);
    drop(log);
    flip(&log_file(&directory, 1), 0);
    assert_eq!(engine(&directory.0).last_index(GROUP), None, "of five entries that were synced");
}

/// The store's guard against this engine behaviour: `store/scan.rs` requires that the files' numbers rise by one.
#[test]
fn files_before_a_missing_one_are_dropped_silently() {
    let directory = Directory::new("engine-missing");
    let log = engine(&directory.0);
    put(&log, GROUP, b"vote", 16);
    (1..=3).for_each(|_| put(&log, GROUP, b"filler", 2000));
    drop(log);
    fs::remove_file(log_file(&directory, 2)).expect("it was there");
    let log = engine(&directory.0);
    assert_eq!(log.get(GROUP, b"vote"), None, "it is in the first file, which still exists");
    assert!(log_file(&directory, 1).exists());
}

/// The store's guard against this engine behaviour: the store reads on a thread that ends afterwards.
#[test]
fn an_engine_returns_entries_of_another_engine_on_the_same_thread() {
    let directories = [Directory::new("engine-one"), Directory::new("engine-two")];
    let engines = directories.each_ref().map(|directory| engine(&directory.0));
    append(&engines[0], 3, 1..=1);
    append(&engines[1], 4, 1..=1);
    let terms = engines
        .each_ref()
        .map(|engine| engine.get_entry::<EntryIndex>(GROUP, 1).expect("it can be read").expect("it is there").term);
    assert_eq!(terms, [3, 3], "the second was written in term 4");
}

/// The store's guard against this engine behaviour: the store writes the last index into every record, and reads no entry after it.
#[test]
fn overwritten_entries_come_back_when_the_newer_entries_were_compacted() {
    let directory = Directory::new("engine-overwritten");
    let log = engine(&directory.0);
    (1..=35).for_each(|index| append(&log, 1, index..=index));
    put(&log, GROUP, b"filler", 2000);
    // In the next file a new leader overwrites all but the first entry, gets only to 30, and all of that is compacted.
    append(&log, 2, 2..=2);
    (3..=30).for_each(|index| append(&log, 2, index..=index));
    let mut batch = LogBatch::default();
    batch.add_command(GROUP, Command::Compact { index: 31 });
    log.write(&mut batch, true).expect("a sound disk");
    assert_eq!(log.last_index(GROUP), None);
    drop(log);
    let log = engine(&directory.0);
    assert_eq!((log.first_index(GROUP), log.last_index(GROUP)), (Some(31), Some(35)), "entries that were overwritten");
}

/// The store's guard against this engine behaviour: `store/guard.rs` hides a failed sync from the engine, and the store stops.
#[test]
fn a_failed_sync_panics() {
    let (disk, directory) = (Disk::new(), Directory::new("engine-sync"));
    let log = Engine::open_with_file_system(config(&directory.0), Arc::clone(&disk)).expect("an empty directory");
    append(&log, 1, 1..=1);
    disk.fail_syncs(true);
    assert!(catch_unwind(AssertUnwindSafe(|| append(&log, 1, 2..=2))).is_err());
    // Otherwise the engine would panic again when it is dropped, and abort the process.
    disk.fail_syncs(false);
}

/// The store's guard against this engine behaviour: the store gives its reserve back without the engine's notice, and stops if
/// deleting finds no room even then.
#[test]
fn a_dropped_log_comes_back_when_deleting_old_files_once_found_no_room() {
    let last_index_after = |is_full| {
        let (disk, directory) = (Disk::new(), Directory::new("engine-purge"));
        let log = Engine::open_with_file_system(config(&directory.0), Arc::clone(&disk)).expect("an empty directory");
        let fill_files = || (1..=8).for_each(|_| put(&log, GROUP + 1, b"filler", 2000));
        append(&log, 1, 1..=5);
        fill_files();
        // The engine rewrites the entries, so that it can delete their file.
        log.purge_expired_files().expect("there is room");
        let mut batch = LogBatch::default();
        batch.add_command(GROUP, Command::Clean);
        log.write(&mut batch, true).expect("there is room");
        fill_files();
        disk.fill(is_full);
        assert_eq!(log.purge_expired_files().is_err(), is_full);
        disk.fill(false);
        fill_files();
        log.purge_expired_files().expect("there is room");
        drop(log);
        engine(&directory.0).last_index(GROUP)
    };
    assert_eq!(last_index_after(false), None);
    assert_eq!(last_index_after(true), Some(5), "of a log that was dropped");
}

/// The store's guard against this engine behaviour: `store/guard.rs` deletes the empty file.
#[test]
fn an_empty_file_is_left_behind_on_a_full_disk() {
    let (disk, directory) = (Disk::new(), Directory::new("engine-begun"));
    let log = Engine::open_with_file_system(config(&directory.0), Arc::clone(&disk)).expect("an empty directory");
    append(&log, 1, 1..=1);
    // Room for a file's name, and none for its content.
    disk.limit(0);
    let mut batch = LogBatch::default();
    batch.put(GROUP, b"large".to_vec(), vec![b'x'; 4000]).expect("a plain key");
    assert!(log.write(&mut batch, true).is_err());
    assert_eq!(fs::read(log_file(&directory, 2)).expect("it is there"), b"");
    disk.limit(usize::MAX);
    append(&log, 1, 2..=2);
    assert_eq!(fs::read(log_file(&directory, 2)).expect("it is there"), b"", "it continued in the first file");
}

/// The store's guard against this engine behaviour: the store checks the indexes before it writes.
#[test]
fn a_gap_is_written_and_panics_at_each_start() {
    let directory = Directory::new("engine-gap");
    let log = engine(&directory.0);
    append(&log, 1, 1..=1);
    assert!(catch_unwind(AssertUnwindSafe(|| append(&log, 1, 3..=3))).is_err());
    drop(log);
    assert!(catch_unwind(|| engine(&directory.0)).is_err());
}
