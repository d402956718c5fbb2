//! Counts the kinds of outcomes, pushes and events of a run.
//!
//! A test then checks that random logs have reached every kind, so that no rule goes untested unnoticed.

use std::collections::BTreeMap;
use std::fmt;

use fencepost_core::*;

/// How often each kind of outcome, push and event occurred.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    counts: BTreeMap<String, u64>,
}

impl Tally {
    pub fn count(&mut self, effects: &Effects) {
        for reply in &effects.replies {
            self.add(&outcome_kind(&reply.outcome));
            if reply.repeat.is_some() {
                self.add("reply: repeat");
            }
        }
        for push in &effects.pushes {
            match push {
                Push::Ended { outcome, .. } => self.add(&format!("push: {}", outcome_kind(outcome))),
                Push::Lost { how, .. } => self.add(&format!("push: Lost({})", grant_end_kind(how))),
                Push::Contended { .. } => self.add("push: Contended"),
                Push::SessionEnded { how, .. } => self.add(&format!("push: SessionEnded({})", session_end_kind(how))),
            }
        }
        for event in &effects.events {
            self.add(&format!("event: {}", event.kind()));
        }
    }

    fn add(&mut self, kind: &str) {
        if let Some(count) = self.counts.get_mut(kind) {
            *count += 1;
        } else {
            self.counts.insert(kind.to_string(), 1);
        }
    }

    /// Adds the counts of another run.
    pub fn add_all(&mut self, other: Tally) {
        for (kind, count) in other.counts {
            *self.counts.entry(kind).or_default() += count;
        }
    }

    /// The expected kinds that never occurred.
    pub fn missing<'a>(&self, expected: &[&'a str]) -> Vec<&'a str> {
        expected.iter().filter(|kind| !self.counts.contains_key(**kind)).copied().collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(kind, count)| writeln!(f, "{count:>10}  {kind}"))
    }
}

/// Every kind of outcome that random batches must reach. Some variants are missing here:
/// - `BadWord`, and bounds of words such as `Duration` and `TtlLeast`: constructors return them, never `apply`.
/// - Bounds that take thousands of records to reach: the test of the bounds reaches them.
/// - `SessionEnded` and `GrantEnded`: they come only as pushes.
/// - `Restored`: it comes only from restoring a backup, which has no effects.
pub const EXPECTED: &[&str] = &[
    "Opened",
    "Renewed",
    "Attached",
    "Closed",
    "Granted",
    "Queued",
    "Busy(Frozen)",
    "Busy(Held)",
    "Busy(Resting)",
    "Busy(Queued)",
    "TimedOut",
    "Cancelled",
    "Deadlock",
    "push: SessionEnded(Closed)",
    "push: SessionEnded(Expired)",
    "push: SessionEnded(Evicted)",
    "push: GrantEnded(Released)",
    "push: GrantEnded(Ttl)",
    "push: GrantEnded(MaxHold)",
    "push: GrantEnded(Broken)",
    "Completed(succeeded)",
    "Completed(failed)",
    "Completed(by an administrator)",
    "push: Completed(succeeded)",
    "push: Completed(failed)",
    "push: Completed(by an administrator)",
    "Begun",
    "Checkpointed",
    "Converted",
    "push: Converted",
    "push: Granted",
    "push: Cancelled",
    "push: TimedOut",
    "push: Refused: LimitLowered",
    "push: Deadlock",
    "push: Lost(Ttl)",
    "push: Lost(MaxHold)",
    "push: Lost(Broken)",
    "push: Contended",
    "Released",
    "NotOwner",
    "AlreadyReleased",
    "Expired(Ttl)",
    "Expired(MaxHold)",
    "Expired(Broken)",
    "Extended",
    "ValueSet",
    "CancelTooLate(Granted)",
    "CancelTooLate(Converted)",
    "CancelTooLate(Ended)",
    "CancelReleased",
    "Done",
    "NotFound",
    "reply: repeat",
    "Refused: NoSession",
    "Refused: SessionExists",
    "Refused: WrongSecret",
    "Refused: WrongEpoch",
    "Refused: AlreadySeen",
    "Refused: SeenWhileWaiting",
    "Refused: Bound(MultiLock)",
    "Refused: BadNumber",
    "Refused: CancelsItself",
    "Refused: NamedTwice",
    "Refused: OwnerWaits",
    "Refused: UseUpgrade",
    "Refused: AlreadyHeld",
    "Refused: CountAboveOne",
    "Refused: NotInGrant",
    "Refused: UpgradeConflict",
    "Refused: NotALock",
    "Refused: NotAnElection",
    "Refused: NothingToExtend",
    "Refused: IsSemaphore",
    "Refused: IsLock",
    "Refused: PathSemaphore",
    "Refused: NoLimit",
    "Refused: LimitDiffers",
    "Refused: MoreThanLimit",
    "Refused: FreezeExists",
    "Refused: KeyNeedsExclusive",
    "Refused: KeyedReentry",
    "Refused: KeyedGrant",
    "Refused: NoJob",
    "Refused: JobsNotAllowed",
    "Refused: JobHeld",
    "event: rest ended",
    "event: contended",
    "event: value set",
    "event: waived",
    "event: thawed",
    "event: job was completed",
    "event: job begun",
    "event: job checkpointed",
    "event: job completed",
    "event: job completed by an administrator",
    "event: job forgotten",
    "event: jobs allowed",
];

