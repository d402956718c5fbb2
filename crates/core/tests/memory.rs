//! The memory of a lock, a waiter and a session, and the allocations of an operation: counted, not timed.
//!
//! The figures are bytes requested from the allocator. They are deterministic, so the test asserts them. The table in
//! docs/performance.md shows what this test prints.

#[path = "../benches/world/mod.rs"]
mod world;

use std::alloc::System;

use fencepost_core::{Action, Batch, GrantId, JobKey, LogicalMs, Outcome, Push, Wait, bounds};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use world::{World, name};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs `work` and returns its result, the bytes that stay allocated, and the number of allocations. Tests on other threads
/// would be counted, too, so this file has only one test.
fn measured<Result>(work: impl FnOnce() -> Result) -> (Result, isize, usize) {
    let region = Region::new(ALLOCATOR);
    let result = work();
    let change = region.change();
    // A growing reallocation counts as allocated bytes, a shrinking one as deallocated bytes.
    (result, change.bytes_allocated as isize - change.bytes_deallocated as isize, change.allocations)
}

#[test]
fn memory_stays_within_the_bounds_of_the_specification() {
    const COUNT: usize = 100_000;
    const NAME_BYTES: f64 = 20.0;
    let per = |bytes: isize| bytes as f64 / COUNT as f64;

    let (mut world, bytes, _) = measured(|| World::new(COUNT));
    let of_the_test = 16.0;
    let session = per(bytes) - of_the_test;
    println!("bytes per idle session: {session:.0}");
    assert!(session <= 1_024.0, "a session costs {session:.0} bytes");

    // The bytes of the names themselves are subtracted, so only what the core adds is shown.
    let ((), bytes, _) = measured(|| world.hold(COUNT));
    let session_and_lock = per(bytes) - NAME_BYTES;
    println!("bytes per lock of a session with one lock: {session_and_lock:.0}, name not counted");

    let mut few = World::new(20);
    let ((), bytes, allocations) = measured(|| few.hold(COUNT));
    let lock = per(bytes) - NAME_BYTES;
    println!("bytes per lock of a session with many locks: {lock:.0}, name not counted");
    println!("allocations per acquire: {:.1}", allocations as f64 / COUNT as f64);
    assert!(lock <= 300.0, "a held lock costs {lock:.0} bytes");

    for session in 0..20 {
        let close = few.request(session, Action::Close);
        few.apply(vec![close]);
    }
    assert_eq!(few.state.counts().resources, 0, "a free name costs nothing");

    let hot = name(0);
    let mut queue = World::new(COUNT);
    let ((), bytes, _) = measured(|| {
        for session in 0..COUNT {
            let acquire = queue.acquire(session, &hot, Wait::Forever);
            queue.apply(vec![acquire]);
        }
    });
    println!("bytes per waiter: {:.0}", per(bytes));
    assert!(per(bytes) <= 1_024.0, "a waiter costs {:.0} bytes", per(bytes));

    let mut few = World::new(20);
    let ((), bytes, allocations) = measured(|| complete_jobs(&mut few, COUNT));
    let job = per(bytes) - KEY_BYTES;
    println!("bytes per completed job without a result: {job:.0}, key not counted");
    println!("allocations per job, acquired and completed: {:.1}", allocations as f64 / COUNT as f64);
    assert_eq!(few.state.counts().jobs, COUNT as u64);
    // What a record counts for in the bounds is not less than what it takes.
    assert!(job <= bounds::JOB_RECORD_BYTES as f64, "a completed job costs {job:.0} bytes");

    let answered: Vec<f64> = [(1_000, 0), (1_000, 50_000), (COUNT, 0)].map(allocations_per_answered_waiter).into();
    println!("allocations per waiter of a completed job: {answered:.2?}");
    let least = answered.iter().fold(f64::MAX, |least, cost| least.min(*cost));
    assert!(
        answered.iter().all(|cost| *cost <= least + 1.0),
        "the cost of an answer grows with the queue: {answered:?}"
    );

    let flat: Vec<f64> = [10, 1_000, 100_000].map(allocations_per_hand_over).into();
    println!("allocations per hand-over with 10, 1,000 and 100,000 waiters: {flat:.2?}");
    // With ten waiters, each session comes again and already has its small buffers.
    assert!(flat.iter().all(|cost| *cost <= 12.0), "a hand-over allocates too often: {flat:?}");
    assert!((flat[2] - flat[1]).abs() <= 0.5, "the cost of a hand-over grows with the queue: {flat:?}");
}

