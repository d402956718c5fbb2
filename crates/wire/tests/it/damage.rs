//! All damage to a snapshot is found, and the error says what to do. Log entries have no checksum of their own, because the log engine
//! has one for each record. So of a damaged entry, only unreadable bytes are found here.

use crate::forge::{Forged, read, write};
use crate::generator::Generator;
use fencepost_core::bounds::{DEADLOCK_STEPS_MAX, NAME_BYTES_MAX, OWNER_BYTES_MAX};
use fencepost_core::{
    AnswerRecord, Cycle, CycleLink, FormatVersion, GrantId, KnownVersions, LogicalMs, Mode, Name, Outcome, OwnerName,
    Record, RequestNumber, SessionId,
};
use fencepost_wire::{
    Members, SnapshotHeader, SnapshotReader, SnapshotWriter, WallClock, WireError, bounds, decode, encode,
};

const HEADER: SnapshotHeader = SnapshotHeader {
    version: FormatVersion::FIRST,
    cluster_id: 0xC1,
    group_id: 1,
    log_index: 1_000,
    log_term: 7,
    state_hash: 0xABCD,
    members: Members::NONE,
    wall_clock: WallClock::NONE,
};

fn records(seed: u64, count: usize) -> Vec<Record> {
    let mut random = Generator::new(seed);
    (0..count).map(|_| random.record()).collect()
}

/// The header, three chunks or more, and the trailer, as separate parts.
fn parts_of_a_snapshot() -> Vec<Vec<u8>> {
    let mut pieces = write(&HEADER, &records(5, 4_000)).into_iter();
    let first = pieces.next().expect("a snapshot has bytes");
    let last_with_trailer = pieces.next_back().expect("the records fill several chunks");
    let (header, first) = first.split_at(crate::forge::header_bytes(&first));
    let (last, trailer) = last_with_trailer.split_at(last_with_trailer.len() - 20);
    let mut parts = vec![header.to_vec(), first.to_vec()];
    parts.extend(pieces);
    parts.extend([last, trailer].into_iter().filter(|part| !part.is_empty()).map(<[u8]>::to_vec));
    assert!(parts.len() >= 5, "a header, three chunks and a trailer");
    assert_eq!(read(&parts.concat(), 4_096).map(|(header, records)| (header, records.len())), Ok((HEADER, 4_000)));
    parts
}

fn error_of(bytes: &[u8]) -> WireError {
    read(bytes, 10_000).expect_err("this snapshot is damaged")
}

#[test]
fn every_flipped_bit_of_a_snapshot_is_found() {
    let bytes = write(&SnapshotHeader { members: crate::forge::some_members(), ..HEADER }, &records(2, 6)).concat();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[place] ^= 1 << bit;
            assert!(read(&flipped, usize::MAX).is_err(), "bit {bit} of byte {place}");
        }
    }
    println!("flipped each of {} bits of a snapshot: all found", bytes.len() * 8);
}

#[test]
fn every_cut_of_a_snapshot_is_found_and_says_to_fetch_it_again() {
    let bytes = write(&SnapshotHeader { members: crate::forge::some_members(), ..HEADER }, &records(2, 6)).concat();
    for length in 0..bytes.len() {
        let error = error_of(&bytes[..length]);
        assert!(matches!(error, WireError::Truncated { .. }), "{length} bytes: {error}");
        assert!(error.to_string().contains("fetch it again"), "{error}");
    }
}

#[test]
fn a_chunk_that_is_missing_doubled_or_moved_is_found() {
    let parts = parts_of_a_snapshot();
    let mut missing = parts.clone();
    missing.remove(2);
    assert_eq!(error_of(&missing.concat()), WireError::ChunkOutOfOrder { expected: 1, found: 2 });
    let mut doubled = parts.clone();
    doubled.insert(2, parts[1].clone());
    assert_eq!(error_of(&doubled.concat()), WireError::ChunkOutOfOrder { expected: 1, found: 0 });
    let mut moved = parts.clone();
    moved.swap(1, 2);
    assert_eq!(error_of(&moved.concat()), WireError::ChunkOutOfOrder { expected: 0, found: 1 });
    // If the last chunk is missing, only the trailer shows it.
    let cut = [&parts[..parts.len() - 2], &parts[parts.len() - 1..]].concat();
    assert!(matches!(error_of(&cut.concat()), WireError::Damaged { .. }));
}

