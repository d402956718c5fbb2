//! Finds the operation of an entry that caused an event.
//!
//! Events do not name their operation. But a successful operation causes exactly one event that can be recognized by its kind and its
//! request, grant or session. An event without an operation happened by itself: a deadline passed, or another request made room. A
//! successful answer without an event is a violation, which `mod.rs` reports.

use fencepost_core::{
    Action, Event, GrantEnd, GrantId, Held, JobFact, Lock, LockMode, Name, Operation, Outcome, Request, RequestNumber,
    SessionEnd, SessionId,
};

use crate::fact::LoggedEntry;

use super::follow::{is_stronger, is_told_by};
use super::i12_once::is_not_performed;
use super::ledger::Ledger;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Opens(SessionId),
    Closes(SessionId),
    Asks(SessionId, RequestNumber),
    Cancels(SessionId, RequestNumber),
    GivesBack(GrantId),
    Converts(GrantId),
    SetsValue(GrantId),
    Checkpoints(GrantId),
    Administers,
}

/// The successful operations of one entry, by what they cause.
#[derive(Debug, Default)]
pub(super) struct Causes {
    /// Cause and index of the operation, sorted.
    list: Vec<(Cause, usize)>,
    /// Whether an event was found for each item of `list`. Each item is used once.
    used: Vec<bool>,
}

impl Causes {
    pub(super) fn gather(&mut self, entry: &LoggedEntry) {
        self.list.clear();
        let replies = &entry.effects.replies[entry.batch.renewals.len()..];
        for (at, (operation, reply)) in entry.batch.operations.iter().zip(replies).enumerate() {
            if reply.repeat.is_none()
                && let Some(cause) = cause_of(operation, &reply.outcome)
            {
                self.list.push((cause, at));
            }
        }
        self.list.sort_unstable();
        self.used.clear();
        self.used.resize(self.list.len(), false);
    }

    /// The index of the operation that caused an event, if any. Marks it as used.
    pub(super) fn of(&mut self, event: &Event, entry: &LoggedEntry, ledger: &Ledger) -> Option<usize> {
        let cause = match event {
            Event::SessionOpened { session, .. } => Cause::Opens(*session),
            Event::SessionEnded { session, how: SessionEnd::Closed } => Cause::Closes(*session),
            Event::Queued { request, .. } => Cause::Asks(request.session, request.number),
            Event::Granted { request, .. } | Event::NotGranted { request, .. } => {
                let waits = ledger.waiting(request.session, request.number).is_some();
                match event {
                    Event::NotGranted { outcome: Outcome::Cancelled, .. } if waits => {
                        Cause::Cancels(request.session, request.number)
                    }
                    _ if waits => return None,
                    _ => Cause::Asks(request.session, request.number),
                }
            }
            Event::Ended { grant, how: GrantEnd::Released, .. } => Cause::GivesBack(*grant),
            Event::Converted { grant, held, .. } => {
                let of_waiter = |it: &super::ledger::Grant| it.converting.is_some() && is_stronger(&it.held, held);
                if ledger.grants.get(grant).is_some_and(of_waiter) {
                    return None;
                }
                Cause::Converts(*grant)
            }
            Event::ValueSet { grant, .. } => Cause::SetsValue(*grant),
            Event::Administered { .. } => Cause::Administers,
            Event::Job { what: JobFact::Checkpointed { grant, .. }, .. } => Cause::Checkpoints(*grant),
            Event::Job { what, .. } => return of_job(what, entry),
            Event::SessionEnded { .. }
            | Event::Ended { .. }
            | Event::RestEnded { .. }
            | Event::Contended { .. }
            | Event::JobsFill { .. } => return None,
        };
        let first = self.list.partition_point(|(other, _)| *other < cause);
        let replies = &entry.effects.replies[entry.batch.renewals.len()..];
        let is_it = |at: usize| match (event, &entry.batch.operations[at]) {
            (Event::Administered { act, .. }, Operation::Admin(admin)) => is_told_by(admin, act),
            // Another conversion of the same grant in this entry may have no event.
            (Event::Converted { grant, token, held: Held::Locks(locks), .. }, Operation::Request(request)) => {
                let told = replies[at].outcome == Outcome::Converted { grant: *grant, token: *token };
                let changes = |name: &Name, mode: LockMode| {
                    let lock = Lock { name: name.clone(), mode };
                    let before = ledger.grants.get(grant).map(|grant| &grant.held);
                    locks.contains(&lock) && !matches!(before, Some(Held::Locks(before)) if before.contains(&lock))
                };
                told && matches!(&request.action, Action::Convert { name, mode, .. } if changes(name, *mode))
            }
            _ => true,
        };
        let same = self.list[first..].iter().take_while(|(other, _)| *other == cause);
        let (at, operation) = same
            .enumerate()
            .map(|(at, (_, operation))| (first + at, *operation))
            .find(|(at, operation)| !self.used[*at] && is_it(*operation))?;
        self.used[at] = true;
        Some(operation)
    }

