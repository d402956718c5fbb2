//! Every variant of the core's enums by name, and which of them have come up.

use std::collections::BTreeSet;

use fencepost_core::{
    Act, Action, BadWord, Bound, BusyWhy, GrantEnd, Held, Late, LockMode, Mode, Operation, Outcome, Record, Refusal,
    Renewal, Scope, SessionEnd, Takes, Wait, Wants,
};

/// The variants that have come up.
#[derive(Default)]
pub struct Met(BTreeSet<&'static str>);

/// For each enum: a method that notes which variant a value is, by a `match` that the compiler holds to be complete, and
/// the names of all of them for [`Met::missing`].
macro_rules! variants {
    ($($method:ident $type:ident { $($variant:ident),* $(,)? })*) => {
        impl Met {
            $(pub fn $method(&mut self, value: &$type) {
                #[allow(clippy::infallible_destructuring_match, reason = "one shape for all")]
                let name = match value { $($type::$variant { .. } => concat!(stringify!($type), "::", stringify!($variant)),)* };
                self.0.insert(name);
            })*

            /// The variants that have not come up.
            pub fn missing(&self) -> Vec<&'static str> {
                let all = [$($(concat!(stringify!($type), "::", stringify!($variant)),)*)*];
                all.into_iter().filter(|name| !self.0.contains(name)).collect()
            }
        }
    };
}

variants! {
    renewal Renewal { KeepAlive, Attach }
    operation Operation { Open, Request, Admin }
    action Action { Acquire, TakePermits, Cancel, Release, Extend, Convert, SetValue, Close }
    act Act { Break, Evict, WaiveRest, Freeze, Thaw, SetLimit }
    lock_mode LockMode { Shared, Update, Exclusive }
    wait Wait { No, UpTo, Forever }
    scope Scope { Name, Prefix }
    record Record { Header, Session, Answer, Grant, Rest, Waiter, Semaphore, Freeze }
    wants Wants { Locks, Conversion, Permits }
    held Held { Locks, Permits }
    outcome Outcome {
        Opened, Renewed, Attached, Closed, Granted, Queued, Busy, TimedOut, Cancelled, Deadlock, SessionEnded, GrantEnded,
        Converted, Released, NotOwner, AlreadyReleased, Expired, Extended, ValueSet, CancelTooLate, CancelReleased, Done,
        NotFound, Refused,
    }
    late Late { Granted, Converted, Ended }
    busy_why BusyWhy { Frozen, Held, Resting, Queued }
    takes Takes { Mode, Permits }
    mode Mode { IS, IX, S, U, SIX, X }
    session_end SessionEnd { Closed, Expired, Evicted, Restored }
    grant_end GrantEnd { Released, Session, Ttl, MaxHold, Broken }
    refusal Refusal {
        NoSession, SessionExists, WrongSecret, WrongEpoch, AlreadySeen, SeenWhileWaiting, Bound, BadWord, BadNumber,
        CancelsItself, NamedTwice, OwnerWaits, UseUpgrade, AlreadyHeld, CountAboveOne, NotInGrant, UpgradeConflict,
        NotALock, NotAnElection, NothingToExtend, IsSemaphore, IsLock, PathSemaphore, NoLimit, LimitDiffers,
        MoreThanLimit, FreezeExists,
    }
    bad_word BadWord { Bound, Empty, ControlCharacter, EmptySegment, Zero }
    bound Bound {
        NameBytes, PathLevels, MetadataBytes, ValueBytes, OwnerBytes, PrincipalBytes, ReasonBytes, MultiLock,
        FootprintNames, LocksPerSession, WaitersPerSession, WaitersPerResource, SessionsPerPrincipal, UnseenAnswers,
        SeenRanges, Reentries, Freezes, Limits, TtlLeast, LockDelay, Duration,
    }
}

/// All bounds.
pub const BOUNDS: [Bound; 21] = [
    Bound::NameBytes,
    Bound::PathLevels,
    Bound::MetadataBytes,
    Bound::ValueBytes,
    Bound::OwnerBytes,
    Bound::PrincipalBytes,
    Bound::ReasonBytes,
    Bound::MultiLock,
    Bound::FootprintNames,
    Bound::LocksPerSession,
    Bound::WaitersPerSession,
    Bound::WaitersPerResource,
    Bound::SessionsPerPrincipal,
    Bound::UnseenAnswers,
    Bound::SeenRanges,
    Bound::Reentries,
    Bound::Freezes,
    Bound::Limits,
    Bound::TtlLeast,
    Bound::LockDelay,
    Bound::Duration,
];
