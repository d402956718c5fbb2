//! Deadlock: a request that would close a cycle of owners waiting for each other is refused, and is shown the cycle.
//!
//! The search starts at one waiting request and follows its edges breadth first: from a request to the grants and requests
//! that block it, and from a grant to the waiting request of its owner. A path back to the first owner is a cycle.
//!
//! Only two things can close a cycle: a request that begins to wait, and an owner that releases or weakens something while
//! it waits. So the search runs only for these two, and the victim is always the request that waits, never a holder.

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

/// If an owner holds more names than this, the search runs without first looking at the queue of each name: the search is
/// bounded, that look would not be.
const NAMES_ASKED_FIRST_MAX: usize = 64;

/// One reason why a request waits: what blocks it on one name.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) name: Name,
    pub(crate) stance: Stance,
    /// The grant that blocks it; `None` if a waiting request does.
    pub(crate) grant: Option<GrantId>,
    /// Where the search goes on: the waiting request that blocks it, or the waiting request of the grant's owner.
    pub(crate) next: Option<Arrival>,
}

enum Search {
    NoCycle,
    Cycle(Cycle),
    GaveUp,
}

impl LockState {
    /// Whether a request that begins to wait can close a cycle at all. It cannot unless its owner holds something that
    /// another request waits for.
    pub(crate) fn may_close_cycle(&self, start: Arrival) -> bool {
        let waiter = &self.waiters[&start];
        let owner = waiter.record.owner_id();
        let holds = match (&waiter.record.wants, &owner) {
            (Wants::Permits { .. }, _) => false,
            (Wants::Conversion { .. }, _) => true,
            (Wants::Locks(_), OwnerId::Named(session, name)) => !self.sessions[session].owners[name].held.is_empty(),
            (Wants::Locks(_), _) => false,
        };
        holds && self.is_waited_for(&owner, start)
    }

    /// Ends the waits that closed a cycle because their owner released or weakened something. Such an owner can lose its
    /// place ahead of a queue and then wait behind requests that wait for it. No request on that cycle could ever be
    /// granted, so the owner's own wait ends.
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

    /// The cycle that a waiting request closes, if any. If the search gives up, the request is marked unchecked.
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
        // How the search reached each request: from which one, along which edge.
        let mut reached_from: BTreeMap<Arrival, (Arrival, Edge)> = BTreeMap::new();
        // Breadth first, so that the cycle shown to people is a shortest one.
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
                    return Search::Cycle(self.cycle(start, at, edge, reached_from));
                }
                if let Some(next) = edge.next
                    && !reached_from.contains_key(&next)
                    && planted::search_goes_deeper()
                {
                    reached_from.insert(next, (at, edge));
                    to_visit.push_back(next);
                }
            }
        }
        Search::NoCycle
    }

    /// Whether another request waits for something that the owner holds. If not, no edge can lead back to the owner.
    fn is_waited_for(&self, owner: &OwnerId, start: Arrival) -> bool {
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

    /// What blocks a waiting request, name by name: holders by grant id, then waiting conversions, then earlier waiters by
    /// arrival. Rests, freezes and permits are no edges: they wait for no owner.
    pub(crate) fn edges(&self, at: Arrival) -> impl Iterator<Item = Edge> + '_ {
        let waiter = &self.waiters[&at];
        let owner = waiter.record.owner_id();
        waiter.stances.iter().flat_map(move |(name, stance)| self.edges_at(&owner, at, name, *stance))
    }

    /// The edges at one name, for a request of this owner with this arrival and stance.
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

    /// The waiting request of an owner, if it waits.
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
        mut reached_from: BTreeMap<Arrival, (Arrival, Edge)>,
    ) -> Cycle {
        let mut links = vec![self.cycle_link(last, &edge)];
        let mut at = last;
        while at != start {
            let (before, edge) = reached_from.remove(&at).expect("the search reached each request from another one");
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
