//! I5: waiters are granted in order of arrival, as the rule `fifo` says.
//!
//! A request is not granted before an earlier request that it conflicts with. A waiting conversion counts as earlier than every fresh
//! request, and waits only for holders and earlier conversions. Of a semaphore only the head of the queue is served. Under a freeze
//! nothing is granted.

use fencepost_core::{Event, Held};

use super::findings::Findings;
use super::step::{GrantedRequest, Step};

/// A grant passes no earlier waiter on any of its names.
// Rule: fifo
pub(super) fn no_waiter_is_passed(step: &Step<'_>, granted: &GrantedRequest<'_>, findings: &mut Findings) {
    for (name, stance) in &granted.stands {
        let passed = step.ledger.name_state(name).and_then(|state| state.ahead_of(*stance, granted.arrival));
        findings.ensure(passed.is_none(), "I5", || {
            let passed = passed.and_then(|arrival| step.ledger.waiters.get(&arrival)).map(|waiter| &waiter.request);
            format!("a grant on {name} passed the earlier request {passed:?}: {:?}", step.event)
        });
        let frozen = step.ledger.freeze_over(name);
        findings.ensure(frozen.is_none(), "I5", || {
            format!("a request was granted under the freeze {frozen:?} (rule freeze): {:?}", step.event)
        });
    }
}

/// Permits go only to the head of the queue.
// Rule: semaphore
pub(super) fn permits_go_to_the_head(step: &Step<'_>, findings: &mut Findings) {
    let Event::Granted { request, .. } = step.event else { return };
    let Held::Permits { name, .. } = &request.wants else { return };
    let head = step.ledger.semaphores.get(name).and_then(|semaphore| semaphore.queue.keys().next().copied());
    findings.ensure(head == step.waiter, "I5", || {
        format!("permits went to a request that is not the head {head:?} of the queue: {:?}", step.event)
    });
    let frozen = step.ledger.freeze_over(name);
    findings.ensure(frozen.is_none(), "I5", || {
        format!("a request was granted under the freeze {frozen:?} (rule freeze): {:?}", step.event)
    });
}

/// Arrival numbers rise, over all names of the group.
pub(super) fn arrivals_rise(step: &Step<'_>, findings: &mut Findings) {
    if let Event::Queued { arrival, .. } = step.event {
        let last = step.ledger.last_arrival;
        findings.ensure(arrival.0 > last, "I5", || {
            format!("the arrival number is not higher than the last one, {last}: {:?}", step.event)
        });
    }
}
