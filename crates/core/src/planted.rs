//! Deliberate faults, for the tests that prove that the tests find faults.
//!
//! Without the feature `planted-bugs` every question here is a constant `false` and nothing of it is left in the binary.
//! With it, a test switches one fault on for its own thread.

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
        AnyoneReleases,
        /// A multi-lock is granted when its first name is free.
        MultiLockLooksAtOneName,
        /// A deadlock is looked for among the direct blockers only.
        ShallowDeadlockSearch,
        /// A thaw wakes nobody.
        ThawWakesNobody,
        /// A semaphore counts the permits of the newest holder as free.
        OnePermitTooMany,
    }
}
