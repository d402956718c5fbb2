//! Tests the simulation itself: it must find each planted bug in the core, the replica and the session protocol. Prints how many seeds
//! each one takes. The default number of seeds must be at least three times the slowest of them.

#![cfg(feature = "planted-bugs")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use fencepost_sim::world::{Plan, SEEDS_DEFAULT, World};

/// A planted bug of one of the crates.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Core(fencepost_core::Bug),
    Replica(fencepost_replica::Bug),
    Session(fencepost_session::Bug),
}

fn plant(bug: Option<Planted>) {
    fencepost_core::plant(None);
    fencepost_replica::plant(None);
    fencepost_session::plant(None);
    match bug {
        None => {}
        Some(Planted::Core(bug)) => fencepost_core::plant(Some(bug)),
        Some(Planted::Replica(bug)) => fencepost_replica::plant(Some(bug)),
        Some(Planted::Session(bug)) => fencepost_session::plant(Some(bug)),
    }
}

fn all() -> Vec<Planted> {
    let core = fencepost_core::Bug::ALL.iter().copied().map(Planted::Core);
    let replica = fencepost_replica::Bug::ALL.iter().copied().map(Planted::Replica);
    let client = fencepost_session::Bug::ALL.iter().copied().map(Planted::Session);
    core.chain(replica).chain(client).collect()
}

/// The plan with which this seed can find the bug. Bugs of upgrades need an upgrade run.
fn plan(bug: Planted, seed: u64) -> Plan {
    use fencepost_replica::Bug::{LearnersDoNotCount, RaisesWithoutAsking, RulesOfTheNewest};
    match bug {
        Planted::Replica(RaisesWithoutAsking | LearnersDoNotCount | RulesOfTheNewest) => Plan::of_upgrades(seed),
        _ => Plan::of_seed(seed),
    }
}

/// The invariants that a seed finds violated. A panic of a node counts as found, too.
fn found_by(bug: Planted, seed: u64) -> BTreeSet<&'static str> {
    let plan = plan(bug, seed);
    let run = catch_unwind(AssertUnwindSafe(|| World::new(seed, &plan, false).run(&plan)));
    match run {
        Ok(outcome) => outcome.violations.iter().map(|violation| violation.invariant).collect(),
        Err(_) => BTreeSet::from(["a node panicked"]),
    }
}

#[test]
fn every_planted_bug_is_found() {
    // The panics are expected and would only be noise.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    // A bug is planted for one thread only, so several can be searched at the same time.
    let (all, next) = (all(), AtomicUsize::new(0));
    let work = || {
        let mut results = Vec::new();
        while let Some(bug) = all.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            plant(Some(bug));
            let mut runs = (1..=SEEDS_DEFAULT).map(|seed| (seed, found_by(bug, seed)));
            results.push((bug, runs.find(|(_, found)| !found.is_empty())));
        }
        results
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a seed that panics is caught")).collect()
    });
    std::panic::set_hook(hook);
    let mut slow = Vec::new();
    for (bug, found) in &results {
        match found {
            Some((seeds, by)) => {
                println!("{seeds:>6} seeds until {bug:?} was found, by {by:?}");
                if seeds * 3 > SEEDS_DEFAULT {
                    slow.push((bug, *seeds));
                }
            }
            None => slow.push((bug, SEEDS_DEFAULT)),
        }
    }
    assert_eq!(results.len(), all.len());
    assert!(slow.is_empty(), "the default of {SEEDS_DEFAULT} seeds is less than three times what these take: {slow:?}");
}
