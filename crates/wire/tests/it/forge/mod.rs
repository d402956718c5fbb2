//! A second writer of the snapshot format, made from its description alone. Tests use it for snapshots with one wrong field and right
//! checksums, and to prove that the description is complete.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use fencepost_core::{KnownVersions, LogicalMs, Record};
use fencepost_wire::{Member, Members, SnapshotHeader, SnapshotReader, SnapshotWriter, WallClock, WireError};

/// A snapshot that is being written.
pub struct Forged {
    pub bytes: Vec<u8>,
    header_sum: u32,
    sum: u32,
}

impl Forged {
    pub fn header(format: u32, header: &SnapshotHeader) -> Forged {
        let mut bytes = b"fpsnap\r\n".to_vec();
        bytes.extend(format.to_le_bytes());
        let beside = beside_the_state(header);
        bytes.extend((48 + beside.len() as u32).to_le_bytes());
        bytes.extend(header.cluster_id.to_le_bytes());
        for number in [header.group_id, header.log_index, header.log_term, header.state_hash] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(beside);
        let sum = crc32c::crc32c(&bytes);
        bytes.extend(sum.to_le_bytes());
        Forged { bytes, header_sum: sum, sum }
    }

    pub fn chunk(self, number: u32, raw: &[u8]) -> Forged {
        self.chunk_that_claims(number, raw.len() as u32, &lz4_flex::block::compress(raw))
    }

    pub fn chunk_that_claims(mut self, number: u32, raw_bytes: u32, packed: &[u8]) -> Forged {
        let packed_bytes = packed.len() as u32;
        let head = [*b"CHNK", number.to_le_bytes(), raw_bytes.to_le_bytes(), packed_bytes.to_le_bytes()].concat();
        self.sum = crc32c::crc32c_append(crc32c::crc32c_append(self.sum, &head), packed);
        let head_sum = crc32c::crc32c_append(self.header_sum, &head);
        self.bytes.extend([&head, &head_sum.to_le_bytes()[..], packed, &self.sum.to_le_bytes()].concat());
        self
    }

    pub fn trailer(mut self, chunks: u32, records: u64) -> Vec<u8> {
        let head = [&b"DONE"[..], &chunks.to_le_bytes(), &records.to_le_bytes()].concat();
        let sum = crc32c::crc32c_append(self.sum, &head);
        self.bytes.extend([&head[..], &sum.to_le_bytes()].concat());
        self.bytes
    }
}

/// The message `BesideTheState` by hand.
fn beside_the_state(header: &SnapshotHeader) -> Vec<u8> {
    let rows: Vec<u8> = (SOME_TIMES.iter().filter(|_| header.wall_clock != WallClock::NONE))
        .flat_map(|(stamp, wall_clock)| {
            let row = [vec![1 << 3], varint(*stamp), vec![2 << 3], varint(*wall_clock)].concat();
            delimited(1, &row)
        })
        .collect();
    [delimited(1, &group_members(&header.members)), delimited(2, &rows)].concat()
}

/// The message `GroupMembers` by hand: numbers in packed lists, and members as messages.
fn group_members(members: &Members) -> Vec<u8> {
    let mut bytes = Vec::new();
    let lists = [&members.voters, &members.learners, &members.voters_outgoing, &members.learners_next];
    for (field, list) in (1_u8..).zip(lists) {
        let numbers: Vec<u8> = list.iter().flat_map(|number| varint(*number)).collect();
        if !numbers.is_empty() {
            bytes.extend(delimited(field, &numbers));
        }
    }
    if members.auto_leave {
        bytes.extend([5 << 3, 1]);
    }
    for member in members.directory.values() {
        let mut inner = vec![1 << 3];
        inner.extend(varint(member.node()));
        let texts = [Member::name, Member::peer_address, Member::client_address];
        for (field, text) in (2_u8..).zip(texts) {
            inner.extend(delimited(field, text(member).as_bytes()));
        }
        bytes.extend(delimited(6, &inner));
    }
    bytes
}

fn delimited(field: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![field << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 127 {
        bytes.push(number as u8 | 128);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Stamps and wall-clock times that are more than a second apart from each other.
const SOME_TIMES: [(u64, u64); 2] = [(5, 1_700_000_000_000), (70_000, 1_700_003_600_000)];

/// A table with two rows.
pub fn some_wall_clock() -> WallClock {
    let mut clock = WallClock::NONE;
    for (stamp, wall_clock_ms) in SOME_TIMES {
        clock.note(LogicalMs(stamp - 1), LogicalMs(stamp), wall_clock_ms);
    }
    clock
}

/// Members of every kind, in the middle of a change.
pub fn some_members() -> Members {
    let member = |node: u64, name| Member::new(node, name, "10.0.0.1:7201", "locks.example:7200").expect("a member");
    Members {
        voters: [1, 300, u64::MAX].into(),
        learners: [70_000].into(),
        voters_outgoing: [1, 2, 300].into(),
        learners_next: [2].into(),
        auto_leave: true,
        directory: [(1, member(1, "a")), (u64::MAX, member(u64::MAX, "b"))].into(),
    }
}

/// The length of the header of a snapshot, with its sum.
pub fn header_bytes(snapshot: &[u8]) -> usize {
    16 + u32::from_le_bytes(snapshot[12..16].try_into().expect("four bytes")) as usize + 4
}

/// The bytes of a snapshot, in the pieces that the writer finished.
pub fn write<'a>(header: &SnapshotHeader, records: impl IntoIterator<Item = &'a Record>) -> Vec<Vec<u8>> {
    let mut writer = SnapshotWriter::new(header);
    let mut pieces = Vec::new();
    for record in records {
        writer.push(record).expect("no record is too large");
        pieces.extend(writer.take());
    }
    pieces.push(writer.finish());
    pieces
}

/// Reads a snapshot that is fed in pieces of this size.
pub fn read(bytes: &[u8], piece_bytes: usize) -> Result<(SnapshotHeader, Vec<Record>), WireError> {
    let mut reader = SnapshotReader::new(KnownVersions::THIS_BUILD);
    let mut records = Vec::new();
    for piece in bytes.chunks(piece_bytes) {
        reader.feed(piece);
        while let Some(record) = reader.next_record()? {
            records.push(record);
        }
    }
    Ok((reader.finish()?, records))
}
