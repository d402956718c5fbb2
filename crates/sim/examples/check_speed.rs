//! Measures the speed of the checkers: generates a million operations of a busy lock state, then checks them.

#[path = "../tests/it/random_log/mod.rs"]
mod random_log;

use std::time::Instant;

use fencepost_sim::check::Checkers;
use fencepost_sim::fact::{Fact, LoggedEntry, WorldTime};

use random_log::{Size, World};

const OPERATIONS: usize = 1_000_000;

fn main() {
    for (label, sessions, names, operations) in
        [("small entries", 200, 400, 4), ("large entries", 1_000, 4_000, 200), ("hot names", 500, 12, 20)]
    {
        let mut world = World::new(1, Size { sessions, names, operations, unusual_percent: 2 });
        let mut entries: Vec<LoggedEntry> = Vec::new();
        let began = Instant::now();
        let mut count = 0;
        while count < OPERATIONS {
            let entry = world.next_entry();
            count += entry.batch.operations.len();
            entries.push(entry);
        }
        let generated = began.elapsed();
        let mut checkers = Checkers::new(true);
        let began = Instant::now();
        for entry in &entries {
            checkers.see(WorldTime::default().after_ms(entry.stamp.0), &Fact::Logged(entry));
        }
        let checked = began.elapsed();
        println!("{label}: {count} operations made in {generated:?}, checked in {checked:?}");
        println!("  {:?}", checkers.report());
        for violation in checkers.violations() {
            println!("  {violation:?}");
        }
    }
}
