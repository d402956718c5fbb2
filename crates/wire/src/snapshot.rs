//! The layout of a snapshot: a header, chunks of records, a trailer. The reasons and the rejected alternatives are in
//! `docs/decisions/0007-snapshot-format.md`.
//!
//! ```text
//! header   magic 8 | format 4 | length 4 | cluster 16 | group 8 | log index 8 | log term 8 | state hash 8 | beside | sum 4
//! chunk    "CHNK" | its number 4 | bytes before compression 4 | bytes after it 4 | sum 4 | LZ4 block | sum so far 4
//! trailer  "DONE" | number of chunks 4 | number of records 8 | sum so far 4
//! ```
//!
//! Numbers are little-endian. The header's length counts the bytes between it and the sum. What is beside the
//! state is a message `BesideTheState`: the members and the wall clock.
//! A chunk's block is a sequence of messages `Record`, each after its length as a varint. No record continues in the next chunk. Sums
//! are CRC-32C. The sum in a chunk's head starts from the header's sum, so no chunk of another snapshot fits. The "sum so far" runs
//! from the header over every head and block, so each chunk fits only after the chunks before it, and the trailer covers all.

use fencepost_core::{FormatVersion, KnownVersions};
use prost::Message;

use crate::bounds::SNAPSHOT_HEADER_BYTES_MAX;
use crate::error::WireError;
use crate::member::Members;
use crate::wall_clock::WallClock;
use crate::{strict, v1 as wire};

/// The header of a snapshot: everything before the first record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The format of the records: the active version of the state.
    pub version: FormatVersion,
    /// The cluster that the state belongs to. A node of another cluster refuses it.
    pub cluster_id: u128,
    /// The group within the cluster.
    pub group_id: u64,
    /// The index of the last log entry in the state.
    pub log_index: u64,
    /// The Raft term of that entry.
    pub log_term: u64,
    /// The hash of the state. The reader compares it with the hash of the restored state.
    pub state_hash: u64,
    /// The members as of that entry, so that a node can start from the snapshot alone.
    pub members: Members,
    /// The wall-clock times of stamps up to that entry. Not in the state hash.
    pub wall_clock: WallClock,
}

const WHAT: &str = "the snapshot";

const MAGIC: [u8; 8] = *b"fpsnap\r\n";
/// Magic, format and length: the same in every format, so that a newer one can be named.
const PREAMBLE_BYTES: usize = 16;
/// The numbers in the header before the message `BesideTheState`.
const HEADER_NUMBERS_BYTES: usize = 48;

const CHUNK: [u8; 4] = *b"CHNK";
const TRAILER: [u8; 4] = *b"DONE";
/// A head without its sum.
const HEAD_BYTES: usize = 16;

/// A value that was read, with the sum after it.
pub(crate) struct Summed<'a, T> {
    pub(crate) value: T,
    /// The bytes that the sum covers.
    pub(crate) bytes: &'a [u8],
    pub(crate) sum: u32,
    pub(crate) behind: &'a [u8],
}

impl SnapshotHeader {
    /// The header's bytes, and their sum.
    pub(crate) fn write(&self) -> (Vec<u8>, u32) {
        let SnapshotHeader { version, cluster_id, group_id, log_index, log_term, state_hash, members, wall_clock } =
            self;
        let (members, wall_clock) = (Some(members.to_wire()), Some(wall_clock.to_wire()));
        let beside = wire::BesideTheState { members, wall_clock }.encode_to_vec();
        let length = HEADER_NUMBERS_BYTES + beside.len();
        assert!(length <= SNAPSHOT_HEADER_BYTES_MAX, "the replica refuses changes beyond the bound of members");
        let mut bytes = Vec::with_capacity(PREAMBLE_BYTES + length + 4);
        bytes.extend(MAGIC);
        bytes.extend(version.get().to_le_bytes());
        bytes.extend((length as u32).to_le_bytes());
        bytes.extend(cluster_id.to_le_bytes());
        for number in [group_id, log_index, log_term, state_hash] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(beside);
        let sum = crc32c::crc32c(&bytes);
        bytes.extend(sum.to_le_bytes());
        (bytes, sum)
    }

