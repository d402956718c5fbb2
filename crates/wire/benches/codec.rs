//! What the codecs cost: `cargo bench -p fencepost-wire`. Sizes are printed beside the times.

#![allow(missing_docs, reason = "a program, not a library")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fencepost_core::{
    Acquire, Action, Batch, Epoch, FormatVersion, GrantId, GrantRecord, Header, Held, KnownVersions, Lock, LockMode,
    Locks, LogicalMs, Metadata, Name, Operation, Principal, Record, Request, RequestNumber, SecretHash, Seen,
    SessionId, SessionRecord, Terms, Token, Ttl, Wait,
};
use fencepost_wire::{Entry, SnapshotHeader, SnapshotReader, SnapshotWriter, decode, encode_into};

const LOCKS: usize = 1_000_000;
const SESSIONS: usize = 200;

/// A session id, spread like random ids.
fn id(session: usize) -> SessionId {
    SessionId((session as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

/// One exclusive lock on a name of 20 bytes.
fn locks(lock: usize) -> Locks {
    let name = Name::new(&format!("orders/lock-{lock:08}")).expect("a plain name");
    Locks::from_buf([Lock { name, mode: LockMode::Exclusive }])
}

fn acquires(count: usize) -> Entry {
    let acquire = |lock: usize| {
        let (owner, wait, terms) = (None, Wait::Forever, Terms::default());
        Operation::Request(Request {
            session: id(lock),
            epoch: Epoch(1),
            number: RequestNumber(1_000 + lock as u64),
            seen: Seen { mark: 990 + lock as u64, ..Seen::default() },
            action: Action::Acquire(Acquire { locks: locks(lock), owner, wait, terms }),
        })
    };
    let batch = Batch { operations: (0..count).map(acquire).collect(), ..Batch::default() };
    let (version, stamp) = (FormatVersion::FIRST, LogicalMs(86_400_000));
    Entry { version, term: 5, stamp, wall_clock_ms: Some(1_700_000_000_000), batch, ..Entry::default() }
}

fn entries(c: &mut Criterion) {
    let mut group = c.benchmark_group("entry");
    for count in [1, 64, 1_024] {
        let entry = acquires(count);
        let mut bytes = Vec::new();
        encode_into(&entry, &mut bytes);
        println!("an entry of {count} acquires: {} bytes", bytes.len());
        group.throughput(Throughput::Elements(count as u64));
        let mut buffer = Vec::new();
        group.bench_function(format!("encode {count} acquires"), |b| {
            b.iter(|| {
                buffer.clear();
                encode_into(black_box(&entry), &mut buffer);
                buffer.len()
            });
        });
        group.bench_function(format!("decode {count} acquires"), |b| {
            b.iter_with_large_drop(|| decode(black_box(&bytes), KnownVersions::THIS_BUILD));
        });
    }
    group.finish();
}

/// The snapshot records of a state with [`LOCKS`] locks.
fn records() -> Vec<Record> {
    let header = Header { stamp: LogicalMs(86_400_000), last_token: LOCKS as u64, ..Header::default() };
    let session = |session| {
        Record::Session(SessionRecord {
            id: id(session),
            principal: Principal::new("payments").expect("a plain name"),
            secret_hash: SecretHash([7; 32]),
            ttl: Ttl::new(30_000).expect("a TTL in bounds"),
            metadata: Metadata::default(),
            opened_at: LogicalMs(1_000),
            opened_after_token: 0,
            epoch: Epoch(1),
            renewed_at: LogicalMs(86_390_000),
            seen_mark: 5_000,
            seen_ranges: Vec::new(),
            lost: Vec::new(),
        })
    };
    let grant = |lock| {
        Record::Grant(GrantRecord {
            id: GrantId(lock as u64 + 1),
            token: Token(lock as u64 + 1),
            session: id(lock % SESSIONS),
            owner: None,
            held: Held::Locks(locks(lock)),
            count: 1,
            granted_at: LogicalMs(1_000 + lock as u64 * 86),
            hold_until: None,
            terms: None,
        })
    };
    let sessions = (0..SESSIONS).map(session);
    [Record::Header(header)].into_iter().chain(sessions).chain((0..LOCKS).map(grant)).collect()
}

fn write(records: &[Record], mut keep: impl FnMut(Vec<u8>)) {
    let mut writer = SnapshotWriter::new(&SnapshotHeader::default());
    for record in records {
        writer.push(record).expect("a small record");
        if let Some(bytes) = writer.take() {
            keep(bytes);
        }
    }
    keep(writer.finish());
}

fn read(pieces: &[Vec<u8>]) -> u64 {
    let mut reader = SnapshotReader::new(KnownVersions::THIS_BUILD);
    let mut records = 0;
    for piece in pieces {
        reader.feed(piece);
        while let Some(record) = reader.next_record().expect("it was just written") {
            black_box(record);
            records += 1;
        }
    }
    reader.finish().expect("it was just written");
    records
}

fn snapshots(c: &mut Criterion) {
    let records = records();
    let mut pieces = Vec::new();
    write(&records, |bytes| pieces.push(bytes));
    let (bytes, largest) = (pieces.iter().map(Vec::len).sum::<usize>(), pieces.iter().map(Vec::len).max());
    println!("a snapshot of {LOCKS} locks: {bytes} bytes in {} pieces, the largest {largest:?}", pieces.len());
    let mut group = c.benchmark_group("snapshot of 1,000,000 locks");
    group.sample_size(10).throughput(Throughput::Elements(records.len() as u64));
    group.bench_function("write", |b| {
        b.iter(|| {
            let mut bytes = 0;
            write(black_box(&records), |piece| bytes += piece.len());
            bytes
        });
    });
    group.bench_function("read", |b| b.iter(|| assert_eq!(read(black_box(&pieces)), records.len() as u64)));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = entries, snapshots
}
criterion_main!(benches);
