//! Deliberate faults of the client, for the simulation that proves that it finds faults. See the core's file of the same name.

fencepost_core::planted_bugs! {
    /// A fault that can be switched on.
    Bug {
        /// An anchor's instant is when the answer came, not when the question was sent.
        AnchorsAtArrival,
        /// A holder believes until it is told otherwise.
        IgnoresDeadlines,
        /// Only the session's TTL is looked at, not the lock's own or its longest hold.
        IgnoresLockTtl,
        /// A grant that was pushed anchors, at the instant when the push came.
        PushesAnchor,
    }
}
