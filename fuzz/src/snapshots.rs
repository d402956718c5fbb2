//! A snapshot as a peer sends it, a disk returns it or an operator restores it, and the lock state in it.
//!
//! Input: a whole snapshot, if it begins as one. Every other input is the records of one chunk, which get a header and valid checksums.
//! The fuzzing engine does not guess checksums, and the reader stops at the first wrong one.

use fencepost_core::{LockState, Record};
use fencepost_wire::{SnapshotHeader, WireError};

use crate::forge::{Forged, read, write};

/// What can be read is the same in pieces, and the same after it was written again. Records that make a state make a sound one, which
/// gives the same records.
pub fn check(input: &[u8]) {
    let read_whole = match input.starts_with(b"fpsnap") {
        true => read(input, usize::MAX),
        false => read_chunk(input),
    };
    if input.starts_with(b"fpsnap") {
        assert_eq!(read(input, 7), read_whole, "the pieces in which a snapshot comes change nothing");
    }
    let Ok((header, records)) = read_whole else { return };
    let written = write(&header, &records).concat();
    assert_eq!(read(&written, usize::MAX), Ok((header, records.clone())), "written again, the snapshot is the same");

    let Ok(state) = LockState::restore(1, records.clone()) else { return };
    assert!(state.records().eq(records), "a state gives the records that it was made of");
    assert_eq!(state.verify(), Ok(()), "the state is sound");
}

/// Reads records that stand in one chunk. How many there are is known after the first reading, so the trailer comes with the second.
fn read_chunk(raw: &[u8]) -> Result<(SnapshotHeader, Vec<Record>), WireError> {
    let forged = || Forged::header(1, &SnapshotHeader::default()).chunk(0, raw);
    match read(&forged().bytes, usize::MAX) {
        Err(WireError::Truncated { records }) => read(&forged().trailer(1, records), usize::MAX),
        other => other,
    }
}
