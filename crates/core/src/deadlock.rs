//! Deadlock: a request that would close a cycle of owners waiting for each other is refused, with the cycle.
//!
//! The search starts at the request that is about to wait and follows who keeps whom from passing, nearest first, until
//! it comes back to the request's own owner. A cycle is closed by a request that begins to wait, or by one whose owner lets
//! go of something while it waits, so whoever is found here is the one to refuse, and never a holder.

use std::collections::{BTreeMap, VecDeque};

use crate::bounds;
use crate::footprint::footprint;
use crate::mode::{Mode, ModeSet};
use crate::outcome::{Cycle, CycleLink, Held, Outcome};
use crate::planted;
use crate::record::Wants;
use crate::resource::Stance;
use crate::state::LockState;
use crate::waiter::OwnerId;
use crate::words::{Arrival, GrantId, Name};

/// An owner with more names than this is not asked first whether anybody waits for them: the search itself is bounded.
const NAMES_ASKED_FIRST_MAX: usize = 64;

/// Why one waiting request waits for another owner.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) name: Name,
    pub(crate) stance: Stance,
    /// The grant in the way, or none if the other only waits there earlier.
    pub(crate) grant: Option<GrantId>,
    /// The request in the way: an earlier one, or the one that the grant's owner waits for.
    pub(crate) next: Option<Arrival>,
}

enum Search {
    NoCycle,
    Cycle(Cycle),
    GaveUp,
}

impl LockState {
    /// Whether a request that begins to wait can close a cycle at all: its owner holds something that somebody waits for.
    pub(crate) fn may_close_cycle(&self, start: Arrival) -> bool {
        let waiter = &self.waiters[&start];
        let owner = waiter.record.owner_id();
        let holds = match (&waiter.record.wants, &owner) {
            (Wants::Permits { .. }, _) => false,
            (Wants::Conversion { .. }, _) => true,
            (Wants::Locks(_), OwnerId::Named(session, name)) => !self.sessions[session].owners[name].held.is_empty(),
            (Wants::Locks(_), _) => false,
        };
        holds && self.somebody_waits_for(&owner, start)
    }

    /// An owner that lets go of something while it waits can move further back in a queue: behind waiters that it was
    /// ahead of. If that closes a cycle, nobody on it could ever move again, so the wait that closed it ends here.
    // Rule: deadlock
    pub(crate) fn end_loosened_cycles(&mut self) {
        let mut loosened = std::mem::take(&mut self.loosened);
        loosened.sort_unstable();
        for arrival in loosened {
            if self.waiters.contains_key(&arrival)
                && let Some(cycle) = self.closed_cycle(arrival)
            {
                self.end_wait(arrival, Outcome::Deadlock(Box::new(cycle)));
            }
        }
    }

    /// The cycle that a waiting request closes, if it does. A request on which the search gives up is marked unchecked.
    // Rule: deadlock
    pub(crate) fn closed_cycle(&mut self, start: Arrival) -> Option<Cycle> {
        match self.search(start) {
            Search::Cycle(cycle) => Some(cycle),
            Search::NoCycle => None,
            Search::GaveUp => {
                let waiter = self.waiters.get_mut(&start).expect("the search began at it");
                waiter.record.unchecked = true;
                waiter.digest(&mut self.digest);
                None
            }
        }
    }

    fn search(&self, start: Arrival) -> Search {
        let owner = self.waiters[&start].record.owner_id();
        // Breadth first, so that the cycle that people are shown is a shortest one.
        let mut came_by: BTreeMap<Arrival, (Arrival, Edge)> = BTreeMap::new();
        let mut to_visit = VecDeque::from([start]);
        let mut steps = 0;
        while let Some(at) = to_visit.pop_front() {
            for edge in self.edges(at) {
                steps += 1;
                if steps > bounds::DEADLOCK_STEPS_MAX {
                    return Search::GaveUp;
                }
                let grant_owner = edge.grant.and_then(|grant| self.grants.get(&grant)).map(|grant| grant.owner_id());
                if edge.next == Some(start) || grant_owner.as_ref() == Some(&owner) {
                    return Search::Cycle(self.cycle(start, at, edge, came_by));
                }
                if let Some(next) = edge.next
                    && !came_by.contains_key(&next)
                    && planted::search_goes_deeper()
                {
                    came_by.insert(next, (at, edge));
                    to_visit.push_back(next);
                }
            }
        }
        Search::NoCycle
    }

