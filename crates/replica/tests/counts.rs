//! What one commit costs, in counts instead of time: entries, syncs, messages, bytes and allocations, for batches of fixed sizes.
//!
//! The test drives a whole group in one process, step by step, and time stands still. So every figure is the same in every run. It
//! counts everything from `submit` to the answers: at each node, reading messages, turning, applying, and writing messages. It does
//! not count building operations or writing the log's files.
//!
//! Allocations of other tests would be counted, too, so this file has only one test.

use std::alloc::System;
use std::collections::BTreeMap;

use fencepost_core::{
    Acquire, Action, Epoch, GrantId, Lock, LockMode, Locks, Metadata, Name, Nanos, Open, Operation, Outcome, Principal,
    Request, RequestNumber, SecretHash, Seen, SessionId, Terms, Ttl, Wait,
};
use fencepost_replica::{GroupId, Log, Output, PeerMessage, Replica, Settings, decode_peer, encode_peer};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The expected cost of a commit. Counts are exact. Bytes and allocations are today's figures for each operation. The operations are
/// pairs of acquire and release of free locks with names of 20 bytes. The test fails when a figure grows by more than [`SLACK`].
struct Expected {
    nodes: u64,
    operations: usize,
    /// Writes that need a sync, at each node.
    syncs: u64,
    /// Messages of the leader to other nodes.
    leader_messages: u64,
    /// Messages of all nodes.
    messages: u64,
    /// Bytes of the entry in the log.
    entry_bytes: f64,
    /// Bytes of all messages.
    message_bytes: f64,
    /// Allocations at the leader.
    leader_allocations: f64,
    /// Allocations at each follower.
    follower_allocations: f64,
}

/// If a figure gets better, write the better one here. Otherwise it can get worse again unnoticed.
#[rustfmt::skip]
const EXPECTED: &[Expected] = &[
    Expected { nodes: 1, operations: 1,     syncs: 1, leader_messages: 0, messages: 0, entry_bytes: 41.3, message_bytes: 0.0,   leader_allocations: 15.7, follower_allocations: 0.0 },
    Expected { nodes: 1, operations: 64,    syncs: 1, leader_messages: 0, messages: 0, entry_bytes: 39.6, message_bytes: 0.0,   leader_allocations: 4.1,  follower_allocations: 0.0 },
    Expected { nodes: 1, operations: 1_024, syncs: 1, leader_messages: 0, messages: 0, entry_bytes: 42.0, message_bytes: 0.0,   leader_allocations: 3.6,  follower_allocations: 0.0 },
    Expected { nodes: 3, operations: 1,     syncs: 1, leader_messages: 2, messages: 4, entry_bytes: 41.3, message_bytes: 199.2, leader_allocations: 24.7, follower_allocations: 16.7 },
    Expected { nodes: 3, operations: 64,    syncs: 1, leader_messages: 2, messages: 4, entry_bytes: 39.6, message_bytes: 81.1,  leader_allocations: 4.3,  follower_allocations: 3.0 },
    Expected { nodes: 3, operations: 1_024, syncs: 1, leader_messages: 2, messages: 4, entry_bytes: 42.0, message_bytes: 84.2,  leader_allocations: 3.6,  follower_allocations: 2.6 },
];
const SLACK: f64 = 1.05;

/// Counted commits. Even, so that batches of one operation form whole pairs.
const COMMITS: u64 = 64;
/// Commits before those, in which buffers grow.
const WARM_UP_COMMITS: u64 = 64;

const GROUP: GroupId = GroupId { cluster: 0xC, group: 1 };

/// What a node has done since the last reset.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    entries: u64,
    syncs: u64,
    entry_bytes: u64,
    messages: u64,
    message_bytes: u64,
    allocations: u64,
}

struct Member {
    replica: Replica,
    done: Done,
}

impl Member {
    /// Does some work of this node, and counts its allocations.
    fn counted<Found>(&mut self, work: impl FnOnce(&mut Replica) -> Found) -> Found {
        let region = Region::new(ALLOCATOR);
        let found = work(&mut self.replica);
        let change = region.change();
        self.done.allocations += (change.allocations + change.reallocations) as u64;
        found
    }
}

