//! The checkers against random logs of the real state machine: they find nothing in a right one, and every planted fault in a wrong one.

mod random_log;

use fencepost_sim::check::Checkers;
use fencepost_sim::fact::{Fact, WorldTime};

use random_log::{Size, World};

fn size(seed: u64) -> Size {
    Size {
        sessions: 3 + seed % 5,
        names: 2 + seed % 7,
        operations: 1 + seed % 4,
        unusual_percent: [0, 5, 15, 30][(seed % 4) as usize],
    }
}

fn check(seed: u64, entries: usize) -> Checkers {
    let mut checkers = Checkers::new(true);
    let mut world = World::new(seed, size(seed));
    for _ in 0..entries {
        let entry = world.next_entry();
        checkers.see(WorldTime::default().after_ms(entry.stamp.0), &Fact::Logged(&entry));
        if !checkers.violations().is_empty() {
            return checkers;
        }
    }
    checkers.see(WorldTime::default(), &Fact::Over);
    checkers
}

#[test]
fn nothing_is_found_in_right_logs_and_everything_is_looked_at() {
    let mut total = [0; 12];
    for seed in 1..=200 {
        let checkers = check(seed, 400);
        assert!(checkers.violations().is_empty(), "seed {seed}: {:#?}", &checkers.violations()[0]);
        let report = checkers.report();
        let looked_at = [
            report.grants,
            report.hand_overs,
            report.re_entries,
            report.permits,
            report.multi_locks,
            report.upgrades,
            report.expiries,
            report.time_outs,
            report.rests,
            report.deadlocks,
            report.cycle_searches,
            report.repeats,
        ];
        for (sum, count) in total.iter_mut().zip(looked_at) {
            *sum += count;
        }
    }
    println!("looked at {total:?}");
    assert!(total.iter().all(|count| *count > 100), "{total:?}");
}
