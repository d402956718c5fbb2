//! The findings of the checkers: violations, and how much was checked.
//!
//! The counts matter as much as the violations: a checker that checked nothing proves nothing. The tests require that no count is
//! zero, except `heard_too_late`, which must be zero.

use crate::fact::WorldTime;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the invariant.
    pub invariant: &'static str,
    /// When, in the world's time.
    pub at: WorldTime,
    /// What is wrong, in words.
    pub what: String,
}

/// How much was checked.
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
    /// New grants of requests that had waited.
    pub hand_overs: u64,
    /// Re-entries into a grant.
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
    /// The longest delay between a deadline and the end, in logical milliseconds, in an undisturbed world.
    pub latest_ms: u64,
    /// Requests refused because they would have closed a cycle.
    pub deadlocks: u64,
    /// Searches for a cycle of waiters after an entry, each from one waiter.
    pub cycle_searches: u64,
    /// Checks whether a waiter can be granted.
    pub looks: u64,
    /// Repeated answers to retried operations.
    pub repeats: u64,
    /// Answers that reached a client and were compared with the log.
    pub heard: u64,
    /// Answers that were not compared: they reached a client when the checker had already forgotten the log entry.
    pub heard_too_late: u64,
    /// Requests whose order in the log was compared with the real time of sending.
    pub ordered_requests: u64,
    /// Linearizable reads.
    pub reads: u64,
    /// Events that watchers received.
    pub watched: u64,
    /// Times that a watcher was told that events are compacted.
    pub compacted: u64,
    /// State hashes that were compared with an earlier one.
    pub hashes_compared: u64,
    /// Stamps that were compared with the times of earlier requests.
    pub proved_stamps: u64,
    /// Acts of users that believed they held a grant.
    pub acts: u64,
    /// Acts that the black-box checker compared, without the log.
    pub acts_ordered: u64,
    /// Acts of users that believed they held a lock of the efficiency tier.
    pub acts_in_memory: u64,
    /// Accesses to the guarded store.
    pub accesses: u64,
    /// Accesses with a token that the store must refuse.
    pub stale_accesses: u64,
    /// Sessions, grants, waits and rests whose duration in real time was checked.
    pub timed_leases: u64,
    /// Leader changes in lease runs.
    pub lead_changes: u64,
    /// Planned leader changes in lease runs.
    pub planned_lead_changes: u64,
    /// Grants for jobs.
    pub jobs_granted: u64,
    /// Attempts that began.
    pub attempts: u64,
    /// Checkpoints that were stored.
    pub checkpoints: u64,
    /// Jobs that were completed, by grants or by administrators.
    pub completions: u64,
    /// Acquires that were answered that their job is completed.
    pub jobs_completed_before: u64,
    /// Waits that ended because their job was completed.
    pub jobs_completed_while_waiting: u64,
    /// Completions that were sent again after the grant had ended, and got the same answer.
    pub jobs_completed_again: u64,
    /// Completions that came after their grant had ended without one. They must be refused.
    pub late_completions: u64,
    /// Acquires that were refused because the cluster was restored.
    pub jobs_refused: u64,
    /// Grants for jobs that an attach listed.
    pub jobs_attached: u64,
    /// Reads of jobs that were compared with the log.
    pub job_reads: u64,
    /// Those that showed a checkpoint.
    pub checkpoints_read: u64,
    /// Completions whose answer was lost, and of which a read said what became of them.
    pub unknowns_resolved: u64,
    /// Rows of jobs that were written at the store.
    pub job_rows: u64,
    /// Completions for which such a row was looked up.
    pub job_rows_checked: u64,
    /// Commands that nodes submitted for streams.
    pub door_commands: u64,
    /// Times that a session was bound to a stream.
    pub door_bindings: u64,
    /// Answers that nodes sent on streams.
    pub door_answers: u64,
    /// Pushes that nodes sent on streams.
    pub door_pushes: u64,
    /// Times that a stream was told that its session is attached elsewhere.
    pub door_detached: u64,
    /// Refusals that the edges themselves sent on streams.
    pub door_refusals: u64,
    /// Bytes of the largest message on a stream.
    pub door_bytes_max: u64,
    /// Checks, after the world is healed, whether a node serves.
    pub serves: u64,
    /// Members that a leader showed as up or down.
    pub shown: u64,
    /// Waiters that were checked at the end of a run.
    pub waiters_at_end: u64,
}

/// Collects violations up to a bound. The first ones matter: later ones are often consequences.
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
