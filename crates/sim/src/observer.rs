//! The observer of a run: hands every fact to the checkers, writes the trace, and counts.
//!
//! It has no influence on a run. Trace lines are worded only if a trace was requested, and they are not part of the trace hash.

use std::collections::BTreeMap;

use fencepost_core::{Event, SessionId};
use xxhash_rust::xxh3::Xxh3;

use crate::check::Checkers;
use crate::fact::{Fact, WorldTime};
use crate::telling::Telling;

/// The observer of one run.
pub struct Observer {
    /// The checkers of the invariants.
    pub checkers: Checkers,
    hash: Xxh3,
    /// The lines for people. `None` if no trace was requested; then no line is worded.
    trace: Option<Trace>,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Operations that the log has decided.
    pub operations: u64,
    /// Entries of the log.
    pub entries: u64,
    /// Pushes to sessions.
    pub pushes: u64,
    /// Entries that handed a lock over: a grant ended and another was made in the same entry.
    pub hand_overs: u64,
}

#[derive(Default)]
struct Trace {
    lines: Vec<Line>,
    telling: Telling,
    /// The world time that the trace shows as zero.
    begun: WorldTime,
}

impl Trace {
    fn write(&mut self, at: WorldTime, who: String, what: String) {
        self.lines.push(Line { at_ms: (at.0 as f64 - self.begun.0 as f64) / 1e6, who, what });
    }
}

/// One line of a trace.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Line {
    /// World time in milliseconds, since the beginning of the trace.
    pub at_ms: f64,
    /// Who did it: a node, a session, a client, the store, the log, or the world.
    pub who: String,
    /// What happened.
    pub what: String,
}

impl Observer {
    /// An observer with or without a trace. `administered` says that administrators may break grants: holders then act for a while after
    /// they lost them.
    pub fn new(traces: bool, administered: bool) -> Observer {
        Observer {
            checkers: Checkers::new(administered),
            hash: Xxh3::new(),
            trace: traces.then(Trace::default),
            faults: BTreeMap::new(),
            operations: 0,
            entries: 0,
            pushes: 0,
            hand_overs: 0,
        }
    }

    /// Takes a fact: counts it, traces it and has it checked.
    pub fn fact(&mut self, at: WorldTime, fact: &Fact<'_>) {
        self.count(at, fact);
        if let Some(trace) = &mut self.trace {
            for (who, what) in trace.telling.tell(fact) {
                trace.write(at, who, what);
            }
        }
        self.checkers.see(at, fact);
    }

    fn count(&mut self, at: WorldTime, fact: &Fact<'_>) {
        match fact {
            Fact::Logged(entry) => {
                self.mark(at, 1, entry.position.index, entry.effects.events.len() as u64);
                self.entries += 1;
                self.operations += (entry.batch.operations.len() + entry.batch.renewals.len()) as u64;
                self.pushes += entry.effects.pushes.len() as u64;
                let events = &entry.effects.events;
                let ended = events.iter().any(|event| matches!(event, Event::Ended { .. }));
                let granted = events.iter().any(|event| matches!(event, Event::Granted { .. }));
                self.hand_overs += u64::from(ended && granted);
            }
            Fact::Applied { node, position, state_hash } => {
                self.mark(at, *node, position.index, *state_hash);
            }
            Fact::Store(access) => self.mark(at, 2, access.token.0, u64::from(access.accepted)),
            Fact::Asked { request, .. } => self.mark(at, 3, request.session.0 as u64, request.number.0),
            Fact::Heard { session, position, .. } => self.mark(at, 4, session.0 as u64, position.index),
            Fact::Told { request, .. } => self.mark(at, 5, request.session.0 as u64, request.number.0),
            Fact::Acts { session, token, .. } => self.mark(at, 6, session.0 as u64, token.0),
            Fact::InMemory { fact, .. } => self.count(at, fact),
            Fact::Submitted(command) => self.mark(at, 7, command.stream.0, command.session.0 as u64),
            Fact::Sent { stream, message } => self.mark(at, 8, stream.0, message.decided.len() as u64),
            _ => {}
        }
    }

    /// Adds something to the trace hash.
    fn mark(&mut self, at: WorldTime, what: u64, one: u64, other: u64) {
        for number in [at.0, what, one, other] {
            self.hash.update(&number.to_le_bytes());
        }
    }

    /// Counts and traces a fault.
    pub fn fault(&mut self, at: WorldTime, kind: &'static str, who: impl FnOnce() -> String) {
        *self.faults.entry(kind).or_default() += 1;
        self.line(at, "fault", || format!("{kind}: {}", who()));
    }

    /// Writes a line to the trace.
    pub fn line(&mut self, at: WorldTime, who: &str, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.write(at, who.to_owned(), what());
        }
    }

    /// Writes a line to the trace that names sessions.
    pub(crate) fn line_with(&mut self, at: WorldTime, who: &str, what: impl FnOnce(&mut Telling) -> String) {
        if let Some(trace) = &mut self.trace {
            let what = what(&mut trace.telling);
            trace.write(at, who.to_owned(), what);
        }
    }

    /// Names a session after its user in the trace.
    pub(crate) fn introduce(&mut self, session: SessionId, name: &str) {
        if let Some(trace) = &mut self.trace {
            trace.telling.introduce(session, name);
        }
    }

    /// Drops the trace up to now. It begins here, at time zero.
    pub(crate) fn begin_trace(&mut self, now: WorldTime) {
        if let Some(trace) = &mut self.trace {
            trace.lines.clear();
            trace.begun = now;
        }
    }

    /// A hash of everything that happened up to now.
    pub fn trace_hash(&self) -> u64 {
        self.hash.digest()
    }

    /// The trace, if there is one.
    pub fn lines(&self) -> &[Line] {
        self.trace.as_ref().map_or(&[], |trace| &trace.lines)
    }
}
