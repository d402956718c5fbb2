//! One entry and one snapshot of each format version, as files that never change. Every later version must read the same from them. A
//! text file beside the bytes shows their content: one command or record on each line, as the core's `Debug` prints it.
//!
//! If this test fails, the files of old nodes can no longer be read: repair the code, not the bytes. Only the text may change, when the
//! core renames something. The files are written once, when a format version is new, by
//!
//! ```text
//! FENCEPOST_WRITE_GOLDEN=1 cargo test -p fencepost-wire --test it golden
//! ```
//!
//! This creates missing files, from commands and records of every kind, and changes no others.
#![allow(clippy::disallowed_methods, reason = "reads the golden files; the crate itself may not")]

use std::fmt::Debug;
use std::path::PathBuf;

use crate::generator::Generator;
use fencepost_core::{FormatVersion, KnownVersions, Record};
use fencepost_wire::{Entry, SnapshotHeader, StateProof, decode, encode};

#[test]
fn entry_of_format_1_is_read_and_written_as_before() {
    let bytes = golden("v1-entry.bin", KnownVersions::THIS_BUILD.newest() == FormatVersion::FIRST, || {
        encode(&entry_with_every_command())
    });
    let entry = decode(&bytes, KnownVersions::THIS_BUILD).unwrap();
    assert!(encode(&entry) == bytes, "the same entry gives the same bytes");
    let Entry { version, term, stamp, wall_clock_ms, batch, proof, transfer } = &entry;
    let head = line(&(version, term, stamp, wall_clock_ms, batch.raise_to, batch.failover_grace, proof, transfer));
    let text = [head].into_iter().chain(batch.renewals.iter().map(line)).chain(batch.operations.iter().map(line));
    compare_text("v1-entry.txt", text.collect());
}

/// Only reading is compared: the library may compress a block in another way, which does no harm.
#[test]
fn snapshot_of_format_1_is_read_as_before() {
    let bytes = golden("v1-snapshot.bin", KnownVersions::THIS_BUILD.newest() == FormatVersion::FIRST, || {
        let (header, records) = snapshot_with_every_record();
        crate::forge::write(&header, &records).concat()
    });
    let (header, records) = crate::forge::read(&bytes, 1_000).unwrap();
    compare_text("v1-snapshot.txt", [line(&header)].into_iter().chain(records.iter().map(line)).collect());
}

fn line(value: &impl Debug) -> String {
    format!("{value:?}\n")
}

fn compare_text(name: &str, text: String) {
    let expected = String::from_utf8(golden(name, true, || text.clone().into_bytes())).unwrap();
    for (at, (expected, found)) in (1..).zip(expected.lines().zip(text.lines())) {
        assert_eq!(found, expected, "{name}:{at}");
    }
    assert_eq!(text.len(), expected.len(), "{name} has another length");
}

/// The bytes of a golden file. With `FENCEPOST_WRITE_GOLDEN` and `may_be_new`, creates the file first if it is missing.
fn golden(name: &str, may_be_new: bool, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("FENCEPOST_WRITE_GOLDEN").is_some() && may_be_new && !path.exists() {
        std::fs::write(&path, make()).expect("the directory exists");
    }
    std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{name}: {error}. Restore it from version control; the top of this file says how to make a new one")
    })
}

/// Whether a variant whose name begins with one of these was not generated yet.
fn is_missing(random: &Generator, wanted: &[&str]) -> bool {
    random.met.missing().iter().any(|missing| wanted.iter().any(|wanted| missing.starts_with(wanted)))
}

fn entry_with_every_command() -> Entry {
    let mut random = Generator::brief(7);
    let proof = Some(StateProof { index: 1_000_000, state_hash: 0x0123_4567_89AB_CDEF });
    let transfer = Some(random.transfer());
    let mut entry = Entry { wall_clock_ms: Some(1_700_000_000_000), proof, transfer, ..random.entry() };
    entry.batch.raise_to = FormatVersion::new(2);
    while is_missing(
        &random,
        &["Renewal::", "Operation::", "Action::", "Act::", "LockMode::", "Wait::", "Scope::", "Verdict::"],
    ) {
        let more = random.batch();
        entry.batch.renewals.extend(more.renewals);
        entry.batch.operations.extend(more.operations);
    }
    entry
}

fn snapshot_with_every_record() -> (SnapshotHeader, Vec<Record>) {
    let header = SnapshotHeader {
        version: FormatVersion::FIRST,
        cluster_id: 0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF,
        group_id: 3,
        log_index: 1_000_001,
        log_term: 12,
        state_hash: 0x0123_4567_89AB_CDEF,
        members: crate::forge::some_members(),
        wall_clock: crate::forge::some_wall_clock(),
    };
    let commands = ["Renewal::", "Operation::", "Action::", "Act::", "Wait::", "Verdict::"];
    let mut random = Generator::brief(8);
    let mut records = Vec::new();
    while random.met.missing().iter().any(|missing| !commands.iter().any(|command| missing.starts_with(command))) {
        let before = random.met.missing().len();
        let record = random.record();
        // Only records with a new variant, so that the file stays small.
        if random.met.missing().len() < before {
            records.push(record);
        }
    }
    (header, records)
}
