//! Tests the tests: random logs against the model must find each deliberate fault.
//!
//! Prints the number of commands that it took for each. A fault that is not found shows that the differential test is blind
//! there.

#![cfg(feature = "planted-bugs")]
#![allow(clippy::disallowed_methods, reason = "looks for faults on several threads; the crate itself may not")]

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::runner::commands_until_caught;
use fencepost_core::*;

const COMMANDS_MAX: u64 = 200_000;

#[test]
fn every_planted_bug_is_caught() {
    // A fault often makes the state machine panic. The message is expected, so it is not printed.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let make_state = || LockState::new(1);
    plant(None);
    assert_eq!(commands_until_caught(make_state, COMMANDS_MAX), None, "a difference was found without a planted fault");
    // A fault is switched on for one thread only, so several faults are tested at the same time.
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        while let Some(bug) = Bug::ALL.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            plant(Some(bug));
            results.push((bug, commands_until_caught(make_state, COMMANDS_MAX)));
        }
        results
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("`run_seed` catches panics")).collect()
    });
    std::panic::set_hook(hook);
    let mut missed = Vec::new();
    for (bug, caught) in &results {
        match caught {
            Some(commands) => println!("{commands:>8} commands until {bug:?} was caught"),
            None => missed.push(bug),
        }
    }
    assert_eq!(results.len(), Bug::ALL.len());
    assert!(missed.is_empty(), "not caught in {COMMANDS_MAX} commands: {missed:?}");
}
