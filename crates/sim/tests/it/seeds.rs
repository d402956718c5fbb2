//! The default run of the simulation: many seeds, each twice. No invariant may be violated, two runs of a seed must be equal, and the
//! faults must be strong enough to corrupt a store without a guard.
//!
//! `FENCEPOST_SEEDS=N` runs more seeds. The message of a failed seed includes the command that replays it.
#![allow(clippy::disallowed_methods, reason = "how many seeds to run comes from the environment")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_sim::check::Report;
use fencepost_sim::world::{Outcome, Plan, SEEDS_DEFAULT, World};

/// Seeds that once found a bug. They always run.
const REGRESSIONS: &[u64] = &[2_080, 126, 381];

/// Number of fault kinds. Each must occur at least once.
const FAULT_KINDS: usize = 28;

fn figures(report: &Report) -> impl Iterator<Item = (String, u64)> {
    let serde_json::Value::Object(figures) = serde_json::to_value(report).expect("plain numbers") else {
        panic!("a report is a list of figures");
    };
    figures.into_iter().map(|(what, count)| (what, count.as_u64().expect("a number")))
}

fn run(seed: u64) -> Outcome {
    let plan = Plan::of_seed(seed);
    World::new(seed, &plan, false).run(&plan)
}

/// Runs a seed twice. Returns its outcome, or why it failed.
fn check(seed: u64) -> Result<Outcome, String> {
    let replay = format!("replay with: cargo run --release -p fencepost-sim -- --seed {seed}");
    let [once, again] = [(); 2].map(|()| catch_unwind(AssertUnwindSafe(|| run(seed))));
    let (once, again) = once.ok().zip(again.ok()).ok_or_else(|| format!("seed {seed} panicked; {replay}"))?;
    if once.trace_hash != again.trace_hash {
        return Err(format!("seed {seed} gave two different runs; {replay}"));
    }
    match once.violations.first() {
        Some(violation) => Err(format!("seed {seed}: {violation:?}; {replay}")),
        None => Ok(once),
    }
}

#[test]
fn nothing_is_violated_and_every_seed_repeats_itself() {
    let seeds = std::env::var("FENCEPOST_SEEDS").map_or(SEEDS_DEFAULT, |text| text.parse().expect("a number of seeds"));
    let next = AtomicU64::new(0);
    let all: Vec<u64> = REGRESSIONS.iter().copied().chain(1..=seeds).collect();
    let work = || {
        let mut results = Vec::new();
        while let Some(seed) = all.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            results.push(check(*seed));
        }
        results
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<Result<Outcome, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a seed that panics is caught")).collect()
    });

    let failed: Vec<&String> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let outcomes: Vec<Outcome> = results.into_iter().filter_map(Result::ok).collect();
    let sum = |figure: fn(&Outcome) -> u64| outcomes.iter().map(figure).sum::<u64>();
    let (corrupted, refused) = (sum(|it| it.store.corrupted), sum(|it| it.store.refused));
    println!(
        "{} seeds, {} simulated minutes, {} operations; the store without a guard was corrupted {corrupted} times, the guard refused {refused} writes",
        outcomes.len(),
        sum(|it| it.simulated_ms) / 60_000,
        sum(|it| it.operations),
    );
    assert!(corrupted > 0 && refused > 0, "the faults are too weak");
    let (mut faults, mut checked) = (BTreeMap::new(), BTreeMap::new());
    for outcome in &outcomes {
        outcome.faults.iter().for_each(|(kind, count)| *faults.entry(*kind).or_insert(0) += count);
        figures(&outcome.checked).for_each(|(what, count)| *checked.entry(what).or_insert(0) += count);
    }
    println!("{faults:#?}\n{checked:#?}");
    assert_eq!(faults.len(), FAULT_KINDS, "some fault never happened: {faults:?}");
    // The one count that must be zero: answers that came too late to be compared.
    assert_eq!(checked.remove("heard_too_late"), Some(0));
    let never: Vec<_> = checked.iter().filter(|(_, count)| **count == 0).collect();
    assert!(never.is_empty(), "these checks never ran, so they prove nothing: {never:?}");
}
