//! Suspected deadlocks: sessions that wait for each other in a circle.
//!
//! Deadlocks among named owners are certain, and are refused (`deadlock.rs`). But most programs name no owners: if one process
//! takes A then B and another takes B then A, both wait until one gives up. The search here treats each session as one owner.
//! Its result is only a suspicion, because a session can run several tasks, and the task that holds need not be the one that
//! waits. So nothing is refused because of it; it is shown to people who ask why something waits.

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

/// The steps that are left for the searches of one query.
struct Steps(usize);

impl LockState {
    /// A circle of sessions that a wait for these locks would close, or did close if the caller has just given it up. The first
    /// link is that wait, with the number zero.
    // Rule: explain
    pub fn suspect(&self, session: SessionId, owner: Option<&OwnerName>, locks: &Locks) -> Option<Cycle> {
        // Later than every waiter.
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

    /// A circle of sessions in which one of the waits is for this name, searched from these waiters.
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

    /// Searches breadth first from session to session, so that the circle shown to people is a shortest one.
    fn circle_from(&self, start: SessionId, first: Vec<(CycleLink, Edge)>, steps: &mut Steps) -> Option<Cycle> {
        // How the search reached each session: from which one, and by which of its waits.
        let mut reached_from: BTreeMap<SessionId, (SessionId, CycleLink)> = BTreeMap::new();
        let mut to_visit = VecDeque::new();
        let mut edges = first;
        let mut at = start;
        loop {
            for (link, edge) in edges {
                steps.0 = steps.0.checked_sub(1)?;
                let Some(next) = self.session_in_the_way(&edge) else { continue };
                // Requests of one session that wait for each other belong to several tasks of that session.
                if next == at || reached_from.contains_key(&next) {
                    continue;
                }
                if next == start {
                    return Some(circle(start, at, link, reached_from));
                }
                reached_from.insert(next, (at, link));
                to_visit.push_back(next);
            }
            at = to_visit.pop_front()?;
            let waits = self.sessions[&at].waits.iter();
            edges = waits.flat_map(|(_, arrival)| self.waits_of(*arrival, steps)).take(steps.0).collect();
        }
    }

    /// The edges of a waiting request, each with its link. Empty if its names have more holders than there are steps left.
    fn waits_of(&self, arrival: Arrival, steps: &Steps) -> Vec<(CycleLink, Edge)> {
        if !self.is_affordable(self.waiters[&arrival].stances.iter().map(|(name, _)| name), steps) {
            return Vec::new();
        }
        self.edges(arrival).take(steps.0).map(|edge| (self.cycle_link(arrival, &edge), edge)).collect()
    }

    /// Whether these names have few enough holders to look at all of them.
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
    mut reached_from: BTreeMap<SessionId, (SessionId, CycleLink)>,
) -> Cycle {
    let (mut links, mut at) = (vec![link], last);
    while at != start {
        let (before, link) = reached_from.remove(&at).expect("the search reached each session from another one");
        links.push(link);
        at = before;
    }
    links.reverse();
    Cycle { links }
}
