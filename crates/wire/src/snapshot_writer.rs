//! Writes a snapshot: records go in, finished chunks come out as bytes. It does no I/O: the caller stores the bytes.
//!
//! It needs memory for one chunk before and after compression, however large the state is.

use fencepost_core::Record;
use prost::Message;

use crate::bounds::{CHUNK_RECORD_BYTES, RECORD_BYTES_MAX};
use crate::error::WireError;
use crate::snapshot::{Head, SnapshotHeader};
use crate::to_wire;

/// Turns records into the bytes of a snapshot, chunk by chunk.
///
/// ```
/// use fencepost_core::{KnownVersions, LockState};
/// use fencepost_wire::{SnapshotHeader, SnapshotReader, SnapshotWriter};
///
/// let state = LockState::new(1);
/// let header = SnapshotHeader { log_index: 12, state_hash: state.state_hash(), ..SnapshotHeader::default() };
/// let mut file = Vec::new();
/// let mut writer = SnapshotWriter::new(&header);
/// for record in state.records() {
///     writer.push(&record)?;
///     file.extend(writer.take().unwrap_or_default());
/// }
/// file.extend(writer.finish());
///
/// let mut reader = SnapshotReader::new(KnownVersions::THIS_BUILD);
/// let mut records = Vec::new();
/// for piece in file.chunks(1000) {
///     reader.feed(piece);
///     while let Some(record) = reader.next_record()? {
///         records.push(record);
///     }
/// }
/// assert_eq!(reader.finish()?, header);
/// let restored = LockState::restore(2, records)?;
/// assert_eq!(restored.state_hash(), header.state_hash);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SnapshotWriter {
    /// The records of the current chunk, each after its length.
    raw: Vec<u8>,
    /// Finished bytes that were not taken yet.
    finished: Vec<u8>,
    header_sum: u32,
    /// The sum over the header and every chunk so far.
    sum: u32,
    chunks: u32,
    records: u64,
}

impl SnapshotWriter {
    /// Begins a snapshot.
    pub fn new(header: &SnapshotHeader) -> SnapshotWriter {
        let (finished, header_sum) = header.write();
        SnapshotWriter { raw: Vec::new(), finished, header_sum, sum: header_sum, chunks: 0, records: 0 }
    }

    /// Adds a record. The caller adds records in the order of [`LockState::records`](fencepost_core::LockState::records).
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if the record is larger than any record of the core. Then nothing was added.
    pub fn push(&mut self, record: &Record) -> Result<(), WireError> {
        let before = self.raw.len();
        append_record(record, &mut self.raw);
        let bytes = self.raw.len() - before;
        if bytes > RECORD_BYTES_MAX {
            self.raw.truncate(before);
            return Err(WireError::TooLarge { what: "a record", bytes: bytes as u64, bytes_max: RECORD_BYTES_MAX });
        }
        self.records += 1;
        if self.raw.len() >= CHUNK_RECORD_BYTES {
            self.finish_chunk();
        }
        Ok(())
    }

    /// The bytes finished since the last call, if there are any: the header and complete chunks. A caller that takes them after each
    /// record never holds more than one chunk.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        (self.chunks > 0 && !self.finished.is_empty()).then(|| std::mem::take(&mut self.finished))
    }

    /// The remaining bytes, with the trailer. Without them the snapshot is incomplete.
    pub fn finish(mut self) -> Vec<u8> {
        if !self.raw.is_empty() {
            self.finish_chunk();
        }
        let head = Head::Trailer { chunks: self.chunks, records: self.records }.write();
        self.finished.extend(head);
        self.finished.extend(crc32c::crc32c_append(self.sum, &head).to_le_bytes());
        self.finished
    }

    fn finish_chunk(&mut self) {
        let packed = lz4_flex::block::compress(&self.raw);
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("a chunk is bounded far below 4 GiB");
        let (raw_bytes, packed_bytes) = (length(&self.raw), length(&packed));
        let head = Head::Chunk { number: self.chunks, raw_bytes, packed_bytes }.write();
        self.sum = crc32c::crc32c_append(crc32c::crc32c_append(self.sum, &head), &packed);
        self.finished.extend(head);
        self.finished.extend(crc32c::crc32c_append(self.header_sum, &head).to_le_bytes());
        self.finished.extend(packed);
        self.finished.extend(self.sum.to_le_bytes());
        self.chunks += 1;
        self.raw.clear();
    }
}

fn append_record(record: &Record, bytes: &mut Vec<u8>) {
    #[cfg(feature = "made-up-version")]
    if let Some(record) = crate::made_up::record_to_wire(record) {
        return record.encode_length_delimited(bytes).expect("a Vec grows as needed");
    }
    to_wire::record(record).encode_length_delimited(bytes).expect("a Vec grows as needed");
}