const KEY_BYTES: f64 = 20.0;

fn job_key(number: usize) -> JobKey {
    JobKey::new(&format!("{number:020}")).expect("a number is a valid key")
}

/// Acquires and completes this many jobs of one name, with keys of 20 bytes. All answers are acknowledged.
fn complete_jobs(world: &mut World, count: usize) {
    let billing = name(0);
    for number in 0..count {
        let session = number % 20;
        let acquire = world.acquire_job(session, &billing, &job_key(number), Wait::No);
        world.apply(vec![acquire]);
        let complete = world.complete_job(session, GrantId(number as u64 + 1));
        world.apply(vec![complete]);
        world.saw_all(session);
    }
    let renewals = (0..20).map(|session| world.keep_alive(session)).collect();
    world.state.apply(LogicalMs(0), Batch { renewals, ..Batch::default() });
}

/// The allocations of a completion for each waiter that it answers, while other requests wait for another job of the name.
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "prints a time; nothing is asserted about it")]
fn allocations_per_answered_waiter((waiters, others): (usize, usize)) -> f64 {
    let (billing, done, other) = (name(0), job_key(1), job_key(2));
    let mut world = World::new(waiters + others + 1);
    let holder = waiters + others;
    let acquire = world.acquire_job(holder, &billing, &done, Wait::Forever);
    world.apply(vec![acquire]);
    // The two jobs alternate in the queue as long as there are requests for both.
    for number in 0..waiters.max(others) {
        let first = (number < waiters).then_some((number, &done));
        let second = (number < others).then_some((waiters + number, &other));
        for (session, key) in first.into_iter().chain(second) {
            let acquire = world.acquire_job(session, &billing, key, Wait::Forever);
            world.apply(vec![acquire]);
        }
    }
    let complete = world.complete_job(holder, GrantId(1));
    let started = std::time::Instant::now();
    let (effects, _, allocations) = measured(|| world.apply(vec![complete]));
    let took = started.elapsed();
    println!("{waiters} waiters of one job, with {others} of another, were answered in {took:.1?}");
    let completed = |push: &&Push| matches!(push, Push::Ended { outcome: Outcome::Completed { .. }, .. });
    assert_eq!(effects.pushes.iter().filter(completed).count(), waiters);
    assert_eq!(world.state.counts().waiters, others.saturating_sub(1));
    allocations as f64 / waiters as f64
}

/// Each hand-over: a release, the grant to the next session, and the releasing session queues again.
fn allocations_per_hand_over(waiters: usize) -> f64 {
    const HAND_OVERS: usize = 1_000;
    let hot = name(0);
    let mut world = World::new(waiters);
    for session in 0..waiters {
        let acquire = world.acquire(session, &hot, Wait::Forever);
        world.apply(vec![acquire]);
    }
    let ((), _, allocations) = measured(|| {
        for round in 0..HAND_OVERS {
            let session = round % waiters;
            world.saw_all(session);
            let release = world.release(session, GrantId(round as u64 + 1));
            let again = world.acquire(session, &hot, Wait::Forever);
            let effects = world.apply(vec![release, again]);
            assert!(world::granted(&effects).is_some(), "the next in the queue is granted");
        }
    });
    allocations as f64 / HAND_OVERS as f64
}
