//! The state machine against the naive model: random logs, with everything compared and every invariant checked after
//! each entry.
//!
//! `FENCEPOST_COMMANDS=N` runs longer, `FENCEPOST_SEED=N` replays one seed. A failing seed prints the shortest log that
//! was found to fail.

#![allow(clippy::disallowed_methods, reason = "how long to run and which seed to replay come from the environment")]

mod model;

use fencepost_core::*;
use model::runner::{report, run_seed};
use model::tally::{EXPECTED, Tally};

const COMMANDS_DEFAULT: u64 = 1_000_000;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// Runs seeds until enough commands were applied; returns what was reached.
fn run(commands_least: u64, make_states: impl Fn() -> Vec<LockState>) -> Tally {
    let mut tally = Tally::default();
    let (mut commands, mut seeds) = (0, 0);
    let only = number_from("FENCEPOST_SEED");
    let first = only.unwrap_or(1);
    for seed in first.. {
        match run_seed(seed, make_states(), &mut tally) {
            Ok(run) => commands += run,
            Err(failure) => panic!("{}", report(seed, failure, &make_states)),
        }
        seeds += 1;
        if only.is_some() || commands >= commands_least {
            break;
        }
    }
    println!("{tally}\n{commands} commands in {seeds} seeds from {first} on");
    tally
}

#[test]
fn the_model_alone_keeps_the_invariants() {
    run(100_000, Vec::new);
}

#[test]
fn the_state_machine_agrees_with_the_model() {
    let commands = number_from("FENCEPOST_COMMANDS").unwrap_or(COMMANDS_DEFAULT);
    let tally = run(commands, || vec![LockState::new(1), LockState::new(2)]);
    if number_from("FENCEPOST_SEED").is_none() && commands >= COMMANDS_DEFAULT {
        let missing = tally.missing(EXPECTED);
        assert!(missing.is_empty(), "never reached: {missing:?}");
    }
}
