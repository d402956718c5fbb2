//! Runs one case for a given number of rounds, for a tool that counts instructions. `bench/instructions` runs it twice under callgrind
//! with different numbers of rounds. The difference contains only the rounds.
//!
//! Everything that a round needs is prepared before, always for the longest run, so that the preparation costs every run the same.
//! Without arguments it lists the cases, each with its operations in a round.
//!
//! It is in the codec's crate because that crate may use the core. It also measures the core.

#![allow(clippy::disallowed_methods, reason = "a program that is told what to do by its arguments")]

#[path = "../../core/benches/world/mod.rs"]
mod world;

use std::hint::black_box;

use fencepost_core::{Batch, GrantId, LogicalMs, Operation, Wait};
use fencepost_wire::{Entry, decode, encode_into};
use world::{World, name};

/// Rounds that are prepared.
const ROUNDS_MAX: usize = 1_500;

/// What is done in a round.
#[derive(Clone, Copy)]
enum Work {
    /// Acquire and release of free locks: `pairs` in each entry, with `held` other locks held.
    Pairs { pairs: usize, held: usize },
    /// The holder of a hot lock releases it and queues again, and the next of `waiters` is granted.
    HandOver { waiters: usize },
    /// One entry with a keep-alive of each of `sessions` sessions.
    KeepAlives { sessions: usize },
    /// Encoding an entry of `acquires` acquires.
    Encode { acquires: usize },
    /// Decoding an entry of `acquires` acquires.
    Decode { acquires: usize },
}

/// The cases by name, each with its operations in a round.
const CASES: &[(&str, usize, Work)] = &[
    ("pair-1-an-entry", 1, Work::Pairs { pairs: 1, held: 0 }),
    ("pair-64-an-entry", 64, Work::Pairs { pairs: 64, held: 0 }),
    ("pair-64-an-entry-100000-held", 64, Work::Pairs { pairs: 64, held: 100_000 }),
    ("hand-over-10-waiters", 1, Work::HandOver { waiters: 10 }),
    ("hand-over-1000-waiters", 1, Work::HandOver { waiters: 1_000 }),
    ("hand-over-100000-waiters", 1, Work::HandOver { waiters: 100_000 }),
    ("keep-alive-1000-an-entry", 1_000, Work::KeepAlives { sessions: 1_000 }),
    ("encode-1-acquire", 1, Work::Encode { acquires: 1 }),
    ("encode-64-acquires", 64, Work::Encode { acquires: 64 }),
    ("encode-1024-acquires", 1_024, Work::Encode { acquires: 1_024 }),
    ("decode-1-acquire", 1, Work::Decode { acquires: 1 }),
    ("decode-64-acquires", 64, Work::Decode { acquires: 64 }),
    ("decode-1024-acquires", 1_024, Work::Decode { acquires: 1_024 }),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [case, rounds] = arguments.as_slice() else {
        CASES.iter().for_each(|(name, operations, _)| println!("{name} {operations}"));
        return;
    };
    let found = CASES.iter().find(|(name, ..)| name == case);
    let (_, _, work) = found.unwrap_or_else(|| panic!("there is no case {case}: run without arguments for a list"));
    let rounds: usize = rounds.parse().expect("the number of rounds is a number");
    assert!(rounds <= ROUNDS_MAX, "at most {ROUNDS_MAX} rounds are prepared");
    match *work {
        Work::Pairs { pairs, held } => apply_pairs(pairs, held, rounds),
        Work::HandOver { waiters } => apply_hand_overs(waiters, rounds),
        Work::KeepAlives { sessions } => apply_keep_alives(sessions, rounds),
        Work::Encode { acquires } => {
            let (entry, mut bytes) = (entry(acquires), Vec::new());
            for _ in 0..rounds {
                bytes.clear();
                encode_into(black_box(&entry), &mut bytes);
                black_box(&bytes);
            }
        }
        Work::Decode { acquires } => {
            let mut bytes = Vec::new();
            encode_into(&entry(acquires), &mut bytes);
            for _ in 0..rounds {
                black_box(
                    decode(black_box(&bytes), fencepost_core::KnownVersions::THIS_BUILD).expect("it was just written"),
                );
            }
        }
    }
}

fn apply_pairs(pairs: usize, held: usize, rounds: usize) {
    let mut world = World::new(pairs.max(held / 5_000));
    world.hold(held);
    let mut grant = world.state.counts().last_token.0;
    let mut prepared = Vec::new();
    for round in 0..ROUNDS_MAX {
        let mut operations = Vec::with_capacity(2 * pairs);
        for session in 0..pairs {
            grant += 1;
            let free = name(50_000_000 + (round * pairs + session) % 10_000);
            operations.push(world.acquire(session, &free, Wait::No));
            operations.push(world.release(session, GrantId(grant)));
            world.saw_all(session);
        }
        prepared.push(operations);
    }
    apply(&mut world, prepared, rounds);
    assert_eq!(world.state.counts().grants, held, "every acquired lock was released");
    std::mem::forget(world);
}

fn apply_hand_overs(waiters: usize, rounds: usize) {
    let hot = name(0);
    let mut world = World::new(waiters);
    for session in 0..waiters {
        let acquire = world.acquire(session, &hot, Wait::Forever);
        world.apply(vec![acquire]);
    }
    let mut prepared = Vec::new();
    for round in 0..ROUNDS_MAX {
        let session = round % waiters;
        world.saw_all(session);
        let release = world.release(session, GrantId(round as u64 + 1));
        prepared.push(vec![release, world.acquire(session, &hot, Wait::Forever)]);
    }
    apply(&mut world, prepared, rounds);
    let counts = world.state.counts();
    assert_eq!((counts.waiters, counts.last_token.0), (waiters - 1, rounds as u64 + 1), "each round was a hand-over");
    std::mem::forget(world);
}

/// Applies the first `rounds`. Frees neither the rest nor the state: freeing would cost a long run less than a short one.
fn apply(world: &mut World, prepared: Vec<Vec<Operation>>, rounds: usize) {
    let mut prepared = prepared.into_iter();
    for operations in prepared.by_ref().take(rounds) {
        black_box(world.apply(operations));
    }
    std::mem::forget(prepared);
}

fn apply_keep_alives(sessions: usize, rounds: usize) {
    let mut world = World::new(sessions);
    let renewals: Vec<_> = (0..sessions).map(|session| world.keep_alive(session)).collect();
    let mut prepared = vec![renewals; ROUNDS_MAX];
    for round in 1..=rounds {
        let renewals = prepared.pop().expect("at least as many are prepared as there are rounds");
        black_box(world.state.apply(LogicalMs(round as u64 * 1_000), Batch { renewals, ..Batch::default() }));
    }
    std::mem::forget((prepared, world));
}

fn entry(acquires: usize) -> Entry {
    let mut world = World::new(acquires);
    let operations = (0..acquires).map(|lock| world.acquire(lock, &name(lock), Wait::Forever)).collect();
    let batch = Batch { operations, ..Batch::default() };
    let (version, stamp) = (fencepost_core::FormatVersion::FIRST, LogicalMs(86_400_000));
    Entry { version, term: 5, stamp, wall_clock_ms: Some(1_700_000_000_000), batch, ..Entry::default() }
}
