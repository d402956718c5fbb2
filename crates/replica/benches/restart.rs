//! How long a node takes to serve again with 1,000,000 locks in its snapshot and 100,000 entries behind it, the log read
//! from a real disk: `cargo bench -p fencepost-replica --bench restart`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock and the disk")]

use std::time::Instant;

use fencepost_core::{
    Acquire, Action, Batch, Epoch, Lock, LockMode, Locks, LogicalMs, Metadata, Name, Open, Operation, Principal,
    Request, RequestNumber, SecretHash, Seen, SessionId, Terms, Ttl, Wait,
};
use fencepost_replica::store::{Identity, LogStore, Start};
use fencepost_replica::{
    GROUP_BEGINS, GroupId, Log, LogPosition, LogWrite, Nanos, Output, Replica, Settings, SnapshotInfo, make_snapshot,
};
use raft::eraftpb::{ConfState, Entry, HardState};

const LOCKS: u64 = 1_000_000;
const LOCKS_PER_SESSION: u64 = 5_000;
const LOCKS_PER_ENTRY: u64 = 500;
const ENTRIES_BEHIND: u64 = 100_000;
const GROUP: GroupId = GroupId { cluster: 1, group: 1 };

fn open(session: u64) -> Operation {
    Operation::Open(Open {
        session: SessionId(u128::from(session) + 1),
        secret_hash: SecretHash([0; 32]),
        principal: Principal::new("bench").expect("a plain name"),
        ttl: Ttl::new(3_600_000).expect("in bounds"),
        metadata: Metadata::default(),
    })
}

fn lock(session: u64, number: u64, name: u64) -> Operation {
    let name = Name::new(&format!("orders/lock-{name:08}")).expect("a plain name");
    let locks = Locks::from_buf([Lock { name, mode: LockMode::Exclusive }]);
    Operation::Request(Request {
        session: SessionId(u128::from(session) + 1),
        epoch: Epoch(1),
        number: RequestNumber(number),
        seen: Seen { mark: number - 1 - (number - 1) % LOCKS_PER_ENTRY, ..Seen::default() },
        action: Action::Acquire(Acquire { locks, owner: None, wait: Wait::No, terms: Terms::default() }),
    })
}

fn entry(index: u64, operations: Vec<Operation>) -> Entry {
    let batch = Batch { operations, ..Batch::default() };
    let lock_entry = fencepost_wire::Entry { term: 1, stamp: LogicalMs(0), wall_clock_ms: None, batch, proof: None };
    Entry { index, term: 1, data: fencepost_wire::encode(&lock_entry).into(), ..Entry::default() }
}

fn main() {
    let directory = std::env::temp_dir().join(format!("fencepost-restart-{}", std::process::id()));
    let mut index = GROUP_BEGINS.index;
    let mut next = |operations| {
        index += 1;
        entry(index, operations)
    };
    let sessions = LOCKS / LOCKS_PER_SESSION;
    let mut before = vec![next((0..sessions).map(open).collect())];
    for session in 0..sessions {
        for first in (0..LOCKS_PER_SESSION).step_by(LOCKS_PER_ENTRY as usize) {
            let numbers = first + 1..=first + LOCKS_PER_ENTRY;
            before.push(next(
                numbers.map(|number| lock(session, number, session * LOCKS_PER_SESSION + number)).collect(),
            ));
        }
    }
    let position = LogPosition { index: before.last().map_or(0, |entry| entry.index), term: 1 };
    let behind: Vec<Entry> = (1..=ENTRIES_BEHIND)
        .map(|number| next(vec![lock(number % sessions, LOCKS_PER_SESSION + 1 + number / sessions, LOCKS + number)]))
        .collect();
    let started = Instant::now();
    let (snapshot, _) = make_snapshot(GROUP, None, &[1], before.iter().cloned(), position).expect("sound entries");
    println!("snapshot of {LOCKS} locks made from its entries in {:.2?}, {} bytes", started.elapsed(), snapshot.len());

    let identity = Identity { cluster: GROUP.cluster, node: 1 };
    let (store, _) = LogStore::open(&directory, identity, 1, Start::New(&Log::new(&[1]))).expect("an empty place");
    let members = ConfState { voters: vec![1], ..ConfState::default() };
    let info = SnapshotInfo { position, members };
    let install = |entries, snapshot| LogWrite {
        number: 0,
        snapshot,
        hard_state: Some(HardState { term: 1, vote: 1, commit: position.index, ..HardState::default() }),
        entries,
        must_sync: true,
    };
    store.write(1, &install(Vec::new(), Some((info, snapshot.clone().into())))).expect("a sound disk");
    for chunk in behind.chunks(1_000) {
        store.write(1, &install(chunk.to_vec(), None)).expect("a sound disk");
    }
    drop(store);

    let started = Instant::now();
    let (store, log) = LogStore::open(&directory, identity, 1, Start::Again).expect("a sound log");
    let read = started.elapsed();
    let endless = (u64::MAX, u64::MAX, u64::MAX);
    let mut settings = Settings::new(1, GROUP, 1);
    (settings.snapshot_every_entries, settings.snapshot_every_bytes, settings.log_bytes_max) = endless;
    let mut now = Nanos(0);
    let mut replica = Replica::new(settings, log, Some(&snapshot), now).expect("a sound snapshot");
    let restored = started.elapsed();
    while !replica.serves() {
        now = now.after_ms(100);
        for output in replica.turn(now).expect("the node goes on") {
            if let Output::Write(write) = output {
                store.write(1, &write).expect("a sound disk");
                replica.handle_persisted(write.number);
            }
        }
    }
    println!(
        "serves {} locks again after {:.2?}: log read in {read:.2?}, snapshot restored in {:.2?}, {ENTRIES_BEHIND} entries \
         applied in {:.2?}",
        replica.state().counts().grants,
        started.elapsed(),
        restored - read,
        started.elapsed() - restored,
    );
    drop(store);
    std::fs::remove_dir_all(&directory).expect("it was made here");
}
