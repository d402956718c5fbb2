//! The simulation is tested: each deliberate fault in the core, the replica and the client must be found, and within how many
//! seeds is printed. The default run of the seeds must be three times as long as the slowest of them takes.

#![cfg(feature = "planted-bugs")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fencepost_sim::world::{Plan, SEEDS_DEFAULT, World};

/// A fault of one of the crates.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Core(fencepost_core::Bug),
    Replica(fencepost_replica::Bug),
    Client(fencepost::machine::Bug),
}

fn plant(bug: Option<Planted>) {
    fencepost_core::plant(None);
    fencepost_replica::plant(None);
    fencepost::machine::plant(None);
    match bug {
        None => {}
        Some(Planted::Core(bug)) => fencepost_core::plant(Some(bug)),
        Some(Planted::Replica(bug)) => fencepost_replica::plant(Some(bug)),
        Some(Planted::Client(bug)) => fencepost::machine::plant(Some(bug)),
    }
}

fn all() -> Vec<Planted> {
    let core = fencepost_core::Bug::ALL.iter().copied().map(Planted::Core);
    let replica = fencepost_replica::Bug::ALL.iter().copied().map(Planted::Replica);
    let client = fencepost::machine::Bug::ALL.iter().copied().map(Planted::Client);
    core.chain(replica).chain(client).collect()
}

/// What a seed finds. A node that notices by itself and panics has found it, too.
fn found_by(seed: u64) -> BTreeSet<&'static str> {
    let plan = Plan::of_seed(seed);
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
    let mut slow = Vec::new();
    for bug in all() {
        plant(Some(bug));
        let found = (1..=SEEDS_DEFAULT).map(|seed| (seed, found_by(seed))).find(|(_, found)| !found.is_empty());
        match found {
            Some((seeds, by)) => {
                println!("{seeds:>6} seeds until {bug:?} was found, by {by:?}");
                if seeds * 3 > SEEDS_DEFAULT {
                    slow.push((bug, seeds));
                }
            }
            None => slow.push((bug, SEEDS_DEFAULT)),
        }
    }
    plant(None);
    std::panic::set_hook(hook);
    assert!(slow.is_empty(), "the default of {SEEDS_DEFAULT} seeds is less than three times what these take: {slow:?}");
}
