//! Deliberate faults, for the tests that prove that the tests find faults.
//!
//! Without the feature `planted-bugs` every question here is a constant `false` and nothing of it is left in the binary.
//! With it, a test switches one fault on for its own thread.
//!
//! A rule never asks whether a fault is planted. It calls a function of this file, whose name says what the rule does.

use crate::mode::Mode;
use crate::once::Known;
use crate::state::LockState;
use crate::waiter::Freed;
use crate::words::{LogicalMs, Token};

/// Declares faults of a crate that has the feature `planted-bugs`: the list of them, how to switch one on (`plant`), and the
/// question whether it is (`planted`).
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
                /// All of them.
                pub const ALL: &[$Bug] = &[$($Bug::$bug,)+];
            }

            /// Switches one fault on, or all of them off, for this thread.
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

        /// Whether a fault is switched on: never, in a build without the feature.
        #[cfg(not(feature = "planted-bugs"))]
        pub(crate) const fn planted(_: $Bug) -> bool {
            false
        }
    };
}

planted_bugs! {
    /// A fault that can be switched on. Each is a mistake that a lock service has made before.
    Bug {
        /// A waiter is granted although its session ended in the same entry.
        GrantToTheDead,
        /// An operation of an older epoch is carried out.
        StaleEpochActs,
        /// A grant after a wait has a token that was current when it was queued, not a new one.
        TokenFromEnqueue,
        /// A released resource forgets to look at who waits.
        LostWakeUp,
        /// A cancelled waiter's followers are not looked at.
        LostWakeUpAfterCancel,
        /// A shared request passes a waiting exclusive one.
        ReaderPassesWriter,
        /// A repeated request is carried out again.
        RetryIsDoneAgain,
        /// A snapshot leaves the queue out.
        SnapshotWithoutQueue,
        /// A restored backup goes on counting tokens where the backup was.
        RestoreWithoutTokenJump,
        /// An upgrade keeps its old token.
        UpgradeKeepsToken,
        /// A keep-alive does not renew the locks with a TTL of their own.
        KeepAliveSkipsLockTtl,
        /// A session expires at the millisecond before its deadline.
        ExpiresEarly,
        /// An expired lock leaves no rest, though it was asked for.
        NoRestAfterExpiry,
        /// Release does not ask whose grant it is.
        AnySessionReleases,
        /// A multi-lock is granted when its first name is free.
        MultiLockLooksAtOneName,
        /// A deadlock is looked for among the direct blockers only.
        ShallowDeadlockSearch,
        /// A thaw wakes no waiter.
        ThawWakesNoWaiter,
        /// A semaphore counts the permits of the newest holder as free.
        OnePermitTooMany,
    }
}

/// Conditions that are part of a rule and always true, until the fault behind them is planted.
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
}

// Values and steps that are part of a rule. Each gives its argument back, or does nothing, until its fault is planted.

/// The stamp up to which deadlines are due.
#[inline]
pub(crate) fn expiry_stamp(stamp: LogicalMs) -> LogicalMs {
    if planted(Bug::ExpiresEarly) { LogicalMs(stamp.0 + 1) } else { stamp }
}

/// Between the ends of two sessions: grants nothing.
#[inline]
pub(crate) fn grant_nothing_yet(state: &mut LockState) {
    if planted(Bug::GrantToTheDead) {
        state.grant_successors();
    }
}

/// The token of a new grant: the one that was just drawn.
#[inline]
pub(crate) fn newest_token(drawn: Token, last_arrival: u64) -> Token {
    if planted(Bug::TokenFromEnqueue) && last_arrival > 0 { Token(drawn.0 - 1) } else { drawn }
}

/// Whether a request in this mode waits behind earlier waiters that it conflicts with.
#[inline]
pub(crate) fn waits_behind_others(mode: Mode) -> bool {
    !(planted(Bug::ReaderPassesWriter) && mode == Mode::S)
}

/// What a session remembers of a request number.
#[inline]
pub(crate) fn as_remembered(known: Known) -> Known {
    match known {
        Known::Answered(_) if planted(Bug::RetryIsDoneAgain) => Known::New,
        known => known,
    }
}

/// After a cancel: keeps the note of what it freed.
#[inline]
pub(crate) fn keep_wake_ups(freed: &mut Vec<Freed>) {
    if planted(Bug::LostWakeUpAfterCancel) {
        freed.clear();
    }
}

/// The names of a request that must be free: all of them.
#[inline]
pub(crate) fn every_name<Stance>(stances: &[Stance]) -> &[Stance] {
    if planted(Bug::MultiLockLooksAtOneName) { &stances[..stances.len().min(1)] } else { stances }
}

/// How many permits of a semaphore are out.
#[inline]
pub(crate) fn permits_out(out: u64) -> u64 {
    if planted(Bug::OnePermitTooMany) { out.saturating_sub(1) } else { out }
}

/// Whether a waiter is written to a snapshot.
#[inline]
pub(crate) fn is_in_snapshot<Waiter>(_: &Waiter) -> bool {
    !planted(Bug::SnapshotWithoutQueue)
}

/// By how much a restored backup raises the token counter.
#[inline]
pub(crate) fn token_jump(token_jump: u64) -> u64 {
    if planted(Bug::RestoreWithoutTokenJump) { 0 } else { token_jump }
}
