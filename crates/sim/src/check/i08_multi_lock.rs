//! I8: a multi-lock is granted at one position or not at all, and leaves nothing behind.
//!
//! A grant is one event, so it cannot be split. This checker verifies that it holds exactly what was requested when it is queued, when it
//! is granted, and when its mode changes. I3 checks that all of it ends at once.

use fencepost_core::{Action, Event, Held, Operation, OwnerName, Request, RequestFacts};

use super::findings::Findings;
use super::follow::is_stronger;
use super::step::Step;

/// What is queued or held is exactly what was requested.
// Rule: multi-lock
pub(super) fn exactly_what_was_asked(step: &Step<'_>, findings: &mut Findings) {
    match step.event {
        Event::Queued { request, .. } => findings.ensure(asks_for(step, request), "I8", || {
            format!("a request was queued for something other than it asked for: {:?}", step.event)
        }),
        Event::Granted { request, .. } => {
            let waited = step.waiter.and_then(|arrival| step.ledger.waiters.get(&arrival));
            let same = waited.map_or_else(|| asks_for(step, request), |waiter| waiter.request == *request);
            findings.ensure(same, "I8", || format!("a grant differs from its request: {:?}", step.event));
        }
        Event::Converted { grant, held, session, owner, .. } => {
            let Some(before) = step.ledger.grants.get(grant) else { return };
            let whose = (before.session, &before.owner) == (*session, owner);
            let same = whose
                && converts_one(&before.held, held)
                && step.waiter.is_none_or(|arrival| {
                    let wanted = step.ledger.waiters.get(&arrival).map(|waiter| &waiter.request.wants);
                    wanted.is_some_and(|wanted| has_all(held, wanted)) && is_stronger(&before.held, held)
                });
            findings.ensure(same, "I8", || {
                format!("the conversion of {before:?} differs from its request: {:?}", step.event)
            });
        }
        _ => {}
    }
}

/// Whether the operation that caused the event requested exactly this.
fn asks_for(step: &Step<'_>, facts: &RequestFacts) -> bool {
    let Some(Operation::Request(Request { action, .. })) = step.operation() else { return false };
    match (action, &facts.wants) {
        (Action::Acquire(acquire), Held::Locks(locks)) => {
            (&acquire.locks, &acquire.owner, None) == (locks, &facts.owner, facts.converts)
        }
        (Action::TakePermits(take), Held::Permits { name, permits }) => {
            (&take.name, take.permits) == (name, *permits) && facts.converts.is_none()
        }
        (Action::Convert { grant, name, mode, .. }, Held::Locks(locks)) => {
            let owner: Option<&Option<OwnerName>> = step.ledger.grants.get(grant).map(|grant| &grant.owner);
            let is_lock = matches!(locks.as_slice(), [lock] if lock.name == *name && lock.mode == *mode);
            facts.converts == Some(*grant) && is_lock && owner == Some(&facts.owner)
        }
        _ => false,
    }
}

/// Whether the same names are held, and exactly one of them in another mode.
fn converts_one(before: &Held, after: &Held) -> bool {
    let (Held::Locks(before), Held::Locks(after)) = (before, after) else { return false };
    let same_names = before.len() == after.len() && before.iter().zip(after).all(|(a, b)| a.name == b.name);
    same_names && before.iter().zip(after).filter(|(a, b)| a.mode != b.mode).count() == 1
}

fn has_all(held: &Held, wanted: &Held) -> bool {
    match (held, wanted) {
        (Held::Locks(held), Held::Locks(wanted)) => wanted.iter().all(|lock| held.contains(lock)),
        _ => false,
    }
}
