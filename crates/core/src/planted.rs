//! Deliberate faults, for the tests that show that the other tests find faults.
//!
//! Without the feature `planted-bugs`, every function here is a constant or returns its argument, and nothing of it is left
//! in the binary. With the feature, a test switches one fault on for its own thread.
//!
//! A rule never asks whether a fault is planted. It calls a function of this file whose name says what the rule does.

use crate::command::JobReport;
use crate::mode::Mode;
use crate::once::Known;
use crate::state::LockState;
use crate::waiter::Freed;
use crate::words::{Arrival, GrantId, JobKey, LogicalMs, Token};

/// Declares the faults of a crate that has the feature `planted-bugs`: the enum of faults, `plant`, which switches one on, and
/// `planted`, which says whether it is on.
#[doc(hidden)]
#[macro_export]
macro_rules! planted_bugs {
    ($(#[$list:meta])* $Bug:ident { $($(#[$about:meta])* $bug:ident,)+ }) => {
        $(#[$list])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(feature = "planted-bugs"), allow(unreachable_pub))]
        pub enum $Bug {
            $($(#[$about])* $bug,)+
        }

        #[cfg(feature = "planted-bugs")]
        mod switch {
            use std::cell::Cell;

            use super::$Bug;

            thread_local! {
                static PLANTED: Cell<Option<$Bug>> = const { Cell::new(None) };
            }

            impl $Bug {
                /// All faults.
                pub const ALL: &[$Bug] = &[$($Bug::$bug,)+];
            }

            /// Switches one fault on for this thread, or all faults off.
            pub fn plant(bug: Option<$Bug>) {
                PLANTED.set(bug);
            }

            pub(crate) fn planted(bug: $Bug) -> bool {
                PLANTED.get() == Some(bug)
            }
        }

        #[cfg(feature = "planted-bugs")]
        pub use switch::plant;
        #[cfg(feature = "planted-bugs")]
        pub(crate) use switch::planted;

        /// Whether a fault is switched on. Always false in a build without the feature.
        #[cfg(not(feature = "planted-bugs"))]
        pub(crate) const fn planted(_: $Bug) -> bool {
            false
        }
    };
}

planted_bugs! {
    /// A fault that can be switched on. Real lock services have made each of these mistakes.
    Bug {
        /// A waiter is granted although its session ended in the same entry.
        GrantToTheDead,
        /// An operation of an older epoch is carried out.
        StaleEpochActs,
        /// A grant after a wait has the token from the time of queueing, not a new one.
        TokenFromEnqueue,
        /// A release does not look at the waiters of its names.
        LostWakeUp,
        /// A cancel does not look at the requests behind the cancelled one.
        LostWakeUpAfterCancel,
        /// A shared request passes a waiting exclusive one.
        ReaderPassesWriter,
        /// A repeated request is carried out again.
        RetryIsDoneAgain,
        /// A snapshot leaves the queue out.
        SnapshotWithoutQueue,
        /// A restored backup continues the token counter of the backup, without the jump.
        RestoreWithoutTokenJump,
        /// An upgrade keeps its old token.
        UpgradeKeepsToken,
        /// A keep-alive does not renew locks that have a TTL of their own.
        KeepAliveSkipsLockTtl,
        /// A session expires one millisecond before its deadline.
        ExpiresEarly,
        /// An expired lock does not rest, although it has a lock delay.
        NoRestAfterExpiry,
        /// A session can release the grant of another session.
        AnySessionReleases,
        /// A multi-lock is granted if only its first name is free.
        MultiLockLooksAtOneName,
        /// The deadlock search looks at direct blockers only.
        ShallowDeadlockSearch,
        /// A thaw wakes no waiter.
        ThawWakesNoWaiter,
        /// A semaphore counts one permit that is out as free.
        OnePermitTooMany,
        /// A holder whose grant has ended completes the job of the next one.
        CompletionWithoutOwnerCheck,
        /// A request that waits for a job is granted after the job is completed.
        WaiterGrantedAfterCompletion,
        /// A checkpoint is stored for another key of the name.
        CheckpointOfAnotherKey,
        /// A fail-over forgets the attempts at each job.
        AttemptsLostAtFailover,
        /// A snapshot leaves the records of jobs out.
        JobsLostInSnapshot,
        /// A grant counts as an attempt before its holder says begin.
        UnbegunGrantCounts,
        /// A completion is refused when its name has as many jobs as there is room for.
        CompletionRefusedForRoom,
        /// A restored group grants jobs at once.
        RestoreGrantsJobs,
    }
}

/// Conditions that are part of a rule: each is true unless its fault is planted.
macro_rules! true_unless_planted {
    ($($condition:ident: $bug:ident,)+) => {
        $(
            #[inline]
            pub(crate) fn $condition() -> bool {
                !planted(Bug::$bug)
            }
        )+
    };
}

true_unless_planted! {
    old_epoch_is_refused: StaleEpochActs,
    keep_alive_renews_locks: KeepAliveSkipsLockTtl,
    only_its_session_acts: AnySessionReleases,
    upgrade_draws_token: UpgradeKeepsToken,
    free_name_wakes_waiters: LostWakeUp,
    thaw_wakes_waiters: ThawWakesNoWaiter,
    involuntary_end_rests: NoRestAfterExpiry,
    search_goes_deeper: ShallowDeadlockSearch,
    jobs_are_in_snapshot: JobsLostInSnapshot,
    restore_refuses_jobs: RestoreGrantsJobs,
}

// Values and steps that are part of a rule: each returns its argument, or does nothing, unless its fault is planted.

/// The stamp up to which deadlines are due.
#[inline]
pub(crate) fn expiry_stamp(stamp: LogicalMs) -> LogicalMs {
    if planted(Bug::ExpiresEarly) { LogicalMs(stamp.0 + 1) } else { stamp }
}

/// Called between the ends of two sessions. Grants nothing.
#[inline]
pub(crate) fn grant_nothing_yet(state: &mut LockState) {
    if planted(Bug::GrantToTheDead) {
        state.grant_successors();
    }
}

/// The token of a new grant: the one just drawn.
#[inline]
pub(crate) fn newest_token(drawn: Token, last_arrival: u64) -> Token {
    if planted(Bug::TokenFromEnqueue) && last_arrival > 0 { Token(drawn.0 - 1) } else { drawn }
}

/// Whether a request in this mode waits behind earlier conflicting waiters. Always true.
#[inline]
pub(crate) fn waits_behind_others(mode: Mode) -> bool {
    !(planted(Bug::ReaderPassesWriter) && mode == Mode::S)
}

/// What a session knows about a request number.
#[inline]
pub(crate) fn as_remembered(known: Known) -> Known {
    match known {
        Known::Answered(_) if planted(Bug::RetryIsDoneAgain) => Known::New,
        known => known,
    }
}

/// Called after a cancel. Keeps the list of what it freed.
#[inline]
pub(crate) fn keep_wake_ups(freed: &mut Vec<Freed>) {
    if planted(Bug::LostWakeUpAfterCancel) {
        freed.clear();
    }
}

/// The names where a request must pass: all of them.
#[inline]
pub(crate) fn every_name<Stance>(stances: &[Stance]) -> &[Stance] {
    if planted(Bug::MultiLockLooksAtOneName) { &stances[..stances.len().min(1)] } else { stances }
}

/// The number of permits of a semaphore that are out.
#[inline]
pub(crate) fn permits_out(out: u64) -> u64 {
    if planted(Bug::OnePermitTooMany) { out.saturating_sub(1) } else { out }
}

/// Whether a waiter is written to a snapshot. Always true.
#[inline]
pub(crate) fn is_in_snapshot<Waiter>(_: &Waiter) -> bool {
    !planted(Bug::SnapshotWithoutQueue)
}

/// How far a restored backup raises the token counter.
#[inline]
pub(crate) fn token_jump(token_jump: u64) -> u64 {
    if planted(Bug::RestoreWithoutTokenJump) { 0 } else { token_jump }
}

/// Called with a completion of a grant that does not stand. Completes nothing.
#[inline]
pub(crate) fn completes_only_its_own(state: &mut LockState, id: GrantId, report: JobReport) {
    if planted(Bug::CompletionWithoutOwnerCheck) {
        state.complete_without_owner(id, report);
    }
}

/// Whether a grant for a job counts as an attempt before its holder says begin. Never.
#[inline]
pub(crate) fn unbegun_grant_counts() -> bool {
    planted(Bug::UnbegunGrantCounts)
}

/// Whether a completion may be carried out when its name has this number of jobs, the reserved one included. Always: its room was
/// reserved. The fault counts as if a name had room for three, so that it shows in short runs.
#[inline]
pub(crate) fn completion_has_room(jobs_of_name: u64) -> bool {
    !planted(Bug::CompletionRefusedForRoom) || jobs_of_name <= 3
}

/// The key for which a checkpoint is stored: the key of the grant.
#[inline]
pub(crate) fn checkpointed_key(key: &JobKey) -> JobKey {
    if planted(Bug::CheckpointOfAnotherKey) { JobKey::new("another").expect("a valid key") } else { key.clone() }
}

/// The waiters that a completion answers: all of its key.
#[inline]
pub(crate) fn waiters_of_completed(waiting: impl Iterator<Item = Arrival>) -> Vec<Arrival> {
    if planted(Bug::WaiterGrantedAfterCompletion) { Vec::new() } else { waiting.collect() }
}

/// Called at a fail-over. Changes no job.
#[inline]
pub(crate) fn keep_attempts(state: &mut LockState) {
    if planted(Bug::AttemptsLostAtFailover) {
        state.lose_attempts();
    }
}