#[test]
fn a_chunk_of_another_snapshot_is_found() {
    let head = crate::forge::header_bytes(&write(&HEADER, &[]).concat());
    let other = SnapshotHeader { log_index: HEADER.log_index + 1, ..HEADER };
    let chunk = |header: &SnapshotHeader| write(header, &records(3, 5)).concat().split_off(head);
    let mixed = [&write(&HEADER, &records(3, 5)).concat()[..head], &chunk(&other)].concat();
    assert!(matches!(error_of(&mixed), WireError::Damaged { .. }));
    // With the same header, the head of a chunk with other records may match, but only its own trailer does.
    let (mut one, two) = (write(&HEADER, &records(3, 5)).concat(), write(&HEADER, &records(4, 5)).concat());
    one.truncate(one.len() - 20);
    one.extend_from_slice(&two[two.len() - 20..]);
    assert!(matches!(error_of(&one), WireError::Damaged { .. }));
}

#[test]
fn bytes_after_the_end_are_found() {
    let mut bytes = write(&HEADER, &records(3, 5)).concat();
    let twice = bytes.repeat(2);
    bytes.push(0);
    assert_eq!(error_of(&bytes), WireError::TrailingBytes);
    assert_eq!(error_of(&twice), WireError::TrailingBytes);
}

#[test]
fn a_newer_format_says_to_upgrade_and_another_file_is_not_a_snapshot() {
    let newer = Forged::header(2, &HEADER).trailer(0, 0);
    let (found, known) = (FormatVersion::new(2).unwrap(), KnownVersions::THIS_BUILD);
    assert_eq!(error_of(&newer), WireError::NewerFormat { what: "the snapshot", found, known });
    assert!(error_of(&newer).to_string().contains("upgrade this node"));
    assert!(matches!(error_of(&Forged::header(0, &HEADER).trailer(0, 0)), WireError::Damaged { .. }));
    assert_eq!(error_of(b"PK\x03\x04"), WireError::NotASnapshot);
}

#[test]
fn a_chunk_with_a_false_length_is_refused_before_it_costs_memory() {
    let header = || Forged::header(1, &HEADER);
    let too_large = header().chunk_that_claims(0, u32::MAX, &[0; 100]).trailer(1, 0);
    assert!(matches!(error_of(&too_large), WireError::TooLarge { .. }));
    let expands_too_far = header().chunk_that_claims(0, bounds::CHUNK_RAW_BYTES_MAX as u32, &[0; 100]).trailer(1, 0);
    assert!(matches!(error_of(&expands_too_far), WireError::Damaged { .. }));
    let no_block = header().chunk_that_claims(0, 1_000, &[0xFF; 100]).trailer(1, 0);
    assert!(matches!(error_of(&no_block), WireError::Damaged { .. }));
    assert!(matches!(error_of(&header().chunk_that_claims(0, 0, &[]).trailer(1, 0)), WireError::Damaged { .. }));
}

#[test]
fn unknown_records_and_fields_are_never_skipped() {
    let with_record = |record: &[u8]| {
        let raw = [&[record.len() as u8], record].concat();
        Forged::header(1, &HEADER).chunk(0, &raw).trailer(1, 1)
    };
    let header_record = [8 << 3 | 2, 4, 1 << 3, 5, 5 << 3, 1];
    assert!(read(&with_record(&header_record), 10).is_ok());
    // An unknown kind of record, no kind at all, and an unknown field in a known kind.
    for record in [&[14 << 3 | 2, 0][..], &[], &[8 << 3 | 2, 4, 1 << 3, 5, 15 << 3, 1]] {
        assert_eq!(error_of(&with_record(record)), WireError::Unknown { what: "a record" }, "{record:?}");
    }
    // A grant of a lock in an unknown mode.
    let lock = [10, 1, b'n', 16, 9];
    let grant = [&[10, 11, 42, 9, 10, 7, 10, 5][..], &lock].concat();
    assert_eq!(error_of(&with_record(&grant)), WireError::Unknown { what: "a lock mode" });
    // A name that the core refuses.
    let grant = [&[10, 11, 42, 9, 10, 7, 10, 5][..], &[10, 1, b'\n', 16, 1]].concat();
    assert!(matches!(error_of(&with_record(&grant)), WireError::BadWord { what: "a resource name", .. }));
}

