//! Reads a snapshot: bytes go in, in pieces of any size, and records come out. Where the bytes come from is the caller's affair.
//!
//! A record is given out only when the sum of its chunk was right. That the snapshot is whole is known at its end alone:
//! until [`SnapshotReader::finish`] says so, what was read may be used for nothing.

use fencepost_core::{FormatVersion, KnownVersions, Record};

use crate::bounds::{CHUNK_PACKED_BYTES_MAX, CHUNK_RAW_BYTES_MAX, RECORD_BYTES_MAX};
use crate::error::WireError;
use crate::snapshot::{Head, SnapshotHeader, damaged, take};
use crate::v1 as wire;
use crate::{from_wire, strict};

/// LZ4 makes at most so many bytes out of one. A block that claims more is damaged, and nothing is allocated for it.
const EXPANSION_MAX: usize = 255;

/// Turns the bytes of a snapshot into records. [`SnapshotWriter`](crate::SnapshotWriter) has an example.
#[derive(Debug)]
pub struct SnapshotReader {
    /// The formats that it reads.
    known: KnownVersions,
    /// Bytes that were fed and not yet read: less than a chunk, and what was fed since the last call.
    pending: Vec<u8>,
    /// How much of `pending` was read.
    pending_read: usize,
    /// The records of the chunk that is being given out, each after its length.
    raw: Vec<u8>,
    /// How much of `raw` was given out.
    raw_read: usize,
    header: Option<SnapshotHeader>,
    header_sum: u32,
    /// The sum over the header and every chunk so far.
    sum: u32,
    chunks: u32,
    records: u64,
    /// The trailer was read.
    done: bool,
    /// What was wrong. From then on nothing is read any more.
    failed: Option<WireError>,
}

impl SnapshotReader {
    /// Begins to read, if it is written in a format that is known.
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

    /// Takes the next bytes. They are kept until the records before them were read: call
    /// [`next_record`](SnapshotReader::next_record) until it has no more before feeding on.
    pub fn feed(&mut self, bytes: &[u8]) {
        // Only here, and not after each chunk: a caller who feeds a whole file at once shall not pay for moving it each time.
        self.pending.drain(..self.pending_read);
        self.pending_read = 0;
        self.pending.extend_from_slice(bytes);
    }

    /// What the snapshot says about itself, once that was fed and a record was asked for.
    pub fn header(&self) -> Option<&SnapshotHeader> {
        self.header.as_ref()
    }

    /// The next record, or none if more bytes are needed or the trailer was reached.
    ///
    /// # Errors
    /// [`WireError`] if its format is not known, or it is damaged, cut, or mixed up. The same from then on.
    pub fn next_record(&mut self) -> Result<Option<Record>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = self.read_on();
        self.failed = next.as_ref().err().cloned();
        next
    }

    /// That the snapshot was read to its end and is whole.
    ///
    /// # Errors
    /// [`WireError`] if it is not, or if records of it were not asked for.
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

    /// How many bytes are left behind it; none if more are needed.
    fn read_header(&mut self) -> Result<Option<usize>, WireError> {
        let pending = &self.pending[self.pending_read..];
        let Some(header) = SnapshotHeader::read(pending, self.known)? else { return Ok(None) };
        (self.header, self.header_sum, self.sum) = (Some(header.value), header.sum, header.sum);
        Ok(Some(header.behind.len()))
    }

    /// How many bytes are left behind it; none if more are needed.
    fn read_chunk_or_trailer(&mut self) -> Result<Option<usize>, WireError> {
        let pending = &self.pending[self.pending_read..];
        let Some(head) = Head::read(pending)? else { return Ok(None) };
        let mut behind = head.behind;
        let (number, raw_bytes, packed_bytes) = match head.value {
            Head::Chunk { number, raw_bytes, packed_bytes } => (number, raw_bytes as usize, packed_bytes as usize),
            Head::Trailer { chunks, records } => {
                if crc32c::crc32c_append(self.sum, head.bytes) != head.sum {
                    return Err(damaged("the trailer does not match what came before it"));
                }
                if (chunks, records) != (self.chunks, self.records) {
                    return Err(damaged("the trailer counts other chunks or records than there are"));
                }
                self.done = true;
                return Ok(Some(behind.len()));
            }
        };
        // Before anything that the head says is believed.
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
            return Err(damaged("the state has another version than the snapshot"));
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

/// Whether a chunk can have such lengths, before anything is kept or allocated for it.
fn check_lengths(raw_bytes: usize, packed_bytes: usize) -> Result<(), WireError> {
    for (bytes, bytes_max) in [(raw_bytes, CHUNK_RAW_BYTES_MAX), (packed_bytes, CHUNK_PACKED_BYTES_MAX)] {
        if bytes > bytes_max {
            return Err(WireError::TooLarge { what: "a chunk of a snapshot", bytes: bytes as u64, bytes_max });
        }
    }
    match raw_bytes == 0 || raw_bytes / EXPANSION_MAX > packed_bytes {
        true => Err(damaged("a chunk cannot be as long as it says")),
        false => Ok(()),
    }
}
