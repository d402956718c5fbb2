//! A node with 1,000,000 locks on a real disk: how long it takes to serve again, with 100,000 entries after its snapshot, and how long
//! an operation takes while the node makes the next snapshot: `cargo bench -p fencepost-replica --bench restart`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock and the disk")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fencepost_core::{
    Acquire, Action, Batch, Epoch, KnownVersions, Lock, LockMode, Locks, LogPosition, Metadata, Name, Nanos, Open,
    Operation, Principal, Request, RequestNumber, SecretHash, Seen, SessionId, Terms, Ttl, Wait,
};
use fencepost_replica::store::{Identity, LogStore, SnapshotStore, Start};
use fencepost_replica::{
    GROUP_BEGINS, GroupId, Log, LogWrite, Node, Output, Settings, SnapshotInfo, StorageLocation, make_snapshot,
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
    let lock_entry = fencepost_wire::Entry { term: 1, batch, ..fencepost_wire::Entry::default() };
    Entry { index, term: 1, data: fencepost_wire::encode(&lock_entry).into(), ..Entry::default() }
}

/// A node that is turned whenever it is woken or a turn is due.
struct Turned {
    node: Node,
    woken: Receiver<()>,
    started: Instant,
    /// The longest turn.
    longest: Duration,
}

impl Turned {
    /// Waits for the next turn, turns once, and returns the number of answers.
    fn turn(&mut self) -> usize {
        let now = Nanos(self.started.elapsed().as_nanos() as u64);
        let wait = Duration::from_nanos(self.node.next_turn().0.saturating_sub(now.0));
        let _ = self.woken.recv_timeout(wait);
        let started = Instant::now();
        let now = Nanos(self.started.elapsed().as_nanos() as u64);
        let outputs = self.node.turn(now).expect("the node continues");
        self.longest = self.longest.max(started.elapsed());
        outputs.iter().filter(|output| matches!(output, Output::Reply { .. })).count()
    }

    /// Submits acquires one after the other until `stop` returns true, and returns how long each took, sorted.
    fn ask_until(&mut self, number: &mut u64, mut stop: impl FnMut(&Node) -> bool) -> Vec<Duration> {
        let mut took = Vec::new();
        self.longest = Duration::ZERO;
        while !stop(&self.node) {
            *number += 1;
            let started = Instant::now();
            // A separate session, which reports the answers so far as seen.
            let asked = lock(LOCKS / LOCKS_PER_SESSION, *number, 2 * LOCKS + *number % 1_000);
            self.node.replica_mut().submit(asked).expect("it leads");
            let mut answered = 0;
            while answered == 0 {
                answered = self.turn();
            }
            took.push(started.elapsed());
        }
        took.sort();
        took
    }
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
    let (snapshot, _) = make_snapshot(GROUP, None, &[1], before.iter().cloned(), position, KnownVersions::THIS_BUILD)
        .expect("sound entries");
    println!("snapshot of {LOCKS} locks made from its entries in {:.2?}, {} bytes", started.elapsed(), snapshot.len());

    let identity = Identity { cluster: GROUP.cluster, node: 1 };
    let (store, _) = LogStore::open(&directory, identity, 1, Start::New(&Log::new(&[1]))).expect("an empty directory");
    let members = ConfState { voters: vec![1], ..ConfState::default() };
    let info = SnapshotInfo { position, members };
    let install = |entries, snapshot| LogWrite {
        number: 0,
        snapshot,
        hard_state: Some(HardState { term: 1, vote: 1, commit: position.index, ..HardState::default() }),
        entries,
        must_sync: true,
    };
    let snapshots = SnapshotStore::open(&directory.join("snapshots")).expect("an empty directory");
    snapshots.write(position, &snapshot).expect("a sound disk");
    store.write(1, &install(Vec::new(), Some((info, snapshot.into())))).expect("a sound disk");
    for chunk in behind.chunks(1_000) {
        store.write(1, &install(chunk.to_vec(), None)).expect("a sound disk");
    }
    drop(store);

    let started = Instant::now();
    let mut settings = Settings::new(1, GROUP, 1);
    (settings.snapshot_every_entries, settings.snapshot_every_bytes, settings.log_bytes_max) =
        (u64::MAX, u64::MAX, u64::MAX);
    let (wake, woken) = channel();
    let wake = Arc::new(move || wake.send(()).unwrap_or_default());
    let location = StorageLocation::Directory { path: &directory, start: Start::Again };
    let node = Node::start(settings, location, wake, Nanos(0)).expect("a sound log and snapshot");
    let restored = started.elapsed();
    let mut turned = Turned { node, woken, started, longest: Duration::ZERO };
    while !turned.node.replica().serves() {
        turned.turn();
    }
    println!(
        "serves {} locks again after {:.2?}: log and snapshot read in {restored:.2?}, {ENTRIES_BEHIND} entries applied in {:.2?}",
        turned.node.replica().state().counts().grants,
        started.elapsed(),
        started.elapsed() - restored,
    );

    turned.node.replica_mut().submit(open(sessions)).expect("it leads");
    while turned.turn() == 0 {}
    let mut number = 0;
    println!("operations, one at a time | p50 us | p99 us | longest us | longest turn us");
    let show = |what: &str, took: Vec<Duration>, longest: Duration| {
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_micros();
        println!("{what}: {} | {} | {} | {} | {}", took.len(), at(0.5), at(0.99), at(1.0), longest.as_micros());
    };
    let until = Instant::now() + Duration::from_secs(5);
    let took = turned.ask_until(&mut number, |_| Instant::now() >= until);
    show("before a snapshot", took, turned.longest);
    let (last, began) = (turned.node.replica().newest_snapshot(), Instant::now());
    turned.node.replica_mut().snapshot_now();
    let took = turned.ask_until(&mut number, |node| node.replica().newest_snapshot() != last);
    show(&format!("while one is made, {:.1?}", began.elapsed()), took, turned.longest);
    drop(turned);
    std::fs::remove_dir_all(&directory).expect("it was made here");
}
