//! Deliberate faults of both ends, for the simulation that proves that it finds faults. See the core's file of the same name.

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
        /// A stream acts for sessions that are not bound to it.
        ActsUnbound,
        /// A stream acts in an epoch that it was not given yet.
        ActsInLaterEpochs,
        /// What was held behind an open runs, however the open was answered.
        RunsHeldOfRefused,
        /// An answer goes to the stream that the session is bound to, not to the one that asked.
        AnswersTheBoundStream,
        /// An attach leaves the session bound to the stream that had it.
        KeepsOldBinding,
        /// The stream that loses a session is not told.
        DetachesInSilence,
        /// A repeated open takes a session from the stream that has it.
        RepeatedOpenTakesOver,
        /// An open is submitted before the end of the session that had its id is known.
        OpensBeforeTheEnd,
        /// Streams of the correctness tier go on in another term.
        KeepsStreamsOverTerm,
        /// Streams of the efficiency tier go on in another term.
        KeepsEfficiencyStreamsOverTerm,
        /// A push is dropped if an answer waits for the same stream.
        DropsPushBehindAnswer,
        /// The hash of a secret is taken for the secret.
        TakesHashForSecret,
        /// A reader may leave any number of bytes unread.
        IgnoresOutboxBound,
    }
}
