//! Every variant of the core's enums by name, and which of them were generated.

use std::collections::BTreeSet;

use fencepost_core::{
    Act, ActFacts, Action, BadWord, BlockedBy, Bound, BusyWhy, Event, GrantEnd, Held, JobFact, Late, LockMode, Mode,
    Operation, Outcome, Push, Record, Refusal, Renewal, Scope, SessionEnd, Takes, TokenCheck, Verdict, Wait, Wants,
};

/// The variants that were generated.
#[derive(Default)]
pub struct Met(BTreeSet<&'static str>);

impl Met {
    /// The variants of log entries and records that were not generated.
    pub fn missing(&self) -> Vec<&'static str> {
        self.missing_of(&[LOGGED, SHARED])
    }

    /// The variants of the service's messages that were not generated.
    pub fn missing_in_service(&self) -> Vec<&'static str> {
        self.missing_of(&[SHARED, TOLD])
    }

    fn missing_of(&self, lists: &[&[&'static str]]) -> Vec<&'static str> {
        lists.iter().copied().flatten().copied().filter(|name| !self.0.contains(name)).collect()
    }
}

/// For each enum: a method that notes the variant of a value, and a list of all variants. The compiler checks that the `match` is
/// complete. A variant after `;` belongs to the made-up version, which the schema does not have.
macro_rules! variants {
    ($list:ident: $($method:ident $type:ident { $($variant:ident),* $(,)? $(; $feature:literal $other:ident)? })*) => {
        impl Met {
            $(pub fn $method(&mut self, value: &$type) {
                #[allow(clippy::infallible_destructuring_match, reason = "one shape for all")]
                let name = match value { $($type::$variant { .. } => concat!(stringify!($type), "::", stringify!($variant)),)* $(#[cfg(feature = $feature)] $type::$other { .. } => unreachable!(),)? };
                self.0.insert(name);
            })*
        }

        const $list: &[&str] = &[$($(concat!(stringify!($type), "::", stringify!($variant)),)*)*];
    };
}

// Variants only in log entries and in snapshots.
variants! { LOGGED:
    operation Operation { Open, Request, Admin; "made-up-version" MadeUp }
    record Record { Header, Session, Answer, Grant, Rest, Job, Waiter, Semaphore, Freeze; "made-up-version" Remark }
}

// Variants only in messages of the service.
variants! { TOLD:
    push Push { Ended, Lost, Contended, SessionEnded }
    blocked_by BlockedBy { Grant, Rest, Waiter, Freeze, Permits }
    token_check TokenCheck { Stands, Gone }
    event Event {
        SessionOpened, SessionEnded, Queued, Granted, NotGranted, Ended, RestEnded, Converted, Contended, ValueSet,
        Job, JobsFill, Administered,
    }
    job_fact JobFact { Begun, Checkpointed, Completed }
    act_facts ActFacts {
        Broke, Evicted, Froze, Thawed, LimitChanged, WaivedRest, CompletedJob, ForgotJob, AllowedJobs,
    }
}

variants! { SHARED:
    renewal Renewal { KeepAlive, Attach }
    action Action { Acquire, TakePermits, Cancel, Release, Begin, Checkpoint, Extend, Convert, SetValue, Close }
    verdict Verdict { Succeeded, Failed, Open }
    act Act { Break, Evict, WaiveRest, Freeze, Thaw, SetLimit, CompleteJob, ForgetJob, AllowJobs }
    lock_mode LockMode { Shared, Update, Exclusive }
    wait Wait { No, UpTo, Forever }
    scope Scope { Name, Prefix }
    wants Wants { Locks, Conversion, Permits }
    held Held { Locks, Permits }
    outcome Outcome {
        Opened, Renewed, Attached, Closed, Granted, Queued, Busy, TimedOut, Cancelled, Deadlock, SessionEnded, GrantEnded,
        Converted, Released, NotOwner, AlreadyReleased, Expired, Extended, ValueSet, CancelTooLate, CancelReleased, Done,
        NotFound, Completed, Begun, Checkpointed, Refused,
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
        MoreThanLimit, LimitLowered, KeyNeedsExclusive, KeyedReentry, KeyedGrant, NoJob, JobsNotAllowed, JobHeld,
        FreezeExists, NotYet,
    }
    bad_word BadWord { Bound, Empty, ControlCharacter, EmptySegment, Zero }
    bound Bound {
        NameBytes, PathLevels, MetadataBytes, ValueBytes, OwnerBytes, PrincipalBytes, ReasonBytes, ToldReasonBytes, MultiLock,
        FootprintNames, LocksPerSession, WaitersPerSession, WaitersPerResource, SessionsPerPrincipal, UnseenAnswers,
        SeenRanges, Reentries, Freezes, Limits, TtlLeast, LockDelay, Duration, JobKeyBytes, JobBytes, JobsPerName, JobBytesPerName, Jobs, JobBytesTotal, KeepLeast,
    }
}

/// All bounds.
pub const BOUNDS: [Bound; 29] = [
    Bound::JobKeyBytes,
    Bound::JobBytes,
    Bound::JobsPerName,
    Bound::JobBytesPerName,
    Bound::Jobs,
    Bound::JobBytesTotal,
    Bound::KeepLeast,
    Bound::NameBytes,
    Bound::PathLevels,
    Bound::MetadataBytes,
    Bound::ValueBytes,
    Bound::OwnerBytes,
    Bound::PrincipalBytes,
    Bound::ReasonBytes,
    Bound::ToldReasonBytes,
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