#[test]
fn after_an_error_the_reader_returns_the_same_error() {
    let mut reader = SnapshotReader::new(KnownVersions::THIS_BUILD);
    reader.feed(b"something else");
    assert_eq!(reader.next_record(), Err(WireError::NotASnapshot));
    reader.feed(&write(&HEADER, &records(3, 5)).concat());
    assert_eq!(reader.next_record(), Err(WireError::NotASnapshot));
    assert_eq!(reader.finish(), Err(WireError::NotASnapshot));
}

/// The answer to a deadlock, with a cycle of this number of links, each as long as possible.
fn answer_with_cycle(links: usize) -> Record {
    let link = CycleLink {
        session: SessionId(u128::MAX),
        owner: Some(OwnerName::new(&"o".repeat(OWNER_BYTES_MAX)).unwrap()),
        number: RequestNumber(u64::MAX),
        waits_for: Name::new(&"n".repeat(NAME_BYTES_MAX)).unwrap(),
        wants: Mode::X,
        blocked_by: Some(GrantId(u64::MAX)),
    };
    Record::Answer(AnswerRecord {
        session: SessionId(u128::MAX),
        number: RequestNumber(u64::MAX),
        answered_at: LogicalMs(u64::MAX),
        outcome: Outcome::Deadlock(Box::new(Cycle { links: vec![link; links] })),
        given_back: true,
    })
}

#[test]
fn the_largest_record_that_the_core_can_make_is_written_and_read() {
    let largest = vec![answer_with_cycle(DEADLOCK_STEPS_MAX)];
    assert!(read(&write(&HEADER, &largest).concat(), usize::MAX) == Ok((HEADER, largest)));
}

#[test]
fn a_larger_record_is_refused_and_does_not_damage_the_snapshot() {
    let mut writer = SnapshotWriter::new(&HEADER);
    let few = records(3, 5);
    few.iter().for_each(|record| writer.push(record).unwrap());
    let too_large = answer_with_cycle(2 * DEADLOCK_STEPS_MAX);
    assert!(matches!(writer.push(&too_large), Err(WireError::TooLarge { what: "a record", .. })));
    assert_eq!(read(&writer.finish(), 1_000), Ok((HEADER, few)));
}

/// The log engine has a checksum for every record, so a flipped bit does not reach this decoder. If one did, the result would be an
/// error, another entry, or the same entry where the bit does not matter. It would never be a panic.
#[test]
fn a_flipped_bit_of_an_entry_is_left_to_the_log_engine() {
    let mut random = Generator::new(11);
    let entry = std::iter::repeat_with(|| random.entry()).find(|entry| entry.batch.operations.len() == 8);
    let entry = entry.expect("the generator never ends");
    let bytes = encode(&entry);
    let (mut errors, mut others, mut same) = (0, 0, 0);
    for place in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[place] ^= 1 << bit;
            match decode(&flipped, KnownVersions::THIS_BUILD) {
                Err(_) => errors += 1,
                Ok(other) if other != entry => others += 1,
                Ok(_) => same += 1,
            }
        }
    }
    println!("flipped each of {} bits of an entry: {errors} errors, {others} others, {same} the same", bytes.len() * 8);
    assert!(
        errors > 0 && others > 0,
        "if every flip were an error, entries would have a checksum, and this file's opening would be wrong"
    );
}
