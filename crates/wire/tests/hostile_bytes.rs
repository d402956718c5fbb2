//! Decoders neither panic nor allocate too much, whatever the bytes are: random bytes, and valid bytes with changes.
//!
//! Some snapshots get matching checksums, because a decoder reads nothing after a wrong checksum. This file has only one test, because
//! the test counts every allocation of the process.

#[path = "it/forge/mod.rs"]
mod forge;
#[path = "it/generator/mod.rs"]
mod generator;

use std::alloc::System;

use fencepost_core::KnownVersions;
use fencepost_wire::{Entry, SnapshotHeader, WireError, decode, encode};
use forge::{Forged, read, write};
use generator::Generator;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The most bytes that a decoder may allocate for each input byte. Short elements of a list cost the most: two bytes for an empty
/// element become a structure of 100 bytes and more, and a list doubles when it grows.
const ALLOCATED_PER_BYTE_MAX: usize = 150;
/// The most bytes in addition: error texts, the first elements of lists.
const ALLOCATED_BESIDES_MAX: usize = 8 * 1024;

const EXECUTIONS: usize = 300_000;

#[test]
fn decoders_neither_panic_nor_allocate_too_much() {
    let mut random = Generator::new(42);
    let (mut accepted, mut dearest) = (0, 0);
    for execution in 0..EXECUTIONS {
        let target = [Target::Entry, Target::Snapshot, Target::Records][execution % 3];
        let bytes = target.bytes(&mut random);
        let framed = target.framed(&bytes);
        let region = Region::new(ALLOCATOR);
        accepted += usize::from(target.decodes(&framed));
        let allocated = region.change().bytes_allocated;
        let allowed = ALLOCATED_BESIDES_MAX + ALLOCATED_PER_BYTE_MAX * bytes.len();
        assert!(allocated <= allowed, "execution {execution}: {allocated} bytes for {} of {target:?}", bytes.len());
        if bytes.len() > ALLOCATED_BESIDES_MAX {
            dearest = dearest.max(allocated / bytes.len());
        }
    }
    println!("{EXECUTIONS} executions, {accepted} accepted, at most {dearest} bytes allocated for one input byte");
    assert!(accepted > EXECUTIONS / 50, "too few inputs are accepted to test the inner decoders: {accepted}");
    assert!(accepted < EXECUTIONS / 2, "too many inputs are accepted to be hostile: {accepted}");
}

#[derive(Clone, Copy, Debug)]
enum Target {
    /// A log entry.
    Entry,
    /// A whole snapshot. After a change its checksums do not match.
    Snapshot,
    /// The records of a chunk, with matching checksums.
    Records,
}

impl Target {
    /// Random bytes, or valid bytes with a few changes.
    fn bytes(self, random: &mut Generator) -> Vec<u8> {
        let mut bytes = match (random.below(4), self) {
            (0, _) => return arbitrary(random),
            (1, Target::Entry) => return [encode(&Entry::default()), arbitrary(random)].concat(),
            (2, Target::Records | Target::Entry) if random.below(8) == 0 => return long_list(self, random),
            (_, Target::Entry) => encode(&random.entry()),
            (_, Target::Snapshot) => {
                let records = random.some(4, Generator::record);
                write(
                    &SnapshotHeader {
                        members: forge::some_members(),
                        wall_clock: forge::some_wall_clock(),
                        ..SnapshotHeader::default()
                    },
                    &records,
                )
                .concat()
            }
            (_, Target::Records) => {
                let records = random.some(3, Generator::record);
                raw_records(&write(&SnapshotHeader::default(), &records).concat())
            }
        };
        change(&mut bytes, random);
        bytes
    }

    fn framed(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Target::Entry | Target::Snapshot => bytes.to_vec(),
            // The number of records is not known here, so the trailer is left out.
            Target::Records => Forged::header(1, &SnapshotHeader::default()).chunk(0, bytes).bytes,
        }
    }

    fn decodes(self, bytes: &[u8]) -> bool {
        match self {
            Target::Entry => decode(bytes, KnownVersions::THIS_BUILD).is_ok(),
            Target::Snapshot => read(bytes, usize::MAX).is_ok(),
            Target::Records => matches!(read(bytes, usize::MAX), Err(WireError::Truncated { .. })),
        }
    }
}

fn arbitrary(random: &mut Generator) -> Vec<u8> {
    let length = random.below(200);
    (0..length).map(|_| random.bits() as u8).collect()
}

/// A long list of empty elements, or of the shortest valid ones: cheap to send, expensive to decode.
fn long_list(target: Target, random: &mut Generator) -> Vec<u8> {
    // The paths to the lists, as field numbers of log.proto and snapshot.proto.
    let ways: &[&[u32]] = match target {
        Target::Entry => &[&[6], &[7], &[6, 1, 5], &[7, 1, 6], &[7, 1, 7, 1]],
        Target::Snapshot | Target::Records => &[
            &[1, 5, 1, 1],
            &[2, 6, 1],
            &[3, 5, 4, 3],
            &[3, 5, 16, 1],
            &[3, 5, 21, 2],
            &[3, 5, 21, 3],
            &[3, 5, 21, 4],
            &[3, 5, 21, 5],
            &[4, 12],
            &[4, 13],
        ],
    };
    let way = ways[random.below(ways.len())];
    let (list, outer) = way.split_last().expect("no path is empty");
    let count = if random.below(20) == 0 { 20_000 } else { random.below(200) };
    // The decoder of an entry stops at the first invalid command, so its lists need the shortest valid command.
    let element = match way {
        [6] => field(1, &[]),
        [7] => field(1, &field(14, &[])),
        _ => Vec::new(),
    };
    let mut bytes = field(*list, &element).repeat(count);
    for number in outer.iter().rev() {
        bytes = field(*number, &bytes);
    }
    match target {
        Target::Entry => [&[8, 1][..], &bytes].concat(),
        Target::Snapshot | Target::Records => [varint(bytes.len() as u32), bytes].concat(),
    }
}

fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(bytes.len() as u32), bytes.to_vec()].concat()
}

fn varint(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7F {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// The records in the only chunk of a small snapshot. Empty if it has no chunk.
fn raw_records(snapshot: &[u8]) -> Vec<u8> {
    let head = forge::header_bytes(snapshot);
    let Some(packed) = snapshot.get(head + 20..snapshot.len() - 24) else { return Vec::new() };
    let raw_bytes = u32::from_le_bytes(snapshot[head + 8..head + 12].try_into().expect("four bytes"));
    lz4_flex::block::decompress(packed, raw_bytes as usize).expect("the writer has just compressed it")
}

/// Flips, overwrites, truncates, inserts or doubles a few bytes.
fn change(bytes: &mut Vec<u8>, random: &mut Generator) {
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let place = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[place] ^= 1 << random.below(8),
            1 => bytes[place] = random.bits() as u8,
            2 => bytes[place] = [0, 1, 0x7F, 0x80, 0xFF][random.below(5)],
            3 => bytes.truncate(place),
            4 => bytes.insert(place, random.bits() as u8),
            _ => {
                let doubled = bytes[place..(place + 1 + random.below(32)).min(bytes.len())].to_vec();
                bytes.splice(place..place, doubled);
            }
        }
    }
}
