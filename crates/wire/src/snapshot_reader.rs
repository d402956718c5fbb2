//! Reads a snapshot: bytes go in, in pieces of any size, and records come out. It does no I/O: the caller brings the bytes.
//!
//! A record is given out only after the sum of its chunk was checked. Whether the snapshot is complete is known only at its end: the
//! caller must not use the records before [`SnapshotReader::finish`] succeeds.

use fencepost_core::{FormatVersion, KnownVersions, Record};

use crate::bounds::{CHUNK_PACKED_BYTES_MAX, CHUNK_RAW_BYTES_MAX, RECORD_BYTES_MAX};
use crate::error::WireError;
use crate::snapshot::{Head, SnapshotHeader, damaged, take};
use crate::v1 as wire;
use crate::{from_wire, strict};

/// The most bytes that LZ4 makes out of one byte. A block that claims more is damaged, and nothing is allocated for it. A property of
/// LZ4, so it is not in `bounds.rs`.
const EXPANSION_MAX: usize = 255;

/// Turns the bytes of a snapshot into records. [`SnapshotWriter`](crate::SnapshotWriter) has an example.
#[derive(Debug)]
pub struct SnapshotReader {
    /// The formats that it reads.
    known: KnownVersions,
    /// Bytes that were fed: at most one incomplete chunk, and the bytes of the last `feed`.
    pending: Vec<u8>,
    /// How many bytes of `pending` were read.
    pending_read: usize,
    /// The records of the current chunk, each after its length.
    raw: Vec<u8>,
    /// How many bytes of `raw` were given out.
    raw_read: usize,
    header: Option<SnapshotHeader>,
    header_sum: u32,
    /// The sum over the header and every chunk so far.
    sum: u32,
    chunks: u32,
    records: u64,
    /// The trailer was read.
    done: bool,
    /// The first error. After it nothing more is read.
    failed: Option<WireError>,
}

impl SnapshotReader {
    /// A reader for snapshots in these formats.
    pub fn new(known: KnownVersions) -> SnapshotReader {
        SnapshotReader {
            known,
            pending: Vec::new(),
            pending_read: 0,
            raw: Vec::new(),
            raw_read: 0,
            header: None,
            header_sum: 0,
            sum: 0,
            chunks: 0,
            records: 0,
            done: false,
            failed: None,
        }
    }

    /// Takes the next bytes. They stay in memory until they are read, so call [`next_record`](SnapshotReader::next_record) until it
    /// returns `None` before the next `feed`.
    pub fn feed(&mut self, bytes: &[u8]) {
        // Only here, not after each chunk: for a caller that feeds a whole file at once, each drain would move all the rest.
        self.pending.drain(..self.pending_read);
        self.pending_read = 0;
        self.pending.extend_from_slice(bytes);
    }

    /// The header, after it was fed and `next_record` was called.
    pub fn header(&self) -> Option<&SnapshotHeader> {
        self.header.as_ref()
    }

