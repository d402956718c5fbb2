//! The output of `check` and `why`, with the names of the scenario.
//!
//! These are the core's own explanations. `show`, in contrast, prints what it derives from the records alone.

use fencepost_core::{BlockedBy, Blocker, Cycle, CycleLink, Explanation, TokenCheck};

use super::print::{Spelling, held, takes, token_of};
use super::words::time;

/// Whether the grant of a token stands.
pub(crate) fn check(found: TokenCheck) -> String {
    match found {
        TokenCheck::Stands { grant, deadline } => format!("stands as grant {} until {}", grant.0, time(deadline.0)),
        TokenCheck::Gone => "gone".to_string(),
    }
}

/// The holders, rests and freezes of a resource, its waiters, and what the first waiter waits for.
pub(crate) fn resource(why: &Explanation, spelling: &Spelling) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some((semaphore, out)) = &why.semaphore {
        lines.push(format!("limit {}, {out} out", semaphore.limit.get()));
    }
    for view in &why.holders {
        let from = view.covers_from.as_ref().map_or(String::new(), |name| format!(", from {name}"));
        lines.push(format!("held by {}, until {}{from}", spelling.holder(&view.holder), time(view.deadline.0)));
    }
    for rest in &why.rests {
        let token = token_of(rest.grant, rest.token);
        lines.push(format!("resting {} {token}, until {}", held(&rest.held), time(rest.until.0)));
    }
    for freeze in &why.freezes {
        lines.push(format!("frozen by {}, {}", spelling.freeze(freeze.id), spelling.scope(&freeze.scope)));
    }
    for view in &why.queue {
        let who = spelling.owner(view.waiter.session, view.waiter.owner.as_ref());
        let converts = if view.converts { " by conversion" } else { "" };
        let since = time(view.waiter.queued_at.0);
        lines.push(format!(
            "{}. {who}#{} wants {}{converts} since {since}",
            view.position,
            view.waiter.number.0,
            takes(view.wants)
        ));
    }
    if why.queue.len() < why.queue_len {
        lines.push(format!("{} wait in all", why.queue_len));
    }
    lines.extend(chain(&why.chain, spelling));
    lines.extend(why.suspected.iter().map(|cycle| suspected(cycle, spelling)));
    lines
}

/// A suspected deadlock.
pub(crate) fn suspected(cycle: &Cycle, spelling: &Spelling) -> String {
    let link = |link: &CycleLink| {
        let who = spelling.owner(link.session, link.owner.as_ref());
        let by = link.blocked_by.map_or("behind a waiter".to_string(), |grant| format!("grant {}", grant.0));
        format!("{who}#{} for {} ({by})", link.number.0, link.waits_for)
    };
    format!("suspected: {}", cycle.links.iter().map(link).collect::<Vec<_>>().join(", "))
}

/// A chain of blockers, one line a step.
pub(crate) fn chain(chain: &[Blocker], spelling: &Spelling) -> Vec<String> {
    let line = |step: &Blocker| {
        let by = match &step.by {
            BlockedBy::Grant(holder) | BlockedBy::Rest(holder) => spelling.holder(holder),
            BlockedBy::Waiter(arrival) => format!("arrival {}", arrival.0),
            BlockedBy::Freeze(freeze) => format!("freeze {}", spelling.freeze(freeze.id)),
            BlockedBy::Permits => "too few permits".to_string(),
        };
        let who = spelling.owner(step.session, step.owner.as_ref());
        format!("{who}#{} is blocked on {} by {by}", step.number.0, step.name)
    };
    chain.iter().map(line).collect()
}
