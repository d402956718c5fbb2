//! Commits of groups of one, three and five nodes in one process, each with its log on a real disk:
//! `cargo bench -p fencepost-replica --bench commits`.
//!
//! One thread syncs the writes of all nodes one after the other. So a group of five waits for five syncs, where five machines wait
//! for one sync and a network. This measures the work of a group, not its waiting times.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock and the disk")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fencepost_core::{
    Acquire, Action, Epoch, GrantId, Lock, LockMode, Locks, Metadata, Name, Nanos, Open, Operation, Outcome, Principal,
    Request, RequestNumber, SecretHash, Seen, SessionId, Terms, Ttl, Wait,
};
use fencepost_replica::store::{Identity, LogStore, Start};
use fencepost_replica::{GroupId, Log, Message, Output, Replica, Settings};

/// Settings with which no snapshot is ever made.
fn endless(settings: Settings) -> Settings {
    Settings { snapshot_every_entries: u64::MAX, snapshot_every_bytes: u64::MAX, log_bytes_max: u64::MAX, ..settings }
}

struct Group {
    nodes: BTreeMap<u64, (Replica, LogStore)>,
    messages: Vec<Message>,
    now: Nanos,
    answers: Vec<Outcome>,
    writes: u64,
}

impl Group {
    fn new(directory: &Path, size: u64) -> Group {
        let voters: Vec<u64> = (1..=size).collect();
        let log = Log::new(&voters);
        let mut nodes = BTreeMap::new();
        for id in voters {
            let identity = Identity { cluster: 1, node: id };
            let (store, log) = LogStore::open(&directory.join(id.to_string()), identity, 1, Start::New(&log))
                .expect("an empty directory");
            let group = GroupId { cluster: 1, group: 1 };
            let settings = endless(Settings::new(id, group, id));
            nodes.insert(id, (Replica::new(settings, log, None, Nanos(0)).expect("a sound log"), store));
        }
        Group { nodes, messages: Vec::new(), now: Nanos(0), answers: Vec::new(), writes: 0 }
    }

    /// One turn of every node. Time moves only if nothing else does.
    fn turn(&mut self) {
        let messages = std::mem::take(&mut self.messages);
        if messages.is_empty() {
            self.now = self.now.after_ms(1);
        }
        for message in messages {
            if let Some((replica, _)) = self.nodes.get_mut(&message.to) {
                replica.handle_message(message).expect("consensus continues");
            }
        }
        for (replica, store) in self.nodes.values_mut() {
            for output in replica.turn(self.now).expect("the node continues") {
                match output {
                    Output::Send(message) => self.messages.push(message),
                    Output::Write(write) => {
                        self.writes += u64::from(write.must_sync);
                        store.write(1, &write).expect("the disk is sound");
                        replica.handle_persisted(write.number);
                    }
                    Output::Reply { reply, .. } => self.answers.push(reply.outcome),
                    _ => {}
                }
            }
        }
    }

    fn ask(&mut self, operations: Vec<Operation>) -> Vec<Outcome> {
        let wanted = operations.len();
        while !self.nodes.values().any(|(replica, _)| replica.serves()) {
            self.turn();
        }
        let leader = self.nodes.values_mut().find(|(replica, _)| replica.serves()).expect("a node serves");
        for operation in operations {
            leader.0.submit(operation).expect("the leader takes it");
        }
        while self.answers.len() < wanted {
            self.turn();
        }
        std::mem::take(&mut self.answers)
    }
}

fn request(number: u64, seen: u64, action: Action) -> Operation {
    let (session, epoch) = (SessionId(1), Epoch(1));
    let seen = Seen { mark: seen, ..Seen::default() };
    Operation::Request(Request { session, epoch, number: RequestNumber(number), seen, action })
}

/// Processor time of this process so far, in microseconds.
fn processor_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("a name in brackets").split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    ticks * 10_000
}

fn main() {
    let root: PathBuf = std::env::temp_dir().join(format!("fencepost-commits-{}", std::process::id()));
    println!("nodes | operations an entry | commits/s | operations/s | processor us an operation | syncs a commit");
    for size in [1, 3, 5] {
        for batch in [1, 64, 1_024] {
            let directory = root.join(format!("{size}-{batch}"));
            let mut group = Group::new(&directory, size);
            group.ask(vec![Operation::Open(Open {
                session: SessionId(1),
                secret_hash: SecretHash([0; 32]),
                principal: Principal::new("bench").expect("a plain name"),
                ttl: Ttl::new(3_600_000).expect("in bounds"),
                metadata: Metadata::default(),
            })]);
            let (mut number, mut grant, mut commits) = (0, 0, 0_u64);
            let (writes_before, started, processor) = (group.writes, Instant::now(), processor_us());
            while started.elapsed().as_secs_f64() < 2.0 {
                let seen = number;
                let mut operations = Vec::with_capacity(batch);
                // Pairs of acquire and release; a batch of one alternates.
                while operations.len() < batch {
                    number += 1;
                    let action = if number % 2 == 1 {
                        grant += 1;
                        let name = Name::new(&format!("orders/lock-{:08}", number % 10_000)).expect("a plain name");
                        let locks = Locks::from_buf([Lock { name, mode: LockMode::Exclusive }]);
                        Action::Acquire(Acquire { locks, owner: None, wait: Wait::No, terms: Terms::default() })
                    } else {
                        Action::Release { grant: GrantId(grant), report: None }
                    };
                    operations.push(request(number, seen, action));
                }
                let answers = group.ask(operations);
                assert!(answers.iter().all(|it| matches!(it, Outcome::Granted { .. } | Outcome::Released { .. })));
                commits += 1;
            }
            let seconds = started.elapsed().as_secs_f64();
            let operations = number as f64;
            println!(
                "{size} | {batch} | {:.0} | {:.0} | {:.1} | {:.1}",
                commits as f64 / seconds,
                operations / seconds,
                (processor_us() - processor) as f64 / operations,
                (group.writes - writes_before) as f64 / commits as f64,
            );
            drop(group);
            std::fs::remove_dir_all(&directory).expect("the directory was made here");
        }
    }
    std::fs::remove_dir_all(&root).expect("the directory was made here");
}
