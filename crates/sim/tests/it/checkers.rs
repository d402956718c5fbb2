//! The checkers against random logs of the real state machine: they find nothing in a correct log, and every planted bug that shows in
//! the log.

use fencepost_sim::check::Checkers;
use fencepost_sim::fact::{Fact, WorldTime};

use crate::random_log::{Size, World};

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
fn nothing_is_found_in_correct_logs_and_every_check_runs() {
    let mut total = [0; 20];
    // In seed 959 a release ends an upgrade, and an earlier operation of the same entry retries that upgrade.
    for seed in (1..=400).chain([959]) {
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
            report.jobs_granted,
            report.attempts,
            report.checkpoints,
            report.completions,
            report.jobs_completed_before,
            report.jobs_completed_while_waiting,
            report.jobs_completed_again,
            report.late_completions,
        ];
        for (sum, count) in total.iter_mut().zip(looked_at) {
            *sum += count;
        }
    }
    println!("checked {total:?}");
    assert!(total.iter().all(|count| *count > 100), "{total:?}");
}

/// Each planted bug of the state machine that shows in the log is found from the log alone.
#[cfg(feature = "planted-bugs")]
mod planted {
    use std::collections::BTreeMap;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use fencepost_core::{Bug, plant};

    use super::check;

    const SEEDS: u64 = 60;

    /// How many seeds found a bug, by the checker that found it first. A seed that makes the state machine panic does not count.
    fn found_by(bug: Bug) -> BTreeMap<&'static str, u64> {
        let mut found = BTreeMap::new();
        for seed in 1..=SEEDS {
            let checked = catch_unwind(AssertUnwindSafe(|| {
                plant(Some(bug));
                check(seed, 300)
            }));
            plant(None);
            if let Some(violation) = checked.ok().and_then(|checkers| checkers.violations().first().cloned()) {
                *found.entry(violation.invariant).or_default() += 1;
            }
        }
        found
    }

    #[test]
    fn every_bug_that_shows_in_the_log_is_found() {
        // Some bugs make the state machine panic. The texts of these panics would only be noise.
        std::panic::set_hook(Box::new(|_| {}));
        let mut missed = Vec::new();
        for bug in Bug::ALL.iter().copied() {
            // These show only when a state is restored from a snapshot or a backup.
            let is_hidden = matches!(
                bug,
                Bug::SnapshotWithoutQueue
                    | Bug::RestoreWithoutTokenJump
                    | Bug::JobsLostInSnapshot
                    | Bug::RestoreGrantsJobs
                    // No event has the bytes of a checkpoint: this shows in reads.
                    | Bug::CheckpointOfAnotherKey
            );
            let found = found_by(bug);
            println!("{bug:?}: of {SEEDS} seeds {found:?}");
            if found.is_empty() != is_hidden {
                missed.push(bug);
            }
        }
        drop(std::panic::take_hook());
        assert!(missed.is_empty(), "not as expected: {missed:?}");
    }
}