    /// When a release ends a grant with a waiting upgrade, the end of the upgrade is reported before the end of the grant. For such an
    /// event this returns the release, whose own event is still to come.
    pub(super) fn of_what_follows(&self, event: &Event) -> Option<usize> {
        let Event::NotGranted { request, outcome: Outcome::GrantEnded(GrantEnd::Released) } = event else {
            return None;
        };
        let cause = Cause::GivesBack(request.converts?);
        let first = self.list.partition_point(|(other, _)| *other < cause);
        let same = self.list[first..].iter().zip(&self.used[first..]).take_while(|((other, _), _)| *other == cause);
        same.filter(|(_, used)| !**used).map(|((_, operation), _)| *operation).next()
    }

    /// Successful operations that must have an event, but have none.
    pub(super) fn unused<'a>(&'a self, entry: &'a LoggedEntry) -> impl Iterator<Item = usize> + 'a {
        let replies = &entry.effects.replies[entry.batch.renewals.len()..];
        self.list.iter().zip(&self.used).filter(|(_, used)| !**used).filter_map(move |((cause, at), _)| {
            let must = match cause {
                // A completion that is sent again has no event, but gets the same answer.
                Cause::GivesBack(_) => !matches!(replies[*at].outcome, Outcome::Completed { .. }),
                Cause::Opens(_) | Cause::Closes(_) | Cause::SetsValue(_) | Cause::Checkpoints(_) => true,
                Cause::Asks(..) => {
                    use Outcome::{Completed, Granted, Queued};
                    matches!(replies[*at].outcome, Granted { .. } | Queued { .. } | Completed { .. })
                }
                // These may have no event: a conversion to the same mode, a cancel that comes before its request, a repeated act.
                Cause::Converts(_) | Cause::Cancels(..) | Cause::Administers => false,
            };
            must.then_some(*at)
        })
    }
}

/// The operation that something happened to a job by. One operation can begin an attempt, complete the job and give the grant back, so
/// it is not marked as used. The first that could be it is it: a later one finds the attempt begun, or the job completed.
fn of_job(what: &JobFact, entry: &LoggedEntry) -> Option<usize> {
    let replies = &entry.effects.replies[entry.batch.renewals.len()..];
    let is_it = |operation: &Operation, outcome: &Outcome| {
        let Operation::Request(Request { action, .. }) = operation else { return false };
        match (what, action, outcome) {
            (JobFact::Begun { grant, .. }, Action::Begin { grant: of }, Outcome::Begun { .. })
            | (JobFact::Begun { grant, .. }, Action::Checkpoint { grant: of, .. }, Outcome::Checkpointed { .. })
            | (
                JobFact::Begun { grant, .. },
                Action::Release { grant: of, report: Some(_) },
                Outcome::Completed { .. } | Outcome::Released { .. },
            ) => grant == of,
            (
                JobFact::Completed { token, .. },
                Action::Release { report: Some(_), .. },
                Outcome::Completed { token: its, .. },
            ) => token == its && token.is_some(),
            _ => false,
        }
    };
    let mut all = entry.batch.operations.iter().zip(replies);
    all.position(|(operation, reply)| reply.repeat.is_none() && is_it(operation, &reply.outcome))
}

fn cause_of(operation: &Operation, outcome: &Outcome) -> Option<Cause> {
    let request = match operation {
        Operation::Open(open) => {
            return matches!(outcome, Outcome::Opened { .. }).then_some(Cause::Opens(open.session));
        }
        Operation::Admin(_) => return (*outcome == Outcome::Done).then_some(Cause::Administers),
        #[cfg(feature = "made-up-version")]
        Operation::MadeUp(_) => return None,
        Operation::Request(request) => request,
    };
    if is_not_performed(outcome) {
        return None;
    }
    let asks = Cause::Asks(request.session, request.number);
    match (&request.action, outcome) {
        (Action::Close, Outcome::Closed) => Some(Cause::Closes(request.session)),
        (Action::Acquire(_) | Action::TakePermits(_), Outcome::Granted { .. }) => Some(asks),
        (
            Action::Acquire(_) | Action::TakePermits(_) | Action::Convert { .. },
            Outcome::Queued { .. } | Outcome::Completed { .. } | Outcome::Refused(_) | Outcome::Deadlock(_),
        ) => Some(asks),
        (Action::Cancel { request: target, .. }, Outcome::Cancelled) => Some(Cause::Cancels(request.session, *target)),
        (Action::Cancel { .. }, Outcome::CancelReleased { grant, .. }) => Some(Cause::GivesBack(*grant)),
        (Action::Release { grant, .. }, Outcome::Released { .. } | Outcome::Completed { .. }) => {
            Some(Cause::GivesBack(*grant))
        }
        (Action::Convert { grant, .. }, Outcome::Converted { .. }) => Some(Cause::Converts(*grant)),
        (Action::SetValue { grant, .. }, Outcome::ValueSet) => Some(Cause::SetsValue(*grant)),
        (Action::Checkpoint { grant, .. }, Outcome::Checkpointed { .. }) => Some(Cause::Checkpoints(*grant)),
        _ => None,
    }
}
