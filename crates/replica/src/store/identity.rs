//! Two small files beside the log: `IDENTITY` says which node the log belongs to, `MARK` how far it is known to be durable.
//!
//! The identity is in a file of its own, not among the engine's keys, because opening the engine already changes files. So a log
//! of another node, or of an unknown format, is refused before a byte of it changes. It is text, so that a person can see whose
//! directory it is.
//!
//! The mark is the number of the last synced write. It is written after each sync and never synced itself, so it costs almost
//! nothing. It survives a crash of the process, but not always a crash of the machine. The mark is never too high. If the log ends
//! before the mark, acknowledged writes are lost, and the missing tail was not a torn write.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use raft_engine::env::{FileSystem, Handle};

use super::{Identity, StoreError, scan};

/// The format of the directory, of the keys and of the entries' outer shape.
pub(super) const FORMAT_VERSION: u32 = 1;
const FIRST_WORD: &str = "fencepost-log";
const MARK_BYTES: usize = 12;

/// Compares the identity file with this node's identity. `false` if there is no file.
pub(super) fn check<F: FileSystem>(file_system: &F, path: &Path, identity: Identity) -> Result<bool, StoreError> {
    match read(file_system, path)? {
        Some(found) if found != identity => Err(StoreError::Foreign { found, expected: identity }),
        found => Ok(found.is_some()),
    }
}

/// The identity in the file, if there is one.
pub(super) fn read<F: FileSystem>(file_system: &F, path: &Path) -> Result<Option<Identity>, StoreError> {
    let bytes = match scan::read(file_system, path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io("read", path, error)),
    };
    let damaged = |reason: &str| StoreError::Damaged { place: path.into(), reason: reason.into() };
    let text = String::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let mut words = text.split_whitespace();
    if words.next() != Some(FIRST_WORD) {
        return Err(damaged("it does not begin like an identity file"));
    }
    let format = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| damaged("it names no format"))?;
    // Before the checksum: a newer format may have it elsewhere.
    if format > FORMAT_VERSION {
        return Err(StoreError::NewerFormat { found: format, known: FORMAT_VERSION });
    }
    let mut number = |name: &str| {
        (words.next() == Some(name))
            .then(|| words.next())
            .flatten()
            .and_then(|word| u128::from_str_radix(word, 16).ok())
    };
    let (Some(cluster), Some(node)) = (number("cluster"), number("node")) else {
        return Err(damaged("its cluster or node cannot be read"));
    };
    let found = Identity { cluster, node: node as u64 };
    // This compares all bytes, including the checksum.
    if text != encode(found) {
        return Err(damaged("its checksum does not match"));
    }
    Ok(Some(found))
}

/// Writes the identity to a temporary file, syncs it and renames it. The caller syncs the directory.
pub(super) fn write<F: FileSystem>(file_system: &F, path: &Path, identity: Identity) -> io::Result<()> {
    let aside = path.with_extension("new");
    let handle = Arc::new(file_system.create(&aside)?);
    handle.truncate(0)?;
    file_system.new_writer(handle.clone())?.write_all(encode(identity).as_bytes())?;
    handle.sync()?;
    file_system.rename(aside.as_path(), path)
}

fn encode(identity: Identity) -> String {
    let Identity { cluster, node } = identity;
    let text = format!("{FIRST_WORD} {FORMAT_VERSION}\ncluster {cluster:032x}\nnode {node:x}\n");
    let checksum = crc32fast::hash(text.as_bytes());
    format!("{text}checksum {checksum:08x}\n")
}

/// The file with the number of the last synced write.
pub(super) struct Mark<F: FileSystem>(F::Writer);

impl<F: FileSystem> Mark<F> {
    /// Opens or creates the file, and returns its number. An unreadable mark counts as zero: the log is then checked by itself alone.
    pub(super) fn open(file_system: &F, path: &Path) -> io::Result<(Mark<F>, u64)> {
        let handle = Arc::new(file_system.create(path)?);
        let bytes = scan::read(file_system, path)?;
        let number = <[u8; MARK_BYTES]>::try_from(bytes).ok().filter(|bytes| encode_mark(decode_mark(bytes)) == *bytes);
        Ok((Mark(file_system.new_writer(handle)?), number.map_or(0, |bytes| decode_mark(&bytes))))
    }

    pub(super) fn write(&mut self, number: u64) -> io::Result<()> {
        self.0.seek(SeekFrom::Start(0))?;
        self.0.write_all(&encode_mark(number))
    }
}

fn encode_mark(number: u64) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..8]);
    bytes[8..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn decode_mark(bytes: &[u8; MARK_BYTES]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("a mark is longer than eight bytes"))
}
