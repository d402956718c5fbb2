//! I13: a request that is refused as a deadlock is on a real cycle, and no detectable cycle is left after an entry.
//!
//! Every link of a reported cycle is compared with the ledger. A new cycle can only run through a request that waits for more than
//! before: a new one, or one whose owner released something. The search starts from those and follows all edges, up to the bound that
//! the service itself has.

use std::collections::{BTreeSet, VecDeque};

use fencepost_core::{Arrival, Cycle, CycleLink, Event, Held, Outcome, RequestFacts, bounds};

use super::findings::Findings;
use super::ledger::{Lasts, Ledger, Whose};

/// For owners with more names than this, the search starts at once, without checking first whether any request waits for these names.
const NAMES_ASKED_FIRST_MAX: usize = 64;

/// Compares each link of the reported cycle with the ledger just before the event.
// Rule: deadlock
pub(super) fn the_cycle_is_real(ledger: &mut Ledger, event: &Event, findings: &mut Findings) {
    let Event::NotGranted { request, outcome: Outcome::Deadlock(cycle) } = event else { return };
    findings.report.deadlocks += 1;
    // A request that was refused at once was never queued. It is queued here only while its cycle is checked.
    let newcomer = match ledger.waiting(request.session, request.number) {
        Some(_) => None,
        None => Some(Arrival(u64::MAX)),
    };
    let before = ledger.further_back.len();
    if let Some(arrival) = newcomer {
        ledger.add_waiter(arrival, request.clone(), None, Lasts::default(), false);
    }
    if let Err(why) = walk(ledger, request, cycle) {
        findings.found("I13", || format!("the reported cycle is wrong, {why}: {event:?}"));
    }
    if let Some(arrival) = newcomer {
        ledger.remove_waiter(arrival);
        ledger.further_back.truncate(before);
    }
}

fn walk(ledger: &Ledger, refused: &RequestFacts, cycle: &Cycle) -> Result<(), String> {
    let first = cycle.links.first().ok_or("it has no links")?;
    if (first.session, first.number) != (refused.session, refused.number) {
        return Err("it does not begin with the refused request".to_string());
    }
    for (at, link) in cycle.links.iter().enumerate() {
        let next = &cycle.links[(at + 1) % cycle.links.len()];
        if !is_link(ledger, link, next) {
            return Err(format!("{link:?} does not wait for {next:?}"));
        }
    }
    Ok(())
}

fn is_link(ledger: &Ledger, link: &CycleLink, next: &CycleLink) -> bool {
    let (Some(from), Some(to)) = (ledger.waiting(link.session, link.number), ledger.waiting(next.session, next.number))
    else {
        return false;
    };
    let waiter = &ledger.waiters[&from];
    let stands = waiter.stands.iter().find(|(name, stance)| *name == link.waits_for && stance.mode() == link.wants);
    let (Some((name, stance)), true) = (stands, waiter.request.owner == link.owner) else { return false };
    let Some(state) = ledger.name_state(name) else { return false };
    match link.blocked_by {
        None => state.all_ahead_of(*stance, from).contains(&to),
        Some(id) => {
            let Some(grant) = ledger.grants.get(&id) else { return false };
            let conflicts = state.holders.get(&id).is_some_and(|mode| !mode.compatible(stance.mode()));
            conflicts
                && Whose::grant(grant) != Whose::request(&waiter.request)
                && ledger.waits_of(Whose::grant(grant)) == Some(to)
        }
    }
}

/// No cycle is left among the waiters, as far as the search goes.
pub(super) fn no_cycle_is_left(ledger: &mut Ledger, findings: &mut Findings) {
    let mut starts = std::mem::take(&mut ledger.further_back);
    starts.sort_unstable();
    starts.dedup();
    for start in starts {
        if may_be_on_a_cycle(ledger, start) {
            findings.report.cycle_searches += 1;
            let is_on_cycle = comes_back(ledger, start);
            findings.ensure(!is_on_cycle, "I13", || {
                format!("a request waits on a cycle after entry {}: {:?}", ledger.index, ledger.waiters[&start].request)
            });
        }
    }
}

/// Whether any request waits for something that the waiter's owner holds. If not, no edge leads back to the waiter.
fn may_be_on_a_cycle(ledger: &Ledger, start: Arrival) -> bool {
    let Some(waiter) = ledger.waiters.get(&start).filter(|waiter| !waiter.unchecked) else { return false };
    if matches!(waiter.request.wants, Held::Permits { .. }) {
        return false;
    }
    let others_wait = |name: &fencepost_core::Name| {
        let stands_here = waiter.stands.iter().any(|(other, _)| other == name);
        ledger.name_state(name).is_some_and(|state| state.waiter_count() > usize::from(stands_here))
    };
    match Whose::request(&waiter.request) {
        Whose::Named(session, owner) => {
            let owner = ledger.sessions.get(&session).and_then(|session| session.owners.get(owner));
            owner.is_some_and(|owner| owner.held.len() > NAMES_ASKED_FIRST_MAX || owner.held.keys().any(others_wait))
        }
        Whose::Grant(grant) => {
            ledger.grants.get(&grant).is_some_and(|grant| grant.needs.iter().any(|(name, _)| others_wait(name)))
        }
        Whose::Its => false,
    }
}

/// Whether the edges lead from a waiter back to it.
fn comes_back(ledger: &Ledger, start: Arrival) -> bool {
    let (mut seen, mut to_visit, mut steps) = (BTreeSet::new(), VecDeque::from([start]), 0);
    while let Some(at) = to_visit.pop_front() {
        for next in waits_for(ledger, at) {
            steps += 1;
            if next == start {
                return true;
            }
            if steps > bounds::DEADLOCK_STEPS_MAX {
                return false;
            }
            if seen.insert(next) {
                to_visit.push_back(next);
            }
        }
    }
    false
}

/// The requests that a waiter waits for: the requests ahead of it, and the pending requests of the owners that hold what it needs.
fn waits_for(ledger: &Ledger, at: Arrival) -> Vec<Arrival> {
    let Some(waiter) = ledger.waiters.get(&at) else { return Vec::new() };
    let whose = Whose::request(&waiter.request);
    let mut requests = Vec::new();
    for (name, stance) in &waiter.stands {
        let Some(state) = ledger.name_state(name) else { continue };
        let in_the_way = state.holders.iter().filter(|(_, mode)| !mode.compatible(stance.mode()));
        let owners =
            in_the_way.filter_map(|(id, _)| ledger.grants.get(id)).map(Whose::grant).filter(|owner| *owner != whose);
        requests.extend(owners.filter_map(|owner| ledger.waits_of(owner)));
        requests.extend(state.all_ahead_of(*stance, at));
    }
    requests
}