struct Group {
    nodes: BTreeMap<u64, Member>,
    /// Messages in flight: the receiver, and the bytes.
    messages: Vec<(u64, Vec<u8>)>,
    now: Nanos,
    answers: Vec<Outcome>,
    /// The number of the last request.
    number: u64,
    /// The id of the last grant.
    grant: u64,
}

impl Group {
    fn new(size: u64) -> Group {
        let voters: Vec<u64> = (1..=size).collect();
        let member = |id: &u64| {
            // No snapshot is made meanwhile.
            let settings = Settings { snapshot_every_entries: u64::MAX, ..Settings::new(*id, GROUP, *id) };
            let replica = Replica::new(settings, Log::new(&voters), None, Nanos(0)).expect("a sound log");
            (*id, Member { replica, done: Done::default() })
        };
        let (nodes, answers) = (voters.iter().map(member).collect(), Vec::new());
        let mut group = Group { nodes, messages: Vec::new(), now: Nanos(0), answers, number: 0, grant: 0 };
        while group.leader().is_none() {
            group.now = group.now.after_ms(1);
            group.settle();
        }
        group
    }

    fn leader(&self) -> Option<u64> {
        self.nodes.iter().find(|(_, node)| node.replica.serves()).map(|(id, _)| *id)
    }

    /// Delivers the messages and turns the nodes until nothing happens. No time passes.
    fn settle(&mut self) {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for (to, bytes) in std::mem::take(&mut self.messages) {
                let node = self.nodes.get_mut(&to).expect("nodes send to members only");
                let handled = node.counted(|replica| {
                    replica.handle_message(decode_peer(&bytes).expect("encoded bytes can be decoded").message)
                });
                handled.expect("consensus continues");
            }
            for node in self.nodes.values_mut() {
                for output in node.counted(|replica| replica.turn(self.now)).expect("the node continues") {
                    is_quiet = false;
                    match output {
                        Output::Send(message) => {
                            let (to, GroupId { cluster, group }) = (message.to, GROUP);
                            let bytes = node.counted(|_| encode_peer(&PeerMessage { cluster, group, message }));
                            let bytes = bytes.expect("a message for a peer");
                            node.done.messages += 1;
                            node.done.message_bytes += bytes.len() as u64;
                            self.messages.push((to, bytes));
                        }
                        Output::Write(write) => {
                            node.done.entries += write.entries.len() as u64;
                            node.done.entry_bytes += write.entries.iter().map(|it| it.data.len() as u64).sum::<u64>();
                            node.done.syncs += u64::from(write.must_sync);
                            node.counted(|replica| replica.handle_persisted(write.number));
                        }
                        Output::Reply { reply, .. } => self.answers.push(reply.outcome),
                        other => panic!("not expected from these operations: {other:?}"),
                    }
                }
            }
        }
    }

    fn commit(&mut self, operations: Vec<Operation>) -> Vec<Outcome> {
        let leader = self.leader().expect("a node leads");
        let leader = self.nodes.get_mut(&leader).expect("it is a member");
        for operation in operations {
            leader.counted(|replica| replica.submit(operation)).expect("the leader takes it");
        }
        self.settle();
        std::mem::take(&mut self.answers)
    }

    /// Commits a batch of alternating acquires and releases. Each lock is free when it is acquired.
    fn commit_pairs(&mut self, operations: usize) {
        let seen = self.number;
        let batch = (0..operations).map(|_| {
            self.number += 1;
            let action = if self.number % 2 == 1 {
                self.grant += 1;
                acquire(self.grant)
            } else {
                Action::Release { grant: GrantId(self.grant), report: None }
            };
            request(self.number, seen, action)
        });
        let batch = batch.collect();
        let answers = self.commit(batch);
        assert_eq!(answers.len(), operations, "every operation is answered once");
        assert!(answers.iter().all(|it| matches!(it, Outcome::Granted { .. } | Outcome::Released { count_left: 0 })));
    }
}