    /// Reads the header at the start of the bytes, and checks its sum. `None` if it is incomplete.
    pub(crate) fn read(bytes: &[u8], known: KnownVersions) -> Result<Option<Summed<'_, SnapshotHeader>>, WireError> {
        let magic_so_far = bytes.len().min(MAGIC.len());
        if bytes[..magic_so_far] != MAGIC[..magic_so_far] {
            return Err(WireError::NotASnapshot);
        }
        let mut fields = bytes;
        let Some(_magic) = take::<8>(&mut fields) else { return Ok(None) };
        let Some(format) = take(&mut fields).map(u32::from_le_bytes) else { return Ok(None) };
        let Some(length) = take(&mut fields).map(u32::from_le_bytes) else { return Ok(None) };
        let length = length as usize;
        if length > SNAPSHOT_HEADER_BYTES_MAX {
            return Err(damaged("the header claims an impossible length"));
        }
        let Some((summed, mut behind)) = bytes.split_at_checked(PREAMBLE_BYTES + length) else { return Ok(None) };
        let Some(sum) = take(&mut behind).map(u32::from_le_bytes) else { return Ok(None) };
        if crc32c::crc32c(summed) != sum {
            return Err(damaged("the header does not match its checksum"));
        }
        let version = strict::format(WHAT, format, known)?;
        if length < HEADER_NUMBERS_BYTES {
            return Err(damaged("the header is too short for its format"));
        }
        let mut number = || take(&mut fields).map_or(0, u64::from_le_bytes);
        let cluster_id = u128::from(number()) | u128::from(number()) << 64;
        let (group_id, log_index, log_term, state_hash) = (number(), number(), number(), number());
        let beside: wire::BesideTheState = strict::message(WHAT, &summed[PREAMBLE_BYTES + HEADER_NUMBERS_BYTES..])?;
        let members = Members::from_wire(WHAT, &beside.members.unwrap_or_default())?;
        let wall_clock = WallClock::from_wire(WHAT, &beside.wall_clock.unwrap_or_default())?;
        let value =
            SnapshotHeader { version, cluster_id, group_id, log_index, log_term, state_hash, members, wall_clock };
        Ok(Some(Summed { value, bytes: summed, sum, behind }))
    }
}

/// The head of a chunk, or the trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    Chunk { number: u32, raw_bytes: u32, packed_bytes: u32 },
    Trailer { chunks: u32, records: u64 },
}

impl Head {
    pub(crate) fn write(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let (kind, first, second) = match self {
            Head::Chunk { number, raw_bytes, packed_bytes } => {
                (CHUNK, number, u64::from(raw_bytes) | u64::from(packed_bytes) << 32)
            }
            Head::Trailer { chunks, records } => (TRAILER, chunks, records),
        };
        bytes[..4].copy_from_slice(&kind);
        bytes[4..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Reads the head at the start of the bytes. `None` if it is incomplete. The caller must check the sum.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Summed<'_, Head>>, WireError> {
        let Some((head, mut behind)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(None) };
        let Some(sum) = take(&mut behind).map(u32::from_le_bytes) else { return Ok(None) };
        let mut fields = head;
        let kind = take::<4>(&mut fields).unwrap_or_default();
        let first = take(&mut fields).map_or(0, u32::from_le_bytes);
        let second = take(&mut fields).map_or(0, u64::from_le_bytes);
        let value = match kind {
            CHUNK => Head::Chunk { number: first, raw_bytes: second as u32, packed_bytes: (second >> 32) as u32 },
            TRAILER => Head::Trailer { chunks: first, records: second },
            _ => return Err(damaged("there is neither a chunk nor the trailer where one must be")),
        };
        Ok(Some(Summed { value, bytes: head, sum, behind }))
    }
}

/// Takes `COUNT` bytes off the front, if they are there.
pub(crate) fn take<const COUNT: usize>(bytes: &mut &[u8]) -> Option<[u8; COUNT]> {
    let (taken, behind) = bytes.split_first_chunk()?;
    *bytes = behind;
    Some(*taken)
}

pub(crate) fn damaged(detail: &str) -> WireError {
    WireError::Damaged { what: WHAT, detail: detail.to_owned() }
}
