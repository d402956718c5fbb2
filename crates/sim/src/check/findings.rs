//! What the checkers found, and how much they looked at.

use crate::fact::WorldTime;

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

/// How much was looked at. A check that looked at nothing has found nothing, either.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Entries of the log.
    pub entries: u64,
    /// Their events.
    pub events: u64,
    /// Their operations.
    pub operations: u64,
    /// New grants, of locks or permits.
    pub grants: u64,
    /// Those of them that had waited.
    pub hand_overs: u64,
    /// Further entries into a grant.
    pub re_entries: u64,
    /// Grants of permits.
    pub permits: u64,
    /// Grants of several locks at once.
    pub multi_locks: u64,
    /// Grants that got a stronger mode.
    pub upgrades: u64,
    /// Sessions and grants that ended by time.
    pub expiries: u64,
    /// Waits that ended by time.
    pub time_outs: u64,
    /// Grants that rested after their end.
    pub rests: u64,
    /// How long after its deadline the latest of what ended by time did so, in logical time, while nothing was disturbed.
    pub latest_ms: u64,
    /// Requests refused because they would have closed a cycle.
    pub deadlocks: u64,
    /// Waiters from which a cycle was searched and not found.
    pub cycle_searches: u64,
    /// Waiters that were looked at, whether anything keeps them back, because something was freed.
    pub looks: u64,
    /// Operations that were answered as before.
    pub repeats: u64,
    /// Answers that reached a client and were compared with the log.
    pub heard: u64,
    /// Answers that reached a client too late to be compared.
    pub heard_too_late: u64,
    /// Requests whose order in the log was compared with when they were asked.
    pub ordered_requests: u64,
    /// Linearizable reads.
    pub reads: u64,
    /// Events that a watcher was given.
    pub watched: u64,
    /// Times that a watcher was told that events are compacted.
    pub compacted: u64,
    /// State hashes that were compared with one that was told before.
    pub hashes_compared: u64,
    /// Stamps that were compared with what the requests before them prove.
    pub proved_stamps: u64,
    /// Times that somebody acted in the belief that it holds a grant.
    pub acts: u64,
    /// Times that the order of acts was compared without looking at the log.
    pub acts_ordered: u64,
    /// Times that somebody acted in the belief that it holds a lock of the efficiency tier.
    pub acts_in_memory: u64,
    /// Accesses to the guarded store.
    pub accesses: u64,
    /// Those with a token that it has to refuse.
    pub stale_accesses: u64,
    /// Sessions, holds, waits and rests of which it was checked how long they lasted in real time.
    pub timed_leases: u64,
    /// Changes of the lead in those runs.
    pub lead_changes: u64,
    /// Those of them that were planned.
    pub planned_lead_changes: u64,
    /// Commands that nodes submitted for streams.
    pub door_commands: u64,
    /// Times that a session was bound to a stream.
    pub door_bindings: u64,
    /// Answers that left on a stream.
    pub door_answers: u64,
    /// Pushes that left on a stream.
    pub door_pushes: u64,
    /// Times that a stream was told that its session is attached elsewhere.
    pub door_detached: u64,
    /// Times that a stream was told that something is not taken.
    pub door_refusals: u64,
    /// Bytes of the largest message that left on a stream.
    pub door_bytes_max: u64,
    /// Nodes that said whether they serve.
    pub serves: u64,
    /// Members that a leader showed as up or not.
    pub shown: u64,
    /// Waiters that were looked at in the end.
    pub waiters_at_end: u64,
}

/// Collects violations, up to a bound: the first ones tell the story.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) now: WorldTime,
    pub(super) violations: Vec<Violation>,
    pub(super) report: Report,
}

impl Findings {
    const VIOLATIONS_MAX: usize = 100;

    pub(super) fn found(&mut self, invariant: &'static str, what: impl FnOnce() -> String) {
        if self.violations.len() < Findings::VIOLATIONS_MAX {
            self.violations.push(Violation { invariant, at: self.now, what: what() });
        }
    }

    /// Notes a violation unless this holds.
    pub(super) fn ensure(&mut self, holds: bool, invariant: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.found(invariant, what);
        }
    }
}
