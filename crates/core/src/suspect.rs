//! Suspected deadlocks: sessions that wait for each other in a circle.
//!
//! Deadlocks among named owners are found with certainty and refused (`deadlock`). Most programs name no owners, and two processes that
//! take A then B and B then A wait until one of them gives up. Here the sessions are taken for what waits. That is a suspicion only: a
//! session can do several things at once, and the one that holds need not be the one that waits. So nothing is refused because of it.
//! It is shown to people who ask why something waits.

use std::collections::{BTreeMap, VecDeque};

use crate::bounds;
use crate::command::Locks;
use crate::deadlock::Edge;
use crate::footprint::checked_footprint;
use crate::outcome::{Cycle, CycleLink};
use crate::resource::Stance;
use crate::state::LockState;
use crate::waiter::OwnerId;
use crate::words::{Arrival, Name, OwnerName, RequestNumber, SessionId};

/// How much of the search is left, over all starts of one question.
struct Steps(usize);

impl LockState {
    /// A circle of sessions that a wait for these locks would close, or, if it has just been given up, closed. Its first link is that wait,
    /// with the number zero.
    // Rule: explain
    pub fn suspect(&self, session: SessionId, owner: Option<&OwnerName>, locks: &Locks) -> Option<Cycle> {
        // Behind everything that waits.
        let at = Arrival(u64::MAX);
        let owner_id = match owner {
            Some(name) => OwnerId::Named(session, name.clone()),
            None => OwnerId::Request(at),
        };
        let mut steps = Steps(bounds::SUSPECTED_STEPS_MAX);
        let mut first = Vec::new();
        for (name, mode) in &checked_footprint(locks).ok()? {
            if !self.is_affordable(std::iter::once(name), &steps) {
                continue;
            }
            for edge in self.edges_at(&owner_id, at, name, Stance::Fresh(*mode)).take(steps.0) {
                let link = CycleLink {
                    session,
                    owner: owner.cloned(),
                    number: RequestNumber(0),
                    waits_for: edge.name.clone(),
                    wants: *mode,
                    blocked_by: edge.grant,
                };
                first.push((link, edge));
            }
        }
        self.circle_from(session, first, &mut steps)
    }

    /// A circle of sessions with a wait for this name on it.
    pub(crate) fn suspect_at(&self, waiters: impl Iterator<Item = Arrival>, name: &Name) -> Option<Cycle> {
        let mut steps = Steps(bounds::SUSPECTED_STEPS_MAX);
        for arrival in waiters {
            let here = self.waits_of(arrival, &steps).into_iter().filter(|(_, edge)| edge.name == *name);
            let first = here.collect();
            if let Some(cycle) = self.circle_from(self.waiters[&arrival].record.session, first, &mut steps) {
                return Some(cycle);
            }
            if steps.0 == 0 {
                break;
            }
        }
        None
    }

    /// Breadth first from session to session, so that the circle that people are shown is a shortest one.
    fn circle_from(&self, start: SessionId, first: Vec<(CycleLink, Edge)>, steps: &mut Steps) -> Option<Cycle> {
        // How each session was come to: from which, and by which wait of that one.
        let mut came_by: BTreeMap<SessionId, (SessionId, CycleLink)> = BTreeMap::new();
        let mut to_visit = VecDeque::new();
        let mut edges = first;
        let mut at = start;
        loop {
            for (link, edge) in edges {
                steps.0 = steps.0.checked_sub(1)?;
                let Some(next) = self.session_in_the_way(&edge) else { continue };
                // Requests of one session that wait for each other are several things that it does at once.
                if next == at || came_by.contains_key(&next) {
                    continue;
                }
                if next == start {
                    return Some(circle(start, at, link, came_by));
                }
                came_by.insert(next, (at, link));
                to_visit.push_back(next);
            }
            at = to_visit.pop_front()?;
            let waits = self.sessions[&at].waits.iter();
            edges = waits.flat_map(|(_, arrival)| self.waits_of(*arrival, steps)).take(steps.0).collect();
        }
    }

    /// What a waiting request waits for, as links and as edges; nothing if that is more than the search may look at.
    fn waits_of(&self, arrival: Arrival, steps: &Steps) -> Vec<(CycleLink, Edge)> {
        if !self.is_affordable(self.waiters[&arrival].stances.iter().map(|(name, _)| name), steps) {
            return Vec::new();
        }
        self.edges(arrival).take(steps.0).map(|edge| (self.cycle_link(arrival, &edge), edge)).collect()
    }

    /// Whether so few hold these names that all of them can be looked at.
    fn is_affordable<'a>(&self, names: impl Iterator<Item = &'a Name>, steps: &Steps) -> bool {
        let holders = names.filter_map(|name| self.resources.get(name)).map(|resource| resource.holders.iter().count());
        holders.sum::<usize>() <= steps.0
    }

    fn session_in_the_way(&self, edge: &Edge) -> Option<SessionId> {
        match (edge.grant, edge.next) {
            (Some(grant), _) => self.grants.get(&grant).map(|grant| grant.record.session),
            (None, Some(arrival)) => self.waiters.get(&arrival).map(|waiter| waiter.record.session),
            (None, None) => None,
        }
    }
}

fn circle(
    start: SessionId,
    last: SessionId,
    link: CycleLink,
    mut came_by: BTreeMap<SessionId, (SessionId, CycleLink)>,
) -> Cycle {
    let (mut links, mut at) = (vec![link], last);
    while at != start {
        let (before, link) = came_by.remove(&at).expect("every session on the way was come to from another");
        links.push(link);
        at = before;
    }
    links.reverse();
    Cycle { links }
}