    /// The next record. `None` if more bytes are needed, or the trailer was reached.
    ///
    /// # Errors
    /// [`WireError`] if the format is not known, or the snapshot is damaged, or chunks are missing or out of order. Every later call
    /// returns the same error.
    pub fn next_record(&mut self) -> Result<Option<Record>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = self.read_on();
        self.failed = next.as_ref().err().cloned();
        next
    }

    /// Confirms that the snapshot is complete, and returns its header.
    ///
    /// # Errors
    /// [`WireError`] if the snapshot is not complete, or not all of its records were read.
    pub fn finish(mut self) -> Result<SnapshotHeader, WireError> {
        let unread = self.next_record()?.is_some();
        match self.header {
            Some(header) if self.done && !unread => Ok(header),
            _ => Err(WireError::Truncated { records: self.records }),
        }
    }

    fn read_on(&mut self) -> Result<Option<Record>, WireError> {
        loop {
            if self.raw_read < self.raw.len() {
                return self.read_record().map(Some);
            }
            let pending = &self.pending[self.pending_read..];
            if self.done {
                return if pending.is_empty() { Ok(None) } else { Err(WireError::TrailingBytes) };
            }
            let fed = pending.len();
            let behind = if self.header.is_none() { self.read_header()? } else { self.read_chunk_or_trailer()? };
            let Some(behind) = behind else { return Ok(None) };
            self.pending_read += fed - behind;
        }
    }

    /// Returns how many pending bytes are left after the header. `None` if more bytes are needed.
    fn read_header(&mut self) -> Result<Option<usize>, WireError> {
        let pending = &self.pending[self.pending_read..];
        let Some(header) = SnapshotHeader::read(pending, self.known)? else { return Ok(None) };
        (self.header, self.header_sum, self.sum) = (Some(header.value), header.sum, header.sum);
        Ok(Some(header.behind.len()))
    }

    /// Returns how many pending bytes are left after it. `None` if more bytes are needed.
    fn read_chunk_or_trailer(&mut self) -> Result<Option<usize>, WireError> {
        let pending = &self.pending[self.pending_read..];
        let Some(head) = Head::read(pending)? else { return Ok(None) };
        let mut behind = head.behind;
        let (number, raw_bytes, packed_bytes) = match head.value {
            Head::Chunk { number, raw_bytes, packed_bytes } => (number, raw_bytes as usize, packed_bytes as usize),
            Head::Trailer { chunks, records } => {
                if crc32c::crc32c_append(self.sum, head.bytes) != head.sum {
                    return Err(damaged("the checksum of the trailer does not match"));
                }
                if (chunks, records) != (self.chunks, self.records) {
                    return Err(damaged("the trailer has a wrong number of chunks or records"));
                }
                self.done = true;
                return Ok(Some(behind.len()));
            }
        };
        // Checked before any field of the head is used.
        if crc32c::crc32c_append(self.header_sum, head.bytes) != head.sum {
            return Err(damaged("the head of a chunk does not match its checksum"));
        }
        if number != self.chunks {
            return Err(WireError::ChunkOutOfOrder { expected: self.chunks, found: number });
        }
        check_lengths(raw_bytes, packed_bytes)?;
        let Some(packed) = behind.split_off(..packed_bytes) else { return Ok(None) };
        let Some(sum) = take(&mut behind).map(u32::from_le_bytes) else { return Ok(None) };
        let (left, sum_so_far) = (behind.len(), crc32c::crc32c_append(self.sum, head.bytes));
        if crc32c::crc32c_append(sum_so_far, packed) != sum {
            return Err(damaged("a chunk does not match its checksum"));
        }
        self.raw.resize(raw_bytes, 0);
        if !lz4_flex::block::decompress_into(packed, &mut self.raw).is_ok_and(|length| length == raw_bytes) {
            return Err(damaged("a chunk cannot be decompressed"));
        }
        (self.raw_read, self.sum) = (0, sum);
        self.chunks += 1;
        Ok(Some(left))
    }

    fn read_record(&mut self) -> Result<Record, WireError> {
        let raw = &self.raw[self.raw_read..];
        let (bytes, behind) =
            strict::length_delimited(raw).ok_or_else(|| damaged("a record is longer than its chunk"))?;
        if bytes.len() > RECORD_BYTES_MAX {
            let (what, bytes) = ("a record", bytes.len() as u64);
            return Err(WireError::TooLarge { what, bytes, bytes_max: RECORD_BYTES_MAX });
        }
        let version = self.header.as_ref().map(|header| header.version).unwrap_or_default();
        let record = read_one(version, bytes)?;
        if matches!(&record, Record::Header(header) if header.version != version) {
            return Err(damaged("the state has another format version than the snapshot"));
        }
        self.raw_read = self.raw.len() - behind.len();
        self.records += 1;
        Ok(record)
    }
}

#[cfg_attr(not(feature = "made-up-version"), allow(unused_variables, reason = "one version has all records"))]
fn read_one(version: FormatVersion, bytes: &[u8]) -> Result<Record, WireError> {
    #[cfg(feature = "made-up-version")]
    if let Some(record) = crate::made_up::record(version, bytes) {
        return Ok(record);
    }
    from_wire::record(strict::message::<wire::Record>("a record", bytes)?)
}

/// Checks the lengths of a chunk before anything is kept or allocated for it.
fn check_lengths(raw_bytes: usize, packed_bytes: usize) -> Result<(), WireError> {
    for (bytes, bytes_max) in [(raw_bytes, CHUNK_RAW_BYTES_MAX), (packed_bytes, CHUNK_PACKED_BYTES_MAX)] {
        if bytes > bytes_max {
            return Err(WireError::TooLarge { what: "a chunk of a snapshot", bytes: bytes as u64, bytes_max });
        }
    }
    match raw_bytes == 0 || raw_bytes / EXPANSION_MAX > packed_bytes {
        true => Err(damaged("a chunk claims an impossible length")),
        false => Ok(()),
    }
}
