//! Who looks on: the checkers, the trace, and the figures of a run.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::Xxh3;

use crate::check::Checkers;
use crate::fact::{Fact, WorldTime};

/// Looks on.
pub struct Observer {
    /// What must hold.
    pub checkers: Checkers,
    hash: Xxh3,
    /// What happened, for people; none if nobody reads it.
    lines: Option<Vec<Line>>,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Operations that the log has decided.
    pub operations: u64,
    /// Entries of the log.
    pub entries: u64,
}

/// One line of a trace.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Line {
    /// Milliseconds of the world's time.
    pub at_ms: f64,
    /// Whose doing it is: a node, a client, the store, the log, or the world's.
    pub who: String,
    /// What happened.
    pub what: String,
}

impl Observer {
    /// With or without a trace for people. If administrators break grants, holders cannot know at once that they have lost them.
    pub fn new(traces: bool, administered: bool) -> Observer {
        Observer {
            checkers: Checkers::new(administered),
            hash: Xxh3::new(),
            lines: traces.then(Vec::new),
            faults: BTreeMap::new(),
            operations: 0,
            entries: 0,
        }
    }

    /// A fact: everybody sees it.
    pub fn fact(&mut self, at: WorldTime, fact: &Fact<'_>) {
        match fact {
            Fact::Logged(entry) => {
                self.mark(at, 1, entry.position.index, entry.effects.events.len() as u64);
                self.entries += 1;
                self.operations += (entry.batch.operations.len() + entry.batch.renewals.len()) as u64;
                for event in &entry.effects.events {
                    self.line(at, "log", || format!("{}: {event:?}", entry.position.index));
                }
            }
            Fact::Applied { node, position, state_hash } => {
                self.mark(at, *node, position.index, *state_hash);
            }
            Fact::Acts { session, grant, token } => {
                self.line(at, "user", || format!("{session:?} acts under {grant:?} with {token:?}"));
            }
            Fact::Told { request, answer } => {
                self.line(at, "user", || format!("{:?} {:?} ended: {answer:?}", request.session, request.number));
            }
            Fact::Asked { request, action } => {
                self.line(at, "user", || format!("{:?} {:?} asks: {action:?}", request.session, request.number));
            }
            Fact::Store(access) => {
                self.mark(at, 2, access.token.0, u64::from(access.accepted));
                self.line(at, "store", || format!("{access:?}"));
            }
            _ => {}
        }
        self.checkers.see(at, fact);
    }

    /// Something that is no fact for the checkers, but part of what happened.
    pub fn mark(&mut self, at: WorldTime, what: u64, one: u64, other: u64) {
        for number in [at.0, what, one, other] {
            self.hash.update(&number.to_le_bytes());
        }
    }

    /// A fault that was made.
    pub fn fault(&mut self, at: WorldTime, kind: &'static str, who: impl FnOnce() -> String) {
        *self.faults.entry(kind).or_default() += 1;
        self.line(at, "fault", || format!("{kind}: {}", who()));
    }

    /// A line for people.
    pub fn line(&mut self, at: WorldTime, who: &str, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(Line { at_ms: at.0 as f64 / 1e6, who: who.to_owned(), what: what() });
        }
    }

    /// One number for all that happened.
    pub fn trace_hash(&self) -> u64 {
        self.hash.digest()
    }

    /// The trace, if there is one.
    pub fn lines(&self) -> &[Line] {
        self.lines.as_deref().unwrap_or_default()
    }
}
