//! Round trips through bytes: random commands and records of every kind, and the snapshot of a real state.

use crate::generator::Generator;
use fencepost_core::{
    Acquire, Action, Batch, Epoch, FormatVersion, KnownVersions, Lock, LockMode, LockState, LogicalMs, Metadata, Name,
    Open, Operation, Permits, Principal, Record, Request, RequestNumber, SecretHash, Seen, SessionId, TakePermits,
    Terms, Ttl, Wait,
};
use fencepost_wire::{SnapshotHeader, bounds, decode, encode, encode_into};

#[test]
fn commands_and_records_of_every_kind_survive_a_round_trip() {
    let mut random = Generator::new(1);
    for round in 0..4_000 {
        let entry = random.entry();
        let bytes = encode(&entry);
        assert_eq!(decode(&bytes, KnownVersions::THIS_BUILD), Ok(entry.clone()), "round {round}");
        let mut appended = b"before".to_vec();
        encode_into(&entry, &mut appended);
        assert_eq!(appended, [b"before", bytes.as_slice()].concat(), "round {round}");
    }
    let header = SnapshotHeader {
        version: FormatVersion::FIRST,
        cluster_id: u128::MAX - 5,
        group_id: 3,
        log_index: u64::MAX,
        log_term: 17,
        state_hash: 0x0123_4567_89AB_CDEF,
        members: crate::forge::some_members(),
        wall_clock: crate::forge::some_wall_clock(),
    };
    let mut pieces_most = 0;
    for round in 0..20 {
        let records: Vec<Record> = (0..random.below(5_000)).map(|_| random.record()).collect();
        let pieces = crate::forge::write(&header, &records);
        pieces_most = pieces_most.max(pieces.len());
        let piece_bytes = [7, 250, 4_096, usize::MAX][round % 4];
        assert!(crate::forge::read(&pieces.concat(), piece_bytes) == Ok((header.clone(), records)), "round {round}");
    }
    assert!(pieces_most >= 3, "no snapshot had several chunks: {pieces_most} pieces at most");
    assert_eq!(random.met.missing(), Vec::<&str>::new(), "never generated: generate them");
}

#[test]
fn snapshot_of_a_state_gives_the_same_state() {
    let state = busy_state(20_000);
    let records: Vec<Record> = state.records().collect();
    let header = SnapshotHeader { state_hash: state.state_hash(), log_index: 5, ..SnapshotHeader::default() };
    let pieces = crate::forge::write(&header, &records);
    assert!(pieces.len() > 2, "it takes several chunks");
    let (read_header, read) = crate::forge::read(&pieces.concat(), 10_000).unwrap();
    assert_eq!(read_header, header);
    assert!(read == records);
    let restored = LockState::restore(99, read).unwrap();
    assert_eq!(restored.state_hash(), header.state_hash);
}

#[test]
fn a_chunk_in_memory_is_bounded() {
    let state = busy_state(20_000);
    let records: Vec<Record> = state.records().collect();
    for piece in crate::forge::write(&SnapshotHeader::default(), &records) {
        assert!(piece.len() < 2 * bounds::CHUNK_RECORD_BYTES, "{} bytes at once", piece.len());
    }
}

#[test]
fn a_second_writer_made_from_the_description_writes_the_same_bytes() {
    let records: Vec<Record> = busy_state(10).records().collect();
    let header = SnapshotHeader {
        version: FormatVersion::FIRST,
        cluster_id: 7,
        group_id: 1,
        log_index: 2,
        log_term: 3,
        state_hash: 4,
        members: crate::forge::some_members(),
        wall_clock: crate::forge::some_wall_clock(),
    };
    let written = crate::forge::write(&header, &records).concat();
    let head = crate::forge::header_bytes(&written);
    // Header, head of the chunk with its sum, block, sum so far, trailer with its sum.
    let packed = &written[head + 20..written.len() - 4 - 20];
    let raw_bytes = u32::from_le_bytes(written[head + 8..head + 12].try_into().unwrap());
    let forged = crate::forge::Forged::header(1, &header).chunk_that_claims(0, raw_bytes, packed);
    assert_eq!(forged.trailer(1, records.len() as u64), written);
}

/// Sessions that hold locks and permits and wait for each other, with unseen answers.
fn busy_state(locks: u64) -> LockState {
    let mut state = LockState::new(1);
    let open = |session| {
        Operation::Open(Open {
            session: SessionId(session),
            secret_hash: SecretHash([session as u8; 32]),
            principal: Principal::new("payments").unwrap(),
            ttl: Ttl::new(30_000).unwrap(),
            metadata: Metadata::new(b"host-1").unwrap(),
        })
    };
    state.apply(LogicalMs(1_000), Batch { operations: (0..100).map(open).collect(), ..Batch::default() });
    for lock in 0..locks {
        let name = Name::new(&format!("/orders/{}/{}", lock % 7, lock / 3)).unwrap();
        let mode = [LockMode::Shared, LockMode::Exclusive][lock as usize % 2];
        let locks = [Lock { name, mode }].into_iter().collect();
        let (wait, terms) = (Wait::Forever, Terms::default());
        let permits = TakePermits {
            name: Name::new(&format!("pool-{}", lock % 50)).unwrap(),
            permits: Permits::new(1).unwrap(),
            limit: Some(Permits::new(3).unwrap()),
            wait,
            terms: Terms { hear_contended: true, ..Terms::default() },
        };
        let action = match lock % 10 {
            0 => Action::TakePermits(permits),
            _ => Action::Acquire(Acquire { locks, owner: None, wait, terms }),
        };
        let number = lock / 100 + 1;
        let seen = Seen { mark: number.saturating_sub(50), ..Seen::default() };
        let (session, epoch, number) = (SessionId(u128::from(lock % 100)), Epoch(1), RequestNumber(number));
        let operations = vec![Operation::Request(Request { session, epoch, number, seen, action })];
        state.apply(LogicalMs(2_000), Batch { operations, ..Batch::default() });
    }
    state
}
