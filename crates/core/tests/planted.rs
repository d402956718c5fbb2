//! The tests are tested: each deliberate fault must be caught by random logs against the model.
//!
//! Says how many commands it took for each. A fault that is not caught means that the differential test is blind there.

#![cfg(feature = "planted-bugs")]

mod model;

use fencepost_core::*;
use model::runner::commands_until_caught;

const COMMANDS_MAX: u64 = 200_000;

#[test]
fn every_planted_bug_is_caught() {
    // A caught fault often is a panic of the state machine itself; its message is expected and would only be noise.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let make_state = || LockState::new(1);
    plant(None);
    assert_eq!(commands_until_caught(make_state, COMMANDS_MAX), None, "caught without a planted bug");
    let mut missed = Vec::new();
    for bug in Bug::ALL.iter().copied() {
        plant(Some(bug));
        match commands_until_caught(make_state, COMMANDS_MAX) {
            Some(commands) => println!("{commands:>8} commands until {bug:?} was caught"),
            None => missed.push(bug),
        }
    }
    plant(None);
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not caught in {COMMANDS_MAX} commands: {missed:?}");
}
