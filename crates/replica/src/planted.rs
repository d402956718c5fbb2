//! Deliberate faults of a replica, for the simulation that proves that it finds faults. See the core's file of the same name.
//!
//! The functions below the list are what the rules call. Each has a name that reads as part of its rule, and always the same answer
//! unless its fault is switched on. The faults that need a replica's fields are in `replica/faults.rs`.

use fencepost_core::{Batch, KnownVersions};

fencepost_core::planted_bugs! {
    /// A fault that can be switched on.
    Bug {
        /// A write is acknowledged when it is handed to the disk, before it is durable.
        AcknowledgesBeforeSync,
        /// A deposed leader keeps stamping entries, the other nodes take its proposals, and all apply them.
        DeposedLeaderProposes,
        /// A new leader counts from the last applied stamp, not from the highest stamp in its log.
        BaseFromApplied,
        /// A new leader's first entry extends no deadlines.
        NoGrace,
        /// A node that believes that it leads answers a read without asking the others.
        ReadsWithoutConsensus,
        /// Logical time runs faster than the leader's clock.
        TimeRunsFast,
        /// A keep-alive is confirmed before it is in the log, and never gets there.
        RenewsWithoutTheLog,
        /// The leader writes no entry just to log its time, so a new leader counts from an old stamp.
        RewindsTime,
        /// The leader's time travels in heartbeats instead of the log, and a new leader counts from the latest heartbeat it got.
        TimeInHeartbeats,
        /// A leader raises the version to the newest that it knows, whatever the other members know.
        RaisesWithoutAsking,
        /// A leader raises the version when all voters know it, even if a learner does not.
        LearnersDoNotCount,
        /// A node applies the newest rules that it knows, not the rules of the active version.
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

/// True: a new leader counts on from the highest stamp in its log, even if that entry is not applied yet.
// Rule: logical-time
pub(crate) fn counts_on_from_the_log() -> bool {
    !planted(Bug::BaseFromApplied)
}

/// True: a leader writes its time into the log, for a leader after it.
// Rule: bounded-late
pub(crate) fn keeps_time_in_the_log() -> bool {
    !planted(Bug::RewindsTime) && !planted(Bug::TimeInHeartbeats)
}

/// How many nanoseconds logical time advances when the leader's clock has counted this many: the same number.
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