fn open() -> Operation {
    Operation::Open(Open {
        session: SessionId(1),
        secret_hash: SecretHash([7; 32]),
        principal: Principal::new("tests").expect("a plain name"),
        ttl: Ttl::new(3_600_000).expect("a TTL in bounds"),
        metadata: Metadata::default(),
    })
}

fn request(number: u64, seen: u64, action: Action) -> Operation {
    let seen = Seen { mark: seen, ..Seen::default() };
    let number = RequestNumber(number);
    Operation::Request(Request { session: SessionId(1), epoch: Epoch(1), number, seen, action })
}

fn acquire(lock: u64) -> Action {
    let name = Name::new(&format!("orders/lock-{:08}", lock % 10_000)).expect("a plain name");
    let locks = Locks::from_buf([Lock { name, mode: LockMode::Exclusive }]);
    Action::Acquire(Acquire { locks, owner: None, wait: Wait::No, terms: Terms::default() })
}

/// What each node did for the counted commits, the leader first.
fn measured(expected: &Expected) -> Vec<Done> {
    let mut group = Group::new(expected.nodes);
    assert_eq!(group.commit(vec![open()]).len(), 1);
    for _ in 0..WARM_UP_COMMITS {
        group.commit_pairs(expected.operations);
    }
    group.nodes.values_mut().for_each(|node| node.done = Done::default());
    for _ in 0..COMMITS {
        group.commit_pairs(expected.operations);
    }
    let leader = group.leader().expect("no time passed, so no other node was elected");
    let others = group.nodes.keys().copied().filter(|id| *id != leader);
    [leader].into_iter().chain(others).map(|id| group.nodes[&id].done).collect()
}

#[test]
fn a_commit_costs_no_more_than_before() {
    let mut problems = Vec::new();
    for expected in EXPECTED {
        let done = measured(expected);
        let (leader, followers) = (done[0], &done[1..]);
        let total = |count: fn(&Done) -> u64| done.iter().map(count).sum::<u64>();
        let case = format!("{} nodes, {} operations", expected.nodes, expected.operations);

        let exact = [
            ("entries at each node", done.iter().map(|it| it.entries).collect(), vec![1; done.len()]),
            ("syncs at each node", done.iter().map(|it| it.syncs).collect(), vec![expected.syncs; done.len()]),
            ("messages of the leader", vec![leader.messages], vec![expected.leader_messages]),
            ("messages of all", vec![total(|it| it.messages)], vec![expected.messages]),
        ];
        for (what, found, wanted) in exact {
            let found: Vec<u64> = found;
            let wanted: Vec<u64> = wanted.into_iter().map(|count: u64| count * COMMITS).collect();
            if found != wanted {
                problems.push(format!("{case}: {what} in {COMMITS} commits are {found:?}, not {wanted:?}"));
            }
        }

        let each = |count: u64| count as f64 / (COMMITS as f64 * expected.operations as f64);
        let follower_allocations = followers.iter().map(|it| it.allocations).max().unwrap_or(0);
        let bounded = [
            ("bytes of the entry", each(leader.entry_bytes), expected.entry_bytes),
            ("bytes of messages", each(total(|it| it.message_bytes)), expected.message_bytes),
            ("allocations at the leader", each(leader.allocations), expected.leader_allocations),
            ("allocations at a follower", each(follower_allocations), expected.follower_allocations),
        ];
        let figures: Vec<String> = bounded.iter().map(|(what, found, _)| format!("{what} {found:.2}")).collect();
        println!("{case}, for each operation: {}", figures.join(", "));
        for (what, found, today) in bounded {
            if found > today * SLACK {
                problems.push(format!("{case}: {what} for each operation are {found:.2}, and were {today:.2}"));
            }
        }
    }
    assert!(
        problems.is_empty(),
        "a commit costs more than before, or the table is out of date:\n{}",
        problems.join("\n")
    );
}