    /// Whether another request waits for something that the owner holds. If not, no edge can lead back to it.
    fn somebody_waits_for(&self, owner: &OwnerId, start: Arrival) -> bool {
        let is_contended = |name: &Name| {
            let Some(queue) = self.resources.get(name).and_then(|resource| resource.queue()) else { return false };
            let waits_here = self.waiters[&start].stances.iter().any(|(other, _)| other == name);
            queue.len() > usize::from(waits_here)
        };
        match owner {
            OwnerId::Named(session, name) => {
                let held = &self.sessions[session].owners[name].held;
                held.len() > NAMES_ASKED_FIRST_MAX || held.keys().any(is_contended)
            }
            OwnerId::Grant(grant) => {
                let needs = footprint(match &self.grants[grant].record.held {
                    Held::Locks(locks) => locks,
                    Held::Permits { .. } => &[],
                });
                needs.iter().any(|(name, _)| is_contended(name))
            }
            OwnerId::Request(_) => false,
        }
    }

    /// Everybody that keeps a waiting request from passing, name by name: holders by grant, waiting conversions, then
    /// earlier waiters, each in order. Rests, freezes and permits are nobody.
    pub(crate) fn edges(&self, at: Arrival) -> impl Iterator<Item = Edge> + '_ {
        let waiter = &self.waiters[&at];
        let owner = waiter.record.owner_id();
        waiter.stances.iter().flat_map(move |(name, stance)| self.edges_at(&owner, at, name, *stance))
    }

    /// Those of them at one name, for a request of this owner with this arrival and stance.
    pub(crate) fn edges_at<'a>(
        &'a self,
        owner: &OwnerId,
        at: Arrival,
        name: &'a Name,
        stance: Stance,
    ) -> impl Iterator<Item = Edge> + use<'a> {
        let holders: Vec<Edge> = (self.conflicting_holders(owner, name, stance))
            .filter_map(|(grant, _)| {
                let next = self.waiting_request(&self.grants.get(&grant)?.owner_id());
                Some(Edge { name: name.clone(), stance, grant: Some(grant), next })
            })
            .collect();
        let queue = self.resources.get(name).and_then(|resource| resource.queue());
        let conflicts = stance.mode().conflicts();
        let earlier = queue.into_iter().flat_map(move |queue| {
            let counts = move |(other, target): (Arrival, _)| match stance {
                Stance::Fresh(_) => other != at && conflicts.contains(target),
                Stance::Converting(_) => other < at && conflicts.contains(Mode::U),
            };
            let converting = queue.converting().filter(move |it| counts(*it)).map(|(other, _)| other);
            let fresh_modes = match stance {
                Stance::Fresh(_) => conflicts,
                Stance::Converting(_) => ModeSet::EMPTY,
            };
            converting.chain(queue.fresh_in(fresh_modes).take_while(move |other| *other < at))
        });
        let waiters = earlier.map(move |other| Edge { name: name.clone(), stance, grant: None, next: Some(other) });
        holders.into_iter().chain(waiters)
    }

    /// The request that an owner waits for.
    pub(crate) fn waiting_request(&self, owner: &OwnerId) -> Option<Arrival> {
        match owner {
            OwnerId::Named(session, name) => self.sessions.get(session)?.owners.get(name)?.waits,
            OwnerId::Grant(grant) => self.grants.get(grant)?.converting,
            OwnerId::Request(arrival) => Some(*arrival),
        }
    }

    fn cycle(
        &self,
        start: Arrival,
        last: Arrival,
        edge: Edge,
        mut came_by: BTreeMap<Arrival, (Arrival, Edge)>,
    ) -> Cycle {
        let mut links = vec![self.cycle_link(last, &edge)];
        let mut at = last;
        while at != start {
            let (before, edge) = came_by.remove(&at).expect("every request on the way was come to from another");
            links.push(self.cycle_link(before, &edge));
            at = before;
        }
        links.reverse();
        Cycle { links }
    }

    pub(crate) fn cycle_link(&self, at: Arrival, edge: &Edge) -> CycleLink {
        let record = &self.waiters[&at].record;
        CycleLink {
            session: record.session,
            owner: record.owner.clone(),
            number: record.number,
            waits_for: edge.name.clone(),
            wants: edge.stance.mode(),
            blocked_by: edge.grant,
        }
    }
}
