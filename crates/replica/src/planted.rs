//! Deliberate faults of a replica, for the simulation that proves that it finds faults. See the core's file of the same name.

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
