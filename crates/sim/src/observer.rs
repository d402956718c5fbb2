//! Who looks on: the checkers, the trace, and the figures of a run.

use std::collections::BTreeMap;

use fencepost_core::{Event, SessionId};
use xxhash_rust::xxh3::Xxh3;

use crate::check::Checkers;
use crate::fact::{Fact, WorldTime};
use crate::telling::Telling;

/// Looks on.
pub struct Observer {
    /// What must hold.
    pub checkers: Checkers,
    hash: Xxh3,
    /// What happened, for people; none if nobody reads it, and then nothing is worded.
    trace: Option<Trace>,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Operations that the log has decided.
    pub operations: u64,
    /// Entries of the log.
    pub entries: u64,
    /// What sessions were told unasked.
    pub pushes: u64,
    /// Locks that went from one to another in one step: entries in which a grant ended and another was made.
    pub hand_overs: u64,
}

#[derive(Default)]
struct Trace {
    lines: Vec<Line>,
    telling: Telling,
    /// What the trace calls zero.
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
            trace: traces.then(Trace::default),
            faults: BTreeMap::new(),
            operations: 0,
            entries: 0,
            pushes: 0,
            hand_overs: 0,
        }
    }

    /// A fact: everybody sees it.
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

    /// Takes something that happened into the one number for all of it.
    fn mark(&mut self, at: WorldTime, what: u64, one: u64, other: u64) {
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
        if let Some(trace) = &mut self.trace {
            trace.write(at, who.to_owned(), what());
        }
    }

    /// A line for people that speaks of sessions.
    pub(crate) fn line_with(&mut self, at: WorldTime, who: &str, what: impl FnOnce(&mut Telling) -> String) {
        if let Some(trace) = &mut self.trace {
            let what = what(&mut trace.telling);
            trace.write(at, who.to_owned(), what);
        }
    }

    /// A session of somebody who has a name.
    pub(crate) fn introduce(&mut self, session: SessionId, name: &str) {
        if let Some(trace) = &mut self.trace {
            trace.telling.introduce(session, name);
        }
    }

    /// What happened up to now is not worth telling: the trace begins here, at zero.
    pub(crate) fn begin_trace(&mut self, now: WorldTime) {
        if let Some(trace) = &mut self.trace {
            trace.lines.clear();
            trace.begun = now;
        }
    }

    /// One number for all that happened.
    pub fn trace_hash(&self) -> u64 {
        self.hash.digest()
    }

    /// The trace, if there is one.
    pub fn lines(&self) -> &[Line] {
        self.trace.as_ref().map_or(&[], |trace| &trace.lines)
    }
}
