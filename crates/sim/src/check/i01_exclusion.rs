//! I1: held intervals on one resource that overlap have compatible modes, and permits out never exceed the limit at grant time.
//!
//! Checked at each grant and each upgrade: nothing else can make two holders conflict. A rest after a grant counts as a holder, so this
//! file also checks that a grant with a lock delay rests as long as it asked for.

use fencepost_core::{Action, Event, Held, LogicalMs, Millis, Name, Operation, Permits, Request};

use super::findings::Findings;
use super::step::{GrantedRequest, Step};

/// A new grant conflicts neither with a holder of another owner nor with permits.
pub(super) fn no_other_owner_holds_it(step: &Step<'_>, granted: &GrantedRequest<'_>, findings: &mut Findings) {
    let ledger = step.ledger;
    for (name, stance) in &granted.stands {
        if let Some(state) = ledger.name_state(name) {
            let against = state.is_held_against(*stance, ledger.own_modes(granted.whose, name));
            findings.ensure(!against, "I1", || {
                format!(
                    "a grant in mode {:?} on {name} conflicts with one of the holders {:?}: {:?}",
                    stance.mode(),
                    state.holders,
                    step.event
                )
            });
        }
        let permits_out = ledger.semaphores.get(name).is_some_and(|semaphore| semaphore.out > 0);
        findings.ensure(!permits_out, "I1", || {
            format!("a lock is granted on {name} while permits of it are out: {:?}", step.event)
        });
    }
}

/// Permits out stay within the limit. Rests count as permits out.
// Rule: semaphore
pub(super) fn permits_are_within_the_limit(step: &Step<'_>, findings: &mut Findings) {
    let Event::Granted { request, .. } = step.event else { return };
    let Held::Permits { name, permits } = &request.wants else { return };
    let semaphore = step.ledger.semaphores.get(name);
    let out = semaphore.map_or(0, |semaphore| semaphore.out) + u64::from(permits.get());
    match semaphore.and_then(|semaphore| semaphore.limit).or_else(|| limit_said(step.operation(), name)) {
        Some(limit) => findings.ensure(out <= u64::from(limit.get()), "I1", || {
            format!("{out} permits of {name} are out, but the limit is {}: {:?}", limit.get(), step.event)
        }),
        // A limit from before a restore is unknown here.
        None => findings.ensure(step.ledger.is_restored, "I1", || {
            format!("permits are granted of a semaphore without a limit: {:?}", step.event)
        }),
    }
    let is_lock = step.ledger.name_state(name).is_some_and(|state| !state.holders.is_empty());
    findings.ensure(!is_lock, "I1", || {
        format!("permits of {name} are granted while a lock on it is held: {:?}", step.event)
    });
}

/// The limit in the request, if it takes permits of this semaphore.
fn limit_said(operation: Option<&Operation>, semaphore: &Name) -> Option<Permits> {
    match operation {
        Some(Operation::Request(Request { action: Action::TakePermits(take), .. })) if take.name == *semaphore => {
            take.limit
        }
        _ => None,
    }
}

/// After an involuntary end a grant rests as long as it asked for. After any other end it does not rest.
// Rule: lock-delay
pub(super) fn it_rests_as_asked(step: &Step<'_>, findings: &mut Findings) {
    let Event::Ended { grant, how, count_left: 0, rests_until, .. } = step.event else { return };
    let Some(grant) = step.ledger.grants.get(grant) else { return };
    let delay = grant.lasts.lock_delay;
    let should: Option<LogicalMs> = (how.involuntary() && delay > Millis::ZERO).then(|| step.entry.stamp.after(delay));
    findings.report.rests += u64::from(rests_until.is_some());
    findings.ensure(*rests_until == should, "I1", || {
        format!("the ended grant rests until {rests_until:?}, expected {should:?} (rule lock-delay): {:?}", step.event)
    });
}
