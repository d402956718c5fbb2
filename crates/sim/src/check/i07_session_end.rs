//! I7: the end of a session removes all its grants and waiters at the same position.
//!
//! The ends of its grants and waits must follow directly after the end of the session, before any other kind of event.

use fencepost_core::{Event, Outcome};

use super::findings::Findings;
use super::i04_living::is_with_session;
use super::ledger::Ledger;
use super::step::Step;

/// Whether an event can belong to the end of a session. Before any other event, everything of an ended session must be gone.
fn may_follow_an_end(event: &Event) -> bool {
    matches!(event, Event::NotGranted { .. } | Event::Ended { .. })
}

/// Only a living session can end, and only an ended session takes its grants and waits with it.
// Rule: session-end
pub(super) fn what_goes_with_a_session(step: &Step<'_>, findings: &mut Findings) {
    let (session, with_session) = match step.event {
        Event::SessionEnded { session, .. } => {
            let lived = step.ledger.session(*session).is_some();
            return findings.ensure(lived, "I7", || format!("{session:?} ended but was not alive: {:?}", step.event));
        }
        Event::Ended { session, how, .. } => (*session, is_with_session(how).is_some()),
        Event::NotGranted { request, outcome } => (request.session, matches!(outcome, Outcome::SessionEnded(_))),
        _ => return,
    };
    let is_dead = step.ledger.session(session).is_none();
    findings.ensure(!with_session || is_dead, "I7", || {
        format!("a grant or wait ended because {session:?} ended, but that session is alive: {:?}", step.event)
    });
}

/// Everything of an ended session is gone before the next event of another kind, or the end of the entry.
pub(super) fn nothing_is_left(ledger: &mut Ledger, before: Option<&Event>, findings: &mut Findings) {
    if ledger.dying.is_empty() || before.is_some_and(may_follow_an_end) {
        return;
    }
    for id in std::mem::take(&mut ledger.dying) {
        if let Some(session) = ledger.sessions.get(&id) {
            let is_empty = session.grants.is_empty() && session.waits.is_empty();
            findings.ensure(is_empty, "I7", || {
                format!(
                    "{id:?} ended in entry {}, but its grants {:?} and waits {:?} are left",
                    ledger.index, session.grants, session.waits
                )
            });
        }
        ledger.forget_session(id);
    }
}
