//! I4: every grant has a log entry with its request, and no grant goes to a session that is dead at that position.
//!
//! The same holds for a place in a queue and for a conversion.

use fencepost_core::{Event, GrantEnd, Outcome, SessionEnd};

use super::due::Due;
use super::findings::Findings;
use super::step::Step;

/// A session that gets a grant or a place in a queue is alive, and a request in the log asked for it.
// Rule: no-grant-to-the-dead
pub(super) fn who_gets_something_lives_and_asked(step: &Step<'_>, findings: &mut Findings) {
    let ledger = step.ledger;
    let said = step.reply().map(|reply| &reply.outcome);
    let session = match step.event {
        Event::Queued { request, arrival } => {
            let asked = matches!(said, Some(Outcome::Queued { arrival: said, .. }) if said == arrival);
            findings.ensure(asked, "I4", || format!("a request was queued, but no answer says so: {:?}", step.event));
            request.session
        }
        Event::Granted { request, grant, token, count } => {
            let told = Outcome::Granted { grant: *grant, token: *token, count: *count };
            let asked = step.waiter.is_some() || said == Some(&told);
            findings.ensure(asked, "I4", || format!("a request was granted, but no answer says so: {:?}", step.event));
            request.session
        }
        Event::Converted { grant, token, session, .. } => {
            let told = Outcome::Converted { grant: *grant, token: *token };
            let asked = step.waiter.is_some() || said == Some(&told);
            findings.ensure(asked, "I4", || format!("a grant was converted, but no answer says so: {:?}", step.event));
            *session
        }
        Event::SessionOpened { session, .. } => {
            findings.ensure(step.cause.is_some(), "I4", || {
                format!("a session was opened without a request: {:?}", step.event)
            });
            let is_new = ledger.session(*session).is_none();
            return findings
                .ensure(is_new, "I4", || format!("a session was opened that was already alive: {:?}", step.event));
        }
        _ => return,
    };
    // Expiries come before grants within an entry, so a session that is due at this stamp is dead already.
    // Rule: within-an-entry
    let lives = ledger.deadline(Due::Session(session)).is_some_and(|deadline| deadline > step.entry.stamp);
    findings.ensure(lives, "I4", || format!("the session of the event is already dead: {:?}", step.event));
}

/// How the session ended, if the grant ended together with it.
pub(super) fn is_with_session(how: &GrantEnd) -> Option<&SessionEnd> {
    match how {
        GrantEnd::Session(how) => Some(how),
        _ => None,
    }
}
