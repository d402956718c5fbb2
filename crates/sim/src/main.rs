//! Runs the simulation: one seed with a trace to read, or many with a summary.

use fencepost_sim::world::{Plan, World};

fn main() {
    let mut total = 0;
    let started = std::time::Instant::now();
    let (mut corrupted, mut refused, mut ops) = (0, 0, 0);
    let seeds: u64 = std::env::args().nth(1).map_or(10, |n| n.parse().expect("a number"));
    let first: u64 = std::env::args().nth(2).map_or(1, |n| n.parse().expect("a number"));
    let traces = std::env::args().nth(3).is_some();
    for seed in first..first + seeds {
        let plan = Plan::of_seed(seed);
        let mut world = World::new(seed, &plan, traces);
        let outcome = world.run(&plan);
        total += outcome.simulated_ms;
        corrupted += outcome.store.corrupted;
        refused += outcome.store.refused;
        ops += outcome.operations;
        for line in world.observer.lines() {
            println!("{:10.3} {:6} {}", line.at_ms, line.who, line.what);
        }
        println!(
            "{seed}: {:x} {} ms, {} ops, {} entries, served {}, {:?}",
            outcome.trace_hash,
            outcome.simulated_ms,
            outcome.operations,
            outcome.entries,
            outcome.served,
            outcome.store
        );
        for violation in &outcome.violations {
            println!("   {violation:?}");
        }
    }
    println!(
        "{ops} ops, corrupted {corrupted} refused {refused}; {} x",
        total as f64 / 1000.0 / started.elapsed().as_secs_f64()
    );
}