/// The bounds that the test of the bounds must reach: those that `apply` enforces.
pub const EXPECTED_BOUNDS: &[&str] = &[
    "Refused: Bound(NameBytes)",
    "Refused: Bound(MultiLock)",
    "Refused: Bound(FootprintNames)",
    "Refused: Bound(LocksPerSession)",
    "Refused: Bound(WaitersPerSession)",
    "Refused: Bound(WaitersPerResource)",
    "Refused: Bound(SessionsPerPrincipal)",
    "Refused: Bound(UnseenAnswers)",
    "Refused: Bound(SeenRanges)",
    "Refused: Bound(Reentries)",
    "Refused: Bound(Freezes)",
    "Refused: Bound(Limits)",
    "Refused: Bound(JobsPerName)",
    "Refused: Bound(JobBytesPerName)",
    "push: Refused: Bound(JobsPerName)",
    "event: jobs fill their bound",
];

fn outcome_kind(outcome: &Outcome) -> String {
    let plain = match outcome {
        Outcome::Opened { .. } => "Opened",
        Outcome::Renewed => "Renewed",
        Outcome::Attached(_) => "Attached",
        Outcome::Closed => "Closed",
        Outcome::Granted { .. } => "Granted",
        Outcome::Queued { .. } => "Queued",
        Outcome::Busy(busy) => return format!("Busy({:?})", busy.why),
        Outcome::TimedOut => "TimedOut",
        Outcome::Cancelled => "Cancelled",
        Outcome::Deadlock(_) => "Deadlock",
        Outcome::SessionEnded(how) => return format!("SessionEnded({})", session_end_kind(how)),
        Outcome::GrantEnded(how) => return format!("GrantEnded({})", grant_end_kind(how)),
        Outcome::Converted { .. } => "Converted",
        Outcome::Completed { token: None, .. } => "Completed(by an administrator)",
        Outcome::Completed { succeeded: true, .. } => "Completed(succeeded)",
        Outcome::Completed { .. } => "Completed(failed)",
        Outcome::Begun { .. } => "Begun",
        Outcome::Checkpointed { .. } => "Checkpointed",
        Outcome::Released { .. } => "Released",
        Outcome::NotOwner => "NotOwner",
        Outcome::AlreadyReleased => "AlreadyReleased",
        Outcome::Expired(how) => return format!("Expired({})", grant_end_kind(how)),
        Outcome::Extended { .. } => "Extended",
        Outcome::ValueSet => "ValueSet",
        Outcome::CancelTooLate(Late::Granted { .. }) => "CancelTooLate(Granted)",
        Outcome::CancelTooLate(Late::Converted { .. }) => "CancelTooLate(Converted)",
        Outcome::CancelTooLate(Late::Ended) => "CancelTooLate(Ended)",
        Outcome::CancelReleased { .. } => "CancelReleased",
        Outcome::Done => "Done",
        Outcome::NotFound => "NotFound",
        Outcome::Refused(refusal) => return format!("Refused: {}", refusal_kind(refusal)),
    };
    plain.to_string()
}

fn grant_end_kind(how: &GrantEnd) -> String {
    match how {
        GrantEnd::Broken(_) => "Broken".to_string(),
        GrantEnd::Session(how) => format!("Session({})", session_end_kind(how)),
        other => format!("{other:?}"),
    }
}

fn session_end_kind(how: &SessionEnd) -> String {
    match how {
        SessionEnd::Evicted(_) => "Evicted".to_string(),
        other => format!("{other:?}"),
    }
}

fn refusal_kind(refusal: &Refusal) -> String {
    let plain = match refusal {
        Refusal::NoSession => "NoSession",
        Refusal::SessionExists => "SessionExists",
        Refusal::WrongSecret => "WrongSecret",
        Refusal::WrongEpoch { .. } => "WrongEpoch",
        Refusal::AlreadySeen => "AlreadySeen",
        Refusal::SeenWhileWaiting(_) => "SeenWhileWaiting",
        Refusal::Bound(bound) => return format!("Bound({bound:?})"),
        Refusal::BadWord(_) => "BadWord",
        Refusal::BadNumber => "BadNumber",
        Refusal::CancelsItself => "CancelsItself",
        Refusal::NamedTwice(_) => "NamedTwice",
        Refusal::OwnerWaits => "OwnerWaits",
        Refusal::UseUpgrade { .. } => "UseUpgrade",
        Refusal::AlreadyHeld { .. } => "AlreadyHeld",
        Refusal::CountAboveOne => "CountAboveOne",
        Refusal::NotInGrant(_) => "NotInGrant",
        Refusal::UpgradeConflict(_) => "UpgradeConflict",
        Refusal::NotALock => "NotALock",
        Refusal::NotAnElection => "NotAnElection",
        Refusal::NothingToExtend => "NothingToExtend",
        Refusal::IsSemaphore(_) => "IsSemaphore",
        Refusal::IsLock(_) => "IsLock",
        Refusal::PathSemaphore(_) => "PathSemaphore",
        Refusal::NoLimit(_) => "NoLimit",
        Refusal::LimitDiffers { .. } => "LimitDiffers",
        Refusal::MoreThanLimit { .. } => "MoreThanLimit",
        Refusal::LimitLowered { .. } => "LimitLowered",
        Refusal::KeyNeedsExclusive => "KeyNeedsExclusive",
        Refusal::KeyedReentry { .. } => "KeyedReentry",
        Refusal::KeyedGrant => "KeyedGrant",
        Refusal::NoJob => "NoJob",
        Refusal::JobsNotAllowed => "JobsNotAllowed",
        Refusal::JobHeld { .. } => "JobHeld",
        Refusal::FreezeExists => "FreezeExists",
        // Not in `EXPECTED`: only an operation of a newer version gets it, and random logs have none.
        Refusal::NotYet { .. } => "NotYet",
    };
    plain.to_string()
}
