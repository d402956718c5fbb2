//! Deliberate faults of both sides, for the test that proves that the simulation finds them. See the core's file of the same name.
//!
//! Each fault is one mistake that a session protocol can make. Without the feature `planted-bugs` none of them is compiled in.

fencepost_core::planted_bugs! {
    /// A fault that can be switched on.
    Bug {
        /// An anchor's instant is when the answer came, not when the request was sent.
        AnchorsAtArrival,
        /// A holder believes that it holds a lock until the cluster says otherwise.
        IgnoresDeadlines,
        /// A grant's validity follows the session's TTL alone, not the lock's own TTL or longest hold.
        IgnoresLockTtl,
        /// A push counts as an anchor, at the instant when it came.
        PushesAnchor,
        /// A client that ends drops its unsent completions, as it drops other unsent requests.
        DropsCompletionAtEnd,
        /// A client whose session ends before a completion is answered reports that it succeeded.
        GuessesCompletion,
        /// A stream acts for sessions that are not bound to it.
        ActsUnbound,
        /// A stream acts in a later epoch than its open or attach gave it.
        ActsInLaterEpochs,
        /// Requests held behind an open run even if the open was refused.
        RunsHeldOfRefused,
        /// An answer goes to the stream that the session is bound to, not to the stream that asked.
        AnswersTheBoundStream,
        /// An attach leaves the session bound to the stream that had it.
        KeepsOldBinding,
        /// The stream that loses a session gets no message about it.
        DetachesInSilence,
        /// A repeated open takes a session from the stream that has it.
        RepeatedOpenTakesOver,
        /// An open is submitted while another stream is still bound to the id.
        OpensBeforeTheEnd,
        /// Streams of the correctness tier stay open when the term changes.
        KeepsStreamsOverTerm,
        /// Streams of the efficiency tier stay open when the term changes.
        KeepsEfficiencyStreamsOverTerm,
        /// A push is dropped if the stream's send buffer is not empty.
        DropsPushBehindAnswer,
        /// The hash of a secret is accepted in place of the secret.
        TakesHashForSecret,
        /// A client may leave any number of bytes unread.
        IgnoresOutboxBound,
    }
}
