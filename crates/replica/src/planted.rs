//! Deliberate faults of a replica, for the simulation that proves that it finds faults. See the core's file of the same name.
//!
//! Below the list stand the questions that the rules ask. Each has a name that reads as part of its rule, and one answer unless its
//! fault is switched on. The faults that need a replica's fields are in `replica/faults.rs`.

use fencepost_core::{Batch, KnownVersions};

fencepost_core::planted_bugs! {
    /// A fault that can be switched on.
    Bug {
        /// What must be durable first is said to be when it is only handed to the disk.
        AcknowledgesBeforeSync,
        /// A leader that is none any more goes on stamping, others take what it proposes, and all apply it.
        DeposedLeaderProposes,
        /// A new leader counts from what it has applied, not from the highest stamp in its log.
        BaseFromApplied,
        /// A new leader's first entry lifts no deadlines.
        NoGrace,
        /// A read is answered by whoever believes that it leads.
        ReadsWithoutConsensus,
        /// Logical time runs faster than the leader's clock.
        TimeRunsFast,
        /// A sign of life is confirmed before it is in the log, and never gets there.
        RenewsWithoutTheLog,
        /// Time that no entry needed is not in the log, so a new leader counts from an old stamp.
        RewindsTime,
        /// The leader's time travels in heartbeats instead of the log, and a new leader counts from the latest that it heard.
        TimeInHeartbeats,
        /// A leader raises the version to the newest that it knows, whatever the members know.
        RaisesWithoutAsking,
        /// A leader that is about to raise the version asks what the voters know, and no learner.
        LearnersDoNotCount,
        /// A node goes by the newest rules that it knows, not by those of the active version.
        RulesOfTheNewest,
    }
}

/// True: nodes refuse the proposals and entries of a deposed leader, and a deposed leader stops leading.
// Rule: one-proposer
pub(crate) fn enforces_one_proposer() -> bool {
    !planted(Bug::DeposedLeaderProposes)
}

/// True: the first entry of a new leader extends the deadlines.
// Rule: failover-grace
pub(crate) fn gives_failover_grace() -> bool {
    !planted(Bug::NoGrace)
}

/// True: a new leader counts on from the stamps in its log, including those of entries that are not applied yet.
// Rule: logical-time
pub(crate) fn counts_on_from_the_log() -> bool {
    !planted(Bug::BaseFromApplied)
}

/// True: a leader writes its time into the log, for a leader after it.
// Rule: bounded-late
pub(crate) fn keeps_time_in_the_log() -> bool {
    !planted(Bug::RewindsTime) && !planted(Bug::TimeInHeartbeats)
}

/// The nanoseconds that logical time moves on by when a leader has counted this many: as many.
// Rule: logical-time
pub(crate) fn at_the_speed_of_the_clock(counted_ns: u64) -> u64 {
    if planted(Bug::TimeRunsFast) { counted_ns + counted_ns / 20 } else { counted_ns }
}

/// True: messages that acknowledge a write wait until it is durable.
pub(crate) fn waits_for_the_disk() -> bool {
    !planted(Bug::AcknowledgesBeforeSync)
}

/// The batch as the core must apply it: unchanged, under the rules of the active version.
// Rule: format-version
pub(crate) fn under_the_active_version(batch: Batch, known: KnownVersions) -> Batch {
    if planted(Bug::RulesOfTheNewest) { Batch { raise_to: Some(known.newest()), ..batch } } else { batch }
}
