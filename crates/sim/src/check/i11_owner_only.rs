//! I11: release, extend, convert and set-value work only for the session of the grant, and only with its current epoch. A refused
//! operation changes nothing.
//!
//! The second part follows from the events: each event needs an operation whose answer says that it did this.

use fencepost_core::{
    ActFacts, Action, Event, GrantEnd, GrantId, Operation, Outcome, Refusal, Renewal, Request, SessionEnd,
};

use super::findings::Findings;
use super::ledger::Ledger;
use super::step::Step;

/// A keep-alive counts only with the current epoch, an attach only with the right secret.
// Rule: attach
pub(super) fn who_renews(ledger: &Ledger, renewal: &Renewal, outcome: &Outcome, findings: &mut Findings) {
    let (id, is_entitled) = match renewal {
        Renewal::KeepAlive { session, epoch, .. } => (*session, ledger.session(*session).map(|it| it.epoch == *epoch)),
        Renewal::Attach { session, secret_hash, .. } => {
            (*session, ledger.session(*session).map(|it| it.secret_hash == *secret_hash))
        }
    };
    let done = match outcome {
        Outcome::Renewed => true,
        Outcome::Attached(attached) => {
            let next = ledger.session(id).map(|session| session.epoch.0 + 1);
            findings.ensure(next == Some(attached.epoch.0), "I11", || {
                format!("{id:?} is attached with {:?}, which is not its next epoch", attached.epoch)
            });
            true
        }
        _ => false,
    };
    findings.ensure(!done || is_entitled == Some(true), "I11", || {
        format!("{renewal:?} has no right to renew, but is answered {outcome:?}")
    });
}

/// A request with another epoch, or of a session that does not live, is refused. Others are not refused for these reasons.
pub(super) fn who_asks(ledger: &Ledger, request: &Request, outcome: &Outcome, findings: &mut Findings) {
    let refused = |what: &str| format!("{what}, but the answer is {outcome:?}: {request:?}");
    match (ledger.session(request.session), outcome) {
        (None, outcome) => {
            let is_refused = *outcome == Outcome::Refused(Refusal::NoSession);
            findings.ensure(is_refused, "I11", || refused("the session is not alive"));
        }
        (Some(session), Outcome::Refused(Refusal::WrongEpoch { current })) => {
            let is_so = *current == session.epoch && request.epoch != session.epoch;
            findings.ensure(is_so, "I11", || refused("the request's epoch is right"));
        }
        (Some(session), outcome) => {
            findings.ensure(request.epoch == session.epoch, "I11", || refused("the request's epoch is wrong"));
            findings
                .ensure(*outcome != Outcome::Refused(Refusal::NoSession), "I11", || refused("the session is alive"));
        }
    }
}

/// The holder of a grant is not told that it does not hold it. An extension is answered with the right deadline.
pub(super) fn the_owner_is_known(ledger: &Ledger, request: &Request, outcome: &Outcome, findings: &mut Findings) {
    let Some(grant) = grant_named(&request.action) else { return };
    let is_its_own = ledger.grants.get(&grant).is_some_and(|grant| grant.session == request.session);
    let says_no = matches!(outcome, Outcome::NotOwner | Outcome::AlreadyReleased | Outcome::Expired(_));
    findings.ensure(!(is_its_own && says_no), "I11", || {
        format!("the session holds the grant, but the answer is {outcome:?}: {request:?}")
    });
    if let Outcome::Extended { until } = outcome {
        let extends = match request.action {
            Action::Extend { max_hold, .. } => ledger.stamp.after(max_hold) == *until,
            _ => false,
        };
        let has_end = ledger.grants.get(&grant).is_some_and(|grant| grant.hold_until.is_some());
        findings.ensure(is_its_own && extends && has_end, "I11", || {
            format!("an extension has the wrong answer {outcome:?}: {request:?}")
        });
    }
}

fn grant_named(action: &Action) -> Option<GrantId> {
    match action {
        Action::Release { grant, .. }
        | Action::Extend { grant, .. }
        | Action::Convert { grant, .. }
        | Action::SetValue { grant, .. }
        | Action::Begin { grant }
        | Action::Checkpoint { grant, .. } => Some(*grant),
        _ => None,
    }
}

/// Every change of a grant is made by its session, or by an administrator's act in the same entry, with the reason of that act.
// Rule: owner-only, break
pub(super) fn only_the_owner_acts(step: &Step<'_>, findings: &mut Findings) {
    let last_act = step.ledger.last_act.as_ref();
    let grant = match step.event {
        Event::Ended { grant, how: GrantEnd::Released, count_left, .. } => {
            let said = step.reply().map(|reply| &reply.outcome);
            let counts = match said {
                Some(Outcome::Released { count_left: said } | Outcome::CancelReleased { count_left: said, .. }) => {
                    said == count_left
                }
                Some(Outcome::Completed { .. }) => *count_left == 0,
                _ => false,
            };
            findings.ensure(counts, "I11", || {
                format!("a grant was released, but the answer is {said:?}: {:?}", step.event)
            });
            grant
        }
        Event::Converted { grant, .. } if step.waiter.is_none() => grant,
        Event::ValueSet { grant, .. } => grant,
        Event::Ended { grant, held, how: GrantEnd::Broken(told), .. } => {
            let by_act = last_act.is_some_and(|(act, reason)| {
                let hits = match act {
                    ActFacts::Broke { grant: broke, .. } => broke == grant,
                    // That the grant is for this job is checked with I26.
                    ActFacts::CompletedJob { name, .. } => held.names().any(|held| held == name),
                    _ => false,
                };
                hits && reason == told
            });
            return findings.ensure(by_act, "I11", || {
                format!("a grant was broken without an administrator's act, or with another reason: {:?}", step.event)
            });
        }
        Event::SessionEnded { session, how: SessionEnd::Evicted(told) } => {
            let by_act =
                matches!(last_act, Some((ActFacts::Evicted(evicted), reason)) if evicted == session && reason == told);
            return findings.ensure(by_act, "I11", || {
                format!(
                    "a session was evicted without an administrator's act, or with another reason: {:?}",
                    step.event
                )
            });
        }
        Event::RestEnded { grant, waived: true, .. } => {
            let by_act = matches!(last_act, Some((ActFacts::WaivedRest { grant: waived, .. }, _)) if waived == grant);
            return findings.ensure(by_act, "I11", || {
                format!("a rest was waived without an administrator's act: {:?}", step.event)
            });
        }
        Event::SessionEnded { how: SessionEnd::Closed, .. } | Event::Administered { .. } => {
            return findings
                .ensure(step.cause.is_some(), "I11", || format!("no operation caused this event: {:?}", step.event));
        }
        Event::NotGranted { outcome, .. } if step.waiter.is_none() || *outcome == Outcome::Cancelled => {
            return findings
                .ensure(step.cause.is_some(), "I11", || format!("no operation caused this event: {:?}", step.event));
        }
        _ => return,
    };
    let asker = match step.operation() {
        Some(Operation::Request(request)) => Some(request.session),
        _ => None,
    };
    let owner = step.ledger.grants.get(grant).map(|grant| grant.session);
    findings.ensure(asker.is_some() && asker == owner, "I11", || {
        format!("{asker:?} changes a grant of {owner:?}: {:?}", step.event)
    });
}
