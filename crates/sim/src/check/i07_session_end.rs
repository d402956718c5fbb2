//! I7: a session's end removes all its grants and waiters at one position.

use fencepost_core::{Event, Outcome};

use super::findings::Findings;
use super::i04_living::is_with_session;
use super::ledger::Ledger;
use super::step::Step;

/// Whether an event can stand between the end of a session and the ends of what it had. Before any other, all that must be gone.
fn may_follow_an_end(event: &Event) -> bool {
    matches!(event, Event::NotGranted { .. } | Event::Ended { .. })
}

/// Only a session that ended takes its grants and waits with it; and only one that lived can end.
// Rule: session-end
pub(super) fn what_goes_with_a_session(step: &Step<'_>, findings: &mut Findings) {
    let (session, with_session) = match step.event {
        Event::SessionEnded { session, .. } => {
            let lived = step.ledger.session(*session).is_some();
            return findings.ensure(lived, "I7", || format!("a session ended that did not live: {:?}", step.event));
        }
        Event::Ended { session, how, .. } => (*session, is_with_session(*how).is_some()),
        Event::NotGranted { request, outcome } => (request.session, matches!(outcome, Outcome::SessionEnded(_))),
        _ => return,
    };
    let is_dead = step.ledger.session(session).is_none();
    findings.ensure(!with_session || is_dead, "I7", || format!("ended with a session that lives: {:?}", step.event));
}

/// What belonged to a session that ended is gone before anything else happens.
pub(super) fn nothing_is_left(ledger: &mut Ledger, before: Option<&Event>, findings: &mut Findings) {
    if ledger.dying.is_empty() || before.is_some_and(may_follow_an_end) {
        return;
    }
    for id in std::mem::take(&mut ledger.dying) {
        if let Some(session) = ledger.sessions.get(&id) {
            let is_empty = session.grants.is_empty() && session.waits.is_empty();
            findings.ensure(is_empty, "I7", || {
                format!("{id:?} has ended in entry {} and left {:?} {:?}", ledger.index, session.grants, session.waits)
            });
        }
        ledger.forget_session(id);
    }
}
