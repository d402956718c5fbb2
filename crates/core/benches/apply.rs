//! Measures the time of the core's operations: `cargo bench -p fencepost-core`.
//!
//! The table in docs/performance.md comes from here. Memory is measured in `tests/memory.rs`.

#![allow(missing_docs, reason = "a program, not a library")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a benchmark reads the clock")]

mod world;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fencepost_core::{Batch, GrantId, LockState, LogicalMs, Outcome, OwnerName, Record, Wait};
use world::{World, id, name};

/// The time of `rounds` runs, without the preparation of each.
fn timed<Prepared, Result>(
    rounds: u64,
    mut prepare: impl FnMut() -> Prepared,
    mut run: impl FnMut(Prepared) -> Result,
) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..rounds {
        let prepared = prepare();
        let started = Instant::now();
        let result = black_box(run(prepared));
        spent += started.elapsed();
        drop(result);
    }
    spent
}

/// Pairs of acquire and release of free locks: several pairs an entry, beside many held locks.
fn uncontended(c: &mut Criterion) {
    let mut group = c.benchmark_group("uncontended");
    for (pairs, held) in [(1, 0), (64, 0), (64, 1_000_000)] {
        let mut world = World::new(64.max(held / 5_000));
        world.hold(held);
        let free: Vec<_> = (0..10_000).map(|lock| name(50_000_000 + lock)).collect();
        let mut free = free.iter().cycle();
        let mut next_grant = world.state.counts().last_token.0;
        group.throughput(Throughput::Elements(2 * pairs as u64));
        group.bench_function(format!("{pairs} pairs an entry, {held} locks held"), |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let mut operations = Vec::new();
                    for pair in 0..pairs {
                        let name = free.next().expect("a cycle never ends");
                        next_grant += 1;
                        operations.push(world.acquire(pair, name, Wait::No));
                        operations.push(world.release(pair, GrantId(next_grant)));
                    }
                    spent += timed(1, || std::mem::take(&mut operations), |operations| world.apply(operations));
                    (0..pairs).for_each(|session| world.saw_all(session));
                }
                spent
            });
        });
        assert_eq!(world.state.counts().grants, held, "every acquired lock was released");
    }
    group.finish();
}

/// One lock that every session wants: the holder releases it and queues again, and the next waiter is granted.
fn hand_over(c: &mut Criterion) {
    let mut group = c.benchmark_group("hand-over");
    for waiters in [10, 1_000, 100_000] {
        let hot = name(0);
        let mut world = World::new(waiters);
        for session in 0..waiters {
            let acquire = world.acquire(session, &hot, Wait::Forever);
            world.apply(vec![acquire]);
        }
        let session_of: BTreeMap<_, _> = (0..waiters).map(|session| (id(session), session)).collect();
        let mut holder = (0, GrantId(1));
        group.bench_function(format!("{waiters} waiters"), |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let (session, grant) = holder;
                    world.saw_all(session);
                    let mut operations = vec![world.release(session, grant)];
                    operations.push(world.acquire(session, &hot, Wait::Forever));
                    let mut next = None;
                    spent += timed(
                        1,
                        || std::mem::take(&mut operations),
                        |operations| {
                            let effects = world.apply(operations);
                            next = world::granted(&effects);
                            effects
                        },
                    );
                    let (session, grant) = next.expect("the next in the queue is granted");
                    holder = (session_of[&session], grant);
                }
                spent
            });
        });
        assert_eq!(world.state.counts().waiters, waiters - 1, "one holds, all others wait");
    }
    group.finish();
}

/// A session with 10,000 locks expires.
fn session_death(c: &mut Criterion) {
    let mut world = World::new(1);
    world.hold(10_000);
    c.bench_function("death of a session with 10,000 locks", |b| {
        b.iter_custom(|rounds| {
            timed(
                rounds,
                || world.state.clone(),
                |mut state| {
                    state.apply(LogicalMs(30_000), Batch::default());
                    assert_eq!(state.counts().grants, 0);
                    state
                },
            )
        });
    });
}

/// A hundred owners wait in a chain; the request of the last one would close the cycle.
fn deadlock(c: &mut Criterion) {
    let depth = 100;
    let mut world = World::new(depth + 1);
    let owner = OwnerName::new("task").expect("a plain name");
    for at in 0..=depth {
        let hold = world.acquire_as(at, Some(owner.clone()), &name(at), Wait::No);
        world.apply(vec![hold]);
    }
    for at in 0..depth {
        let wait = world.acquire_as(at, Some(owner.clone()), &name(at + 1), Wait::Forever);
        world.apply(vec![wait]);
    }
    c.bench_function("deadlock found at depth 100", |b| {
        b.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                world.saw_all(depth);
                let closing = world.acquire_as(depth, Some(owner.clone()), &name(0), Wait::Forever);
                spent += timed(
                    1,
                    || vec![closing.clone()],
                    |operations| {
                        let effects = world.apply(operations);
                        assert!(matches!(effects.replies[0].outcome, Outcome::Deadlock(_)));
                        effects
                    },
                );
            }
            spent
        });
    });
}

/// One entry that renews 10,000 sessions.
fn keep_alive(c: &mut Criterion) {
    let mut world = World::new(10_000);
    let mut stamp = 0;
    let mut group = c.benchmark_group("keep-alive");
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("10,000 sessions in one entry", |b| {
        b.iter_custom(|rounds| {
            let renewals: Vec<_> = (0..10_000).map(|session| world.keep_alive(session)).collect();
            timed(
                rounds,
                || renewals.clone(),
                |renewals| {
                    stamp += 1_000;
                    world.state.apply(LogicalMs(stamp), Batch { renewals, ..Batch::default() })
                },
            )
        });
    });
    group.finish();
}

/// Snapshot and restore of 1,000,000 locks, and the state hash.
fn snapshot(c: &mut Criterion) {
    let mut world = World::new(200);
    world.hold(1_000_000);
    let mut group = c.benchmark_group("1,000,000 locks");
    group.sample_size(10);
    group.bench_function("snapshot", |b| {
        b.iter_custom(|rounds| timed(rounds, || (), |()| world.state.records().collect::<Vec<Record>>()));
    });
    let records: Vec<Record> = world.state.records().collect();
    group.bench_function("restore", |b| {
        b.iter_custom(|rounds| timed(rounds, || records.clone(), |records| LockState::restore(1, records)));
    });
    group.bench_function("state hash", |b| b.iter(|| black_box(world.state.state_hash())));
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = uncontended, hand_over, session_death, deadlock, keep_alive, snapshot
}
criterion_main!(benches);
