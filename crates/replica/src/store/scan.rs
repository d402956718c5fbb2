//! Reads every log file before the engine does, and tells a torn tail from damage. It changes nothing.
//!
//! The engine alone would cut too much:
//! - If it cannot read a record of the newest file, it truncates the file there and drops every later record, synced or not.
//! - If files are missing in the middle, it drops all files before the gap.
//! - If a bit in the first bytes of a file has flipped, it empties the file.
//! - The byte that says whether entries are compressed has no checksum.
//!
//! The scan accounts for each byte. After the scan, the engine opens a log only if every record but the last one is whole.
//!
//! Records are numbered, and each number is one above the number of the record before, also from one file to the next. If a file was
//! cut between two records, or was deleted, a number is missing.
//!
//! A record is synced before the next one is written (see [`super::LogStore::write`]). So a crash can tear only the last record,
//! and a bad record with a good one after it is damage.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raft_engine::env::{FileSystem, Permission};

use super::StoreError;

/// The first bytes of each file: the engine's magic, its file format (2), and no alignment.
const FILE_HEADER: &[u8] = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0";
/// A record begins with its length and compression (8 bytes), and the offset of its footer (8 bytes).
const RECORD_HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 4;
/// Digits of the number in a file's name.
const NAME_DIGITS: usize = 16;

/// Checks all log files in a directory, and returns the number of the newest record that the engine has not rewritten.
///
/// # Errors
/// [`StoreError::Damaged`] if anything but the last record differs from what was written.
pub(super) fn check_directory<F: FileSystem>(file_system: &F, directory: &Path) -> Result<Option<u64>, StoreError> {
    let mut newest_number = None;
    for (suffix, numbered) in [(".raftlog", true), (".rewrite", false)] {
        let files = numbered_files(directory, suffix)?;
        if let Some(pair) = files.windows(2).find(|pair| pair[1].0 != pair[0].0 + 1) {
            let reason = format!("the log file before it, number {}, is missing", pair[1].0 - 1);
            return Err(StoreError::Damaged { place: pair[1].1.clone(), reason });
        }
        for (place, (file_number, path)) in files.iter().enumerate() {
            let damaged = |reason| StoreError::Damaged { place: path.clone(), reason };
            let bytes = read(file_system, path).map_err(|source| StoreError::io("read", path, source))?;
            let is_newest = place + 1 == files.len();
            for record in check_file(&bytes, *file_number, is_newest).map_err(damaged)? {
                if !numbered {
                    continue;
                }
                let number = record_number(record).ok_or_else(|| damaged("a record has no number".into()))?;
                if newest_number.is_some_and(|before: u64| number != before + 1) {
                    return Err(damaged(format!("record {number} is there, but the one before it is missing")));
                }
                newest_number = Some(number);
            }
        }
    }
    Ok(newest_number)
}

/// The whole of a file.
pub(super) fn read<F: FileSystem>(file_system: &F, path: &Path) -> std::io::Result<Vec<u8>> {
    let handle = Arc::new(file_system.open(path, Permission::ReadOnly)?);
    let mut bytes = Vec::new();
    file_system.new_reader(handle)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn numbered_files(directory: &Path, suffix: &str) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let failed = |source| StoreError::io("list", directory, source);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(number) = name.strip_suffix(suffix)
            && number.len() == NAME_DIGITS
            && let Ok(number) = number.parse()
        {
            files.push((number, path));
        }
    }
    files.sort();
    Ok(files)
}

/// The records of a file.
fn check_file(bytes: &[u8], file_number: u64, is_newest: bool) -> Result<Vec<&[u8]>, String> {
    let (mut records, mut at) = (Vec::new(), 0);
    if bytes.starts_with(FILE_HEADER) {
        at = FILE_HEADER.len();
        while let Some(length) = record_length(&bytes[at..], file_number) {
            records.push(&bytes[at..at + length]);
            at += length;
        }
        if at == bytes.len() {
            return Ok(records);
        }
    }
    if !is_newest {
        return Err(format!("the record at byte {at} is damaged, and newer files follow"));
    }
    // A client could send bytes that look like a record. They would have to be in the very record that a crash tore. Then an
    // operator replaces a node without need, and nothing is lost.
    match (at + 1..bytes.len()).find(|at| record_length(&bytes[*at..], file_number).is_some()) {
        Some(good) => Err(format!("the record at byte {at} is damaged, and a good record follows at byte {good}")),
        None => Ok(records),
    }
}

/// The number that the store writes into every record as its last item.
fn record_number(record: &[u8]) -> Option<u64> {
    // The store's group as a varint, then: a key-value item, a put, six bytes of key, the key, eight bytes of value.
    const BEFORE_NUMBER: &[u8] = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x03\x01\x06writes\x08";
    let (items, _checksum) = record.split_last_chunk::<CHECKSUM_BYTES>()?;
    let (items, number) = items.split_last_chunk()?;
    items.ends_with(BEFORE_NUMBER).then(|| u64::from_le_bytes(*number))
}

/// The length of the record at the start of these bytes, if all its checksums match.
fn record_length(bytes: &[u8], file_number: u64) -> Option<usize> {
    let word = |at| Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
    let (length_and_compression, footer) = (word(0)?, word(8)? as usize);
    // Compression is off (see `engine_config`).
    if length_and_compression & 0xff != 0 {
        return None;
    }
    let length = (length_and_compression >> 8) as usize;
    if footer < RECORD_HEADER_BYTES || footer > length || length > bytes.len() {
        return None;
    }
    let entries = &bytes[RECORD_HEADER_BYTES..footer];
    let entries_are_good = entries.is_empty() || checksum_agrees(entries, 0);
    // The engine mixes the file's number into the footer's checksum, so a record is valid only in its own file.
    (entries_are_good && checksum_agrees(&bytes[footer..length], file_number as u32)).then_some(length)
}

fn checksum_agrees(bytes: &[u8], mixed_in: u32) -> bool {
    let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else { return false };
    !content.is_empty() && crc32fast::hash(content) == u32::from_le_bytes(*checksum) ^ mixed_in
}
