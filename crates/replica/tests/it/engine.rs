//! What `raft-engine` does by itself where a disk fails: the reasons for what the store does around it.
//!
//! These tests hold the engine's behaviour fast, not ours. If one of them fails after an upgrade, the engine has become
//! better there, and the guard that the test names may go.
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
    engine.write(&mut batch, true).expect("the disk is well");
}

fn put<F: FileSystem>(engine: &Engine<F>, group: u64, key: &[u8], length: usize) {
    let mut batch = LogBatch::default();
    batch.put(group, key.to_vec(), vec![b'x'; length]).expect("a plain key");
    engine.write(&mut batch, true).expect("the disk is well");
}

fn log_file(directory: &Directory, number: u64) -> PathBuf {
    directory.0.join(format!("{number:016}.raftlog"))
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).expect("a file can be read");
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("a file can be written");
}

/// Guard: `store/scan.rs` refuses a bad record with a good one behind it.
#[test]
fn synced_records_behind_a_damaged_one_are_dropped_without_a_word() {
    let directory = Directory::new("engine-middle");
    let log = engine(&directory.0);
    (1..=5).for_each(|index| append(&log, 1, index..=index));
    drop(log);
    let path = log_file(&directory, 1);
    let record = (fs::read(&path).expect("a file can be read").len() - FILE_HEADER_BYTES) / 5;
    // The last byte of the second record: of its checksum.
    flip(&path, FILE_HEADER_BYTES + 2 * record - 1);
    assert_eq!(engine(&directory.0).last_index(GROUP), Some(1), "of five entries that were synced");
}

/// Guard: `store/scan.rs` compares a file's first bytes.
#[test]
fn a_flipped_bit_in_the_header_empties_the_newest_file_without_a_word() {
    let directory = Directory::new("engine-header");
    let log = engine(&directory.0);
    append(&log, 1, 1..=5);
    drop(log);
    flip(&log_file(&directory, 1), 0);
    assert_eq!(engine(&directory.0).last_index(GROUP), None, "of five entries that were synced");
}

/// Guard: `store/scan.rs` wants the files' numbers to rise by one.
#[test]
fn files_before_a_missing_one_are_dropped_without_a_word() {
    let directory = Directory::new("engine-missing");
    let log = engine(&directory.0);
    put(&log, GROUP, b"vote", 16);
    (1..=3).for_each(|_| put(&log, GROUP, b"filler", 2000));
    drop(log);
    fs::remove_file(log_file(&directory, 2)).expect("it was there");
    let log = engine(&directory.0);
    assert_eq!(log.get(GROUP, b"vote"), None, "it stands in the first file, which is still there");
    assert!(log_file(&directory, 1).exists());
}

/// Guard: the store reads on a thread that ends afterwards.
#[test]
fn an_engine_answers_with_entries_of_another_on_the_same_thread() {
    let directories = [Directory::new("engine-one"), Directory::new("engine-two")];
    let engines = directories.each_ref().map(|directory| engine(&directory.0));
    append(&engines[0], 3, 1..=1);
    append(&engines[1], 4, 1..=1);
    let terms = engines
        .each_ref()
        .map(|engine| engine.get_entry::<EntryIndex>(GROUP, 1).expect("it can be read").expect("it is there").term);
    assert_eq!(terms, [3, 3], "the second was written in term 4");
}

/// Guard: the store writes the last index into every record, and does not look behind it.
#[test]
fn overwritten_entries_come_back_when_those_that_overwrote_them_were_compacted() {
    let directory = Directory::new("engine-overwritten");
    let log = engine(&directory.0);
    (1..=35).for_each(|index| append(&log, 1, index..=index));
    put(&log, GROUP, b"filler", 2000);
    // In the next file a new leader overwrites all but the first, gets no further than 30, and all of it is compacted.
    append(&log, 2, 2..=2);
    (3..=30).for_each(|index| append(&log, 2, index..=index));
    let mut batch = LogBatch::default();
    batch.add_command(GROUP, Command::Compact { index: 31 });
    log.write(&mut batch, true).expect("the disk is well");
    assert_eq!(log.last_index(GROUP), None);
    drop(log);
    let log = engine(&directory.0);
    assert_eq!((log.first_index(GROUP), log.last_index(GROUP)), (Some(31), Some(35)), "entries that were overwritten");
}

/// Guard: `store/guard.rs` keeps a failed sync from the engine, and the store stops.
#[test]
fn a_failed_sync_panics() {
    let (disk, directory) = (Disk::new(), Directory::new("engine-sync"));
    let log = Engine::open_with_file_system(config(&directory.0), Arc::clone(&disk)).expect("it can be begun");
    append(&log, 1, 1..=1);
    disk.fail_syncs(true);
    assert!(catch_unwind(AssertUnwindSafe(|| append(&log, 1, 2..=2))).is_err());
    // Otherwise it would panic twice when it is dropped, and abort the process.
    disk.fail_syncs(false);
}

/// Guard: the store gives back its reserve beneath the engine, and stops if deleting finds no room even then.
#[test]
fn a_dropped_log_comes_back_when_deleting_old_files_once_found_no_room() {
    let last_index_after = |is_full| {
        let (disk, directory) = (Disk::new(), Directory::new("engine-purge"));
        let log = Engine::open_with_file_system(config(&directory.0), Arc::clone(&disk)).expect("it can be begun");
        let fill_files = || (1..=8).for_each(|_| put(&log, GROUP + 1, b"filler", 2000));
        append(&log, 1, 1..=5);
        fill_files();
        // The entries are rewritten, so that the file in which they stood can go.
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

/// Guard: `store/guard.rs` deletes the file again.
#[test]
fn a_file_that_was_begun_on_a_full_disk_is_left_behind() {
    let (disk, directory) = (Disk::new(), Directory::new("engine-begun"));
    let log = Engine::open_with_file_system(config(&directory.0), Arc::clone(&disk)).expect("it can be begun");
    append(&log, 1, 1..=1);
    // Room for a name, and none for what is to stand in the file.
    disk.limit(0);
    let mut batch = LogBatch::default();
    batch.put(GROUP, b"large".to_vec(), vec![b'x'; 4000]).expect("a plain key");
    assert!(log.write(&mut batch, true).is_err());
    assert_eq!(fs::read(log_file(&directory, 2)).expect("it is there"), b"");
    disk.limit(usize::MAX);
    append(&log, 1, 2..=2);
    assert_eq!(fs::read(log_file(&directory, 2)).expect("it is there"), b"", "it went on in the first");
}

/// Guard: the store checks the indexes before it writes.
#[test]
fn a_gap_is_written_and_panics_at_each_start() {
    let directory = Directory::new("engine-gap");
    let log = engine(&directory.0);
    append(&log, 1, 1..=1);
    assert!(catch_unwind(AssertUnwindSafe(|| append(&log, 1, 3..=3))).is_err());
    drop(log);
    assert!(catch_unwind(|| engine(&directory.0)).is_err());
}
