//! The checkers: one file an invariant. Each sees every fact of a run, in order, beside the ledger of what the log has said so far.

use crate::fact::{Fact, WorldTime};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// When, in the world's time.
    pub at: WorldTime,
    /// What is wrong.
    pub what: String,
}

/// All checkers.
#[derive(Default)]
pub struct Checkers {
    violations: Vec<Violation>,
}

impl Checkers {
    /// Checks one fact.
    pub fn see(&mut self, _at: WorldTime, _fact: &Fact<'_>) {}

    /// The world itself has found something.
    pub fn found(&mut self, invariant: &'static str, at: WorldTime, what: String) {
        self.violations.push(Violation { invariant, at, what });
    }

    /// What was found.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}
