//! Upgrade runs: nodes are upgraded one by one, at random times, with all the faults of other runs. No node may stop, no state may
//! differ, the version must not be raised before every member knows it, and it must be raised in the end.

#![cfg(feature = "made-up-version")]

use fencepost_sim::world::{Outcome, Plan, World};

/// Each seed runs once, and every tenth twice. Every planted bug of upgrades is found with fewer seeds.
const SEEDS: u64 = 150;

fn run(seed: u64) -> Outcome {
    let plan = Plan::of_upgrades(seed);
    World::new(seed, &plan, false).run(&plan)
}

#[test]
fn a_cluster_is_upgraded_node_by_node_despite_all_faults() {
    let (mut upgraded, mut raises, mut failed) = (0, 0, Vec::new());
    for seed in 1..=SEEDS {
        let outcome = run(seed);
        let replay =
            "replay with: cargo run --release -p fencepost-sim --features made-up-version -- --upgrades --seed";
        if let Some(violation) = outcome.violations.first() {
            failed.push(format!("seed {seed}: {violation:?}; {replay} {seed}"));
        }
        if seed.is_multiple_of(10) && run(seed).trace_hash != outcome.trace_hash {
            failed.push(format!("seed {seed} gave two different runs; {replay} {seed}"));
        }
        upgraded += outcome.faults.get("node upgraded").copied().unwrap_or_default();
        raises += outcome.raises;
    }
    println!("{SEEDS} seeds, {upgraded} nodes upgraded, {raises} raises of the version");
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(upgraded >= 3 * SEEDS && raises >= SEEDS * 3 / 4, "too few upgrades or raises to prove anything");
}
