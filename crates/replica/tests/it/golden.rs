//! A node's directory of each format version, as files that never change. Every later version must open it and read the same.
//!
//! The directory has seen everything that changes the layout of the files: overwritten entries, a compaction, rewritten entries whose old
//! files were deleted, a log replaced by a snapshot's position, and two groups.
//!
//! If this test fails, the logs of old nodes can no longer be read: repair the code, not the files. The files are written once, when a
//! format version is new, by
//!
//! ```text
//! FENCEPOST_WRITE_GOLDEN=1 cargo test -p fencepost-replica --test it golden
//! ```
//!
//! This creates missing directories, and changes no others.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "these tests are about files")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::Directory;
use fencepost_core::LogPosition;
use fencepost_replica::store::{Identity, LogStore, PrivateFiles, Start, StoreOptions};
use fencepost_replica::{Log, LogWrite};
use raft::Storage;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState};

const US: Identity = Identity { cluster: 0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF, node: 3 };
const GROUP: u64 = 1;
const OTHER_GROUP: u64 = 2;
/// Small, so that there are several small files.
const SMALL: StoreOptions = StoreOptions { file_bytes: 1024, purge_bytes: 2048, reserve_bytes: 0 };

fn open(directory: &Path, start: Start<'_>) -> (LogStore, Log) {
    LogStore::open_on(Arc::new(PrivateFiles), directory, US, GROUP, start, SMALL)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn entry(index: u64, term: u64) -> Entry {
    // Entry 40 is empty, as consensus writes for itself. Entry 41 has another type.
    let data = if index == 40 { String::new() } else { format!("entry {index} of term {term}") };
    let entry_type = if index == 41 { EntryType::EntryConfChangeV2 } else { EntryType::EntryNormal };
    Entry { index, term, entry_type, data: data.into_bytes().into(), ..Entry::default() }
}

fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit, ..HardState::default() }
}

fn members() -> ConfState {
    ConfState { voters: vec![1, 2, 3], learners: vec![4], ..ConfState::default() }
}

fn write_all(directory: &Path) {
    let (store, _) = open(directory, Start::New(&Log::new(&[1, 2, 3])));
    let append = |group, term, commit, indexes: std::ops::RangeInclusive<u64>| {
        for index in indexes {
            let hard_state = Some(hard_state(term, 2, commit));
            let entries = vec![entry(index, term)];
            let write = LogWrite { number: 0, snapshot: None, hard_state, entries, must_sync: true };
            store.write(group, &write).expect("a sound disk");
        }
    };
    store.open_group(OTHER_GROUP, Start::New(&Log::new(&[3]))).expect("a sound disk");
    append(OTHER_GROUP, 1, 1, 2..=5);
    append(GROUP, 1, 1, 2..=30);
    append(GROUP, 2, 25, 27..=39);
    store.compact(GROUP, LogPosition { index: 30, term: 2 }, &members()).expect("a sound disk");
    let far = LogPosition { index: 1000, term: 4 };
    store.restart_after(OTHER_GROUP, far, &members()).expect("a sound disk");
    append(GROUP, 3, 39, 40..=42);
    append(OTHER_GROUP, 5, 1000, 1001..=1001);
}

/// A copy of a golden directory. With `FENCEPOST_WRITE_GOLDEN`, creates the directory first if it is missing.
fn golden(name: &str) -> Directory {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("FENCEPOST_WRITE_GOLDEN").is_some() && !golden.exists() {
        write_all(&golden);
        // It is empty, and opening a directory creates it.
        fs::remove_file(golden.join("log/LOCK")).expect("opening created it");
    }
    assert!(
        golden.exists(),
        "{name} is missing: restore it from version control; the top of this file says how to make a new one"
    );
    Directory::copy_of(&golden)
}

#[track_caller]
fn assert_log(log: &Log, before: LogPosition, state: &HardState, entries: &[Entry]) {
    let found = log.initial_state().expect("a log knows its state");
    assert_eq!((&found.hard_state, &found.conf_state), (state, &members()));
    let first = log.first_index().expect("a log knows its beginning");
    assert_eq!((first - 1, log.term(first - 1)), (before.index, Ok(before.term)));
    assert_eq!(log.entries().cloned().collect::<Vec<_>>(), entries);
}

#[test]
fn a_directory_of_format_1_is_read_as_before_and_can_be_written() {
    let directory = golden("log-1");
    let files = directory.files();
    let rewritten = files.iter().find(|(path, _)| path.extension().is_some_and(|suffix| suffix == "rewrite"));
    assert!(rewritten.is_some_and(|(_, bytes)| bytes.len() > 100), "something was rewritten: {:?}", files.keys());
    assert!(files.values().map(Vec::len).sum::<usize>() < 10_000, "the files are small");

    let (store, log) = open(&directory.0, Start::Again);
    let entries: Vec<Entry> =
        (31..=39).map(|index| entry(index, 2)).chain((40..=42).map(|index| entry(index, 3))).collect();
    assert_log(&log, LogPosition { index: 30, term: 2 }, &hard_state(3, 2, 39), &entries);
    let other = store.open_group(OTHER_GROUP, Start::Again).expect("it is there");
    assert_log(&other, LogPosition { index: 1000, term: 4 }, &hard_state(5, 2, 1000), &[entry(1001, 5)]);
    drop(store);
    assert_can_be_written(&directory, log);
}

fn assert_can_be_written(directory: &Directory, mut log: Log) {
    let (store, _) = open(&directory.0, Start::Again);
    let write = LogWrite { number: 0, snapshot: None, hard_state: None, entries: vec![entry(43, 3)], must_sync: true };
    store.write(GROUP, &write).expect("a sound disk");
    drop(store);
    log.persist(&write);
    let (_, again) = open(&directory.0, Start::Again);
    assert!(again.entries().eq(log.entries()), "the log ends at {:?}", again.last());
}
