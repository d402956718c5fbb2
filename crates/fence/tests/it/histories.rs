//! The rules of fencing against random histories of the real lock state machine: shared, update and exclusive grants, multi-locks,
//! conversions, paths, breaks, pauses past the lease. No write that was decided from a superseded grant is ever admitted, and
//! no client that holds its locks is ever refused.

use crate::history::{Careless, Tally, play};

const HISTORIES: u64 = 3_000;
const STEPS: usize = 400;

// Rule: fence, fence-hierarchy, claim-before-read, fence-gc
#[test]
fn no_write_from_a_superseded_grant_is_admitted_and_no_holder_refused() {
    let mut sum = Tally::default();
    for seed in 0..HISTORIES {
        let tally = play(seed, STEPS, None).unwrap_or_else(|why| panic!("{why}"));
        sum.writes_admitted += tally.writes_admitted;
        sum.writes_refused += tally.writes_refused;
        sum.writes_superseded += tally.writes_superseded;
        sum.writes_from_two_locks += tally.writes_from_two_locks;
        sum.reads_refused += tally.reads_refused;
        sum.conversions += tally.conversions;
        sum.marks_forgotten += tally.marks_forgotten;
    }
    println!("{sum:?}");
    let figures = [
        sum.writes_admitted,
        sum.writes_refused,
        sum.writes_superseded,
        sum.writes_from_two_locks,
        sum.reads_refused,
        sum.conversions,
        sum.marks_forgotten,
    ];
    assert!(figures.iter().all(|figure| *figure > HISTORIES), "everything happens often: {sum:?}");
}

/// Tests the test above, and that every rule is needed: without any single rule, some history fails.
#[test]
fn without_any_single_rule_some_history_fails() {
    use Careless::{ForgetsTheLiving, ForgetsWithoutBase, IgnoresPaths, ReadsUnannounced, ShowsOnlyWhatItWrites};
    for careless in [ReadsUnannounced, ShowsOnlyWhatItWrites, IgnoresPaths, ForgetsWithoutBase, ForgetsTheLiving] {
        let wrong = (0..HISTORIES).find_map(|seed| play(seed, STEPS, Some(careless)).err());
        println!("{careless:?}: {}", wrong.unwrap_or_else(|| panic!("{careless:?} goes unnoticed")));
    }
}
