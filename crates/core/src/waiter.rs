//! Waiting: where a request is blocked, how it joins its queues, where it is parked, and how its wait ends.
//!
//! A waiter is in the queue of every name that it needs, so that later requests see it there. But it is *parked* at only one
//! place where it is blocked: a name, or a freeze. It is looked at again when that place is freed, and not before. So a
//! hand-over costs what it grants plus the waiters that it parks elsewhere, however long the queue is.

use smallvec::SmallVec;

use crate::bounds::{self, Bound};
use crate::command::{Terms, Wait};
use crate::deadlines::Due;
use crate::digest::{Digest, Term};
use crate::event::RequestFacts;
use crate::footprint::{Footprint, footprint};
use crate::once::Asker;
use crate::outcome::{Outcome, Refusal, Takes};
use crate::planted;
use crate::record::{WaiterRecord, Wants};
use crate::resource::{ModeCounts, Stance};
use crate::state::LockState;
use crate::words::{Arrival, FreezeId, GrantId, Name, OwnerName, SessionId};

/// A queued request: the record, and what is derived from other records.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) record: WaiterRecord,
    /// Its stance on each name that it waits for, in name order. A name that its owner already holds in a sufficient mode is
    /// left out.
    pub(crate) stances: Stances,
    pub(crate) parked: Parked,
    pub(crate) term: Term,
}

/// The names that a request waits for, each with its stance there.
pub(crate) type Stances = SmallVec<[(Name, Stance); 1]>;

/// The place where a waiter is parked: it is looked at again when this place is freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// Not parked: it waits for permits, where only the first of the queue is looked at, or it is about to be looked at.
    Nowhere,
    /// In the queue of a name.
    At(Name),
    /// At a freeze that covers one of its names.
    Freeze(FreezeId),
}

/// Where and why a request is blocked. If it is blocked at several names: the first of them, in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// A freeze covers this name.
    Frozen(Name, Stance, FreezeId),
    /// A holder of this name, or a waiter ahead of the request, blocks it.
    At(Name, Stance),
}

/// The owner of a request or grant. Requests and grants of one owner do not conflict with each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerId {
    Named(SessionId, OwnerName),
    /// A grant without an owner name is an owner of its own.
    Grant(GrantId),
    /// A request without an owner name and without a grant is an owner of its own.
    Request(Arrival),
}

impl Waiter {
    pub(crate) fn digest(&mut self, digest: &mut Digest) {
        digest.put(&mut self.term, &("waiter", &self.record));
    }
}

impl WaiterRecord {
    pub(crate) fn owner_id(&self) -> OwnerId {
        match (&self.owner, &self.wants) {
            (Some(owner), _) => OwnerId::Named(self.session, owner.clone()),
            (None, Wants::Conversion { grant, .. }) => OwnerId::Grant(*grant),
            (None, _) => OwnerId::Request(self.arrival),
        }
    }

    pub(crate) fn facts(&self) -> RequestFacts {
        let converts = match self.wants {
            Wants::Conversion { grant, .. } => Some(grant),
            _ => None,
        };
        RequestFacts {
            session: self.session,
            number: self.number,
            owner: self.owner.clone(),
            wants: self.wants.held(),
            converts,
        }
    }
}

/// A request that is about to wait.
pub(crate) struct NewWaiter {
    pub(crate) asker: Asker,
    pub(crate) owner: Option<OwnerName>,
    pub(crate) wants: Wants,
    pub(crate) wait: Wait,
    pub(crate) terms: Terms,
}

impl LockState {
    /// What an owner holds on a name.
    pub(crate) fn own_counts(&self, owner: &OwnerId, name: &Name) -> ModeCounts {
        match owner {
            OwnerId::Named(session, owner) => {
                let owner = self.sessions.get(session).and_then(|session| session.owners.get(owner));
                owner.and_then(|owner| owner.held.get(name)).map_or(ModeCounts::default(), |holding| holding.counts)
            }
            OwnerId::Grant(grant) => {
                let mode = self.resources.get(name).and_then(|resource| resource.holders.mode_of(*grant));
                mode.map_or(ModeCounts::default(), ModeCounts::one)
            }
            OwnerId::Request(_) => ModeCounts::default(),
        }
    }

    /// The stances of a request of this owner: one for each name that it needs and does not yet hold in a sufficient mode.
    pub(crate) fn stances_for(&self, owner: &OwnerId, needs: &Footprint) -> Stances {
        let stance = |(name, need): &(Name, _)| match self.own_counts(owner, name).merged() {
            None => Some((name.clone(), Stance::Fresh(*need))),
            Some(held) if held.covers(*need) => None,
            Some(held) => Some((name.clone(), Stance::Converting(held.merge(*need)))),
        };
        needs.iter().filter_map(stance).collect()
    }

    /// The first name where a request is blocked; `None` if it can pass everywhere. An arrival of `None` means a new request,
    /// later than all waiters.
    pub(crate) fn blocked(&self, owner: &OwnerId, stances: &Stances, arrival: Option<Arrival>) -> Option<Blocked> {
        planted::every_name(stances).iter().find_map(|(name, stance)| {
            // Rule: freeze
            if let Some(freeze) = self.freezes.over(name) {
                return Some(Blocked::Frozen(name.clone(), *stance, freeze));
            }
            let resource = self.resources.get(name)?;
            let own = self.own_counts(owner, name);
            resource.blocks(*stance, arrival, own).then(|| Blocked::At(name.clone(), *stance))
        })
    }

    /// The grants and rests of other owners on a name that conflict with a stance there, oldest grant first.
    pub(crate) fn conflicting_holders<'a>(
        &'a self,
        owner: &'a OwnerId,
        name: &Name,
        stance: Stance,
    ) -> impl Iterator<Item = (GrantId, Takes)> + 'a {
        let holders = self.resources.get(name).into_iter().flat_map(|resource| resource.holders.iter());
        holders
            .filter(move |(grant, mode)| {
                !mode.compatible(stance.mode()) && self.grants.get(grant).is_none_or(|it| it.owner_id() != *owner)
            })
            .map(|(grant, mode)| (grant, Takes::Mode(mode)))
    }

    /// Checks the bounds on waiting.
    pub(crate) fn may_wait(&self, session: SessionId, stances: &Stances) -> Result<(), Refusal> {
        if self.sessions[&session].waits.len() >= bounds::WAITERS_PER_SESSION_MAX {
            return Err(Refusal::Bound(Bound::WaitersPerSession));
        }
        let is_full = |name: &Name| {
            let queue = self.resources.get(name).and_then(|resource| resource.queue());
            queue.is_some_and(|queue| queue.len() >= bounds::WAITERS_PER_RESOURCE_MAX)
        };
        if stances.iter().any(|(name, _)| is_full(name)) {
            return Err(Refusal::Bound(Bound::WaitersPerResource));
        }
        Ok(())
    }

    /// Makes a request wait, unless that would close a cycle of owners that wait for each other.
    // Rule: wait
    pub(crate) fn enqueue(&mut self, new: NewWaiter) -> Outcome {
        self.last_arrival += 1;
        let arrival = Arrival(self.last_arrival);
        let NewWaiter { asker, owner, wants, wait, terms } = new;
        let until = match wait {
            Wait::No => panic!("a request with no wait was queued"),
            Wait::UpTo(limit) => Some(self.stamp.after(limit)),
            Wait::Forever => None,
        };
        self.insert_waiter(WaiterRecord {
            arrival,
            session: asker.session,
            number: asker.number,
            owner,
            wants,
            queued_at: self.stamp,
            until,
            terms: terms.boxed(),
            unchecked: false,
        });

        if self.may_close_cycle(arrival)
            && let Some(cycle) = self.closed_cycle(arrival)
        {
            // No successor was granted in between, so removing it again leaves everything as it was.
            self.remove_waiter(arrival);
            return Outcome::Deadlock(Box::new(cycle));
        }
        let record = &self.waiters[&arrival].record;
        let unchecked = record.unchecked;
        self.effects.announce_queued(record);
        self.tell_contended(arrival);
        Outcome::Queued { arrival, unchecked }
    }

    /// Puts a waiter into the state, new or from a snapshot.
    pub(crate) fn insert_waiter(&mut self, record: WaiterRecord) {
        let arrival = record.arrival;
        if let Some(until) = record.until {
            self.deadlines.insert(until, Due::Wait(arrival));
        }
        let session = self.sessions.get_mut(&record.session).expect("a waiter has a living session");
        let at = session.waits.partition_point(|(number, _)| *number < record.number);
        session.waits.insert(at, (record.number, arrival));
        session.locks += record.wants.lock_count();
        if let Some(owner) = &record.owner {
            let owner = session.owners.entry(owner.clone()).or_default();
            assert!(owner.waits.is_none(), "an owner waits for two requests");
            owner.waits = Some(arrival);
        }
        if let Wants::Conversion { grant, .. } = &record.wants {
            let grant = self.grants.get_mut(grant).expect("a conversion has a grant");
            grant.converting = Some(arrival);
        }
        if let Some((name, job)) = record.job() {
            self.jobs.join(name, &job.key, arrival);
        }
        let mut waiter = Waiter { record, stances: Stances::new(), parked: Parked::Nowhere, term: Term::default() };
        waiter.digest(&mut self.digest);
        self.waiters.insert(arrival, Box::new(waiter));
        self.join_queues(arrival);
    }

    /// Removes a waiter from the state without telling its session. Requests that it blocked are looked at later.
    pub(crate) fn remove_waiter(&mut self, arrival: Arrival) -> WaiterRecord {
        self.leave_queues(arrival);
        let waiter = self.waiters.remove(&arrival).expect("a wait ends once");
        let record = waiter.record;
        self.digest.take(waiter.term);
        if let Some(until) = record.until {
            self.deadlines.remove(until, Due::Wait(arrival));
        }
        let session = self.sessions.get_mut(&record.session).expect("a waiter has a living session");
        let at = session.waits.binary_search_by_key(&record.number, |(number, _)| *number);
        session.waits.remove(at.expect("a waiter is known to its session"));
        session.locks -= record.wants.lock_count();
        if let Some(owner) = &record.owner {
            session.owners.get_mut(owner).expect("an owner that waits is known").waits = None;
            session.forget_owner_if_idle(owner);
        }
        if let Wants::Conversion { grant, .. } = &record.wants
            && let Some(grant) = self.grants.get_mut(grant)
        {
            grant.converting = None;
        }
        if let Some((name, job)) = record.job() {
            self.jobs.leave(name, &job.key, arrival);
        }
        record
    }

    /// Ends a wait without a grant and tells its session.
    pub(crate) fn end_wait(&mut self, arrival: Arrival, outcome: Outcome) {
        let record = self.remove_waiter(arrival);
        self.effects.announce_not_granted(record.facts(), &outcome);
        self.answer_waiter(&record, outcome);
    }

    /// Answers a request whose wait ended: by a push now, and from memory if the client repeats the request.
    pub(crate) fn answer_waiter(&mut self, record: &WaiterRecord, outcome: Outcome) {
        self.remember(Asker { session: record.session, number: record.number }, outcome.clone());
        self.effects.tell_wait_ended(record, outcome);
    }

    /// Puts a waiter into the queues of its names, and parks it where it is blocked.
    fn join_queues(&mut self, arrival: Arrival) {
        let waiter = &self.waiters[&arrival];
        if let Wants::Permits { name, permits } = &waiter.record.wants {
            let (name, permits) = (name.clone(), *permits);
            let semaphore = self.semaphores.get_mut(&name).expect("a semaphore with a waiter is in use");
            semaphore.queue.insert(arrival, permits);
            return;
        }
        let owner = waiter.record.owner_id();
        let stances = self.stances_for(&owner, &self.needs_of(&waiter.record.wants));
        for (name, stance) in &stances {
            self.resources.get_or_insert(name).queue_mut().join(arrival, *stance);
        }
        let blocked = self.blocked(&owner, &stances, Some(arrival));
        self.waiters.get_mut(&arrival).expect("the waiter was found above").stances = stances;
        self.park(arrival, blocked);
    }

    /// Removes a waiter from its queues. Requests that it blocked there are looked at later.
    fn leave_queues(&mut self, arrival: Arrival) {
        self.unpark(arrival);
        let waiter = self.waiters.get_mut(&arrival).expect("a queued request waits");
        let stances = std::mem::take(&mut waiter.stances);
        if let Wants::Permits { name, .. } = &waiter.record.wants {
            let name = name.clone();
            let semaphore = self.semaphores.get_mut(&name).expect("a semaphore with a waiter is in use");
            semaphore.queue.remove(&arrival);
            self.freed.push(Freed::Semaphore(name));
            return;
        }
        for (name, stance) in stances {
            self.resources.get_mut(&name).expect("a name with a waiter is in use").leave(arrival, stance);
            self.freed.push(Freed::Name(name));
        }
    }

    /// Called when an owner holds more or less than before. That may change how its waiter waits for a name, its [`Stance`]. Then
    /// the waiter leaves its queues and joins them again.
    pub(crate) fn rejoin_queues(&mut self, arrival: Arrival) {
        let waiter = &self.waiters[&arrival];
        let needs = self.needs_of(&waiter.record.wants);
        if waiter.stances != self.stances_for(&waiter.record.owner_id(), &needs) {
            self.leave_queues(arrival);
            self.join_queues(arrival);
            self.loosened.push(arrival);
        }
    }

    /// Parks a waiter where it is blocked. A waiter that is not blocked is looked at before the operation ends.
    pub(crate) fn park(&mut self, arrival: Arrival, blocked: Option<Blocked>) {
        let waiter = self.waiters.get_mut(&arrival).expect("a parked request waits");
        waiter.parked = match blocked {
            None => {
                self.freed.push(Freed::Waiter(arrival));
                Parked::Nowhere
            }
            Some(Blocked::Frozen(_, _, freeze)) => {
                self.freezes.park(freeze, arrival);
                Parked::Freeze(freeze)
            }
            Some(Blocked::At(name, stance)) => {
                let resource = self.resources.get_mut(&name).expect("a name that blocks a request is in use");
                resource.queue_mut().park(arrival, stance);
                Parked::At(name)
            }
        };
    }

    pub(crate) fn unpark(&mut self, arrival: Arrival) {
        let waiter = self.waiters.get_mut(&arrival).expect("a parked request waits");
        match std::mem::replace(&mut waiter.parked, Parked::Nowhere) {
            Parked::Nowhere => {}
            Parked::Freeze(freeze) => self.freezes.unpark(freeze, arrival),
            Parked::At(name) => {
                let (_, stance) =
                    waiter.stances.iter().find(|(other, _)| *other == name).expect("it has a stance there");
                let resource = self.resources.get_mut(&name).expect("a name with a waiter is in use");
                resource.queue_mut().unpark(arrival, *stance);
            }
        }
    }

    /// The names that a request needs, each with its mode. Empty for permits.
    pub(crate) fn needs_of(&self, wants: &Wants) -> Footprint {
        match wants {
            Wants::Locks(locks) => footprint(locks),
            Wants::Conversion { grant, name, mode } => {
                let grant = &self.grants[grant];
                footprint(&grant.locks_with(name, *mode))
            }
            Wants::Permits { .. } => Footprint::new(),
        }
    }
}

/// Something that changed so that a waiter may be able to pass now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freed {
    /// A name: the waiters parked there are looked at.
    Name(Name),
    /// A semaphore: the first of its queue is looked at.
    Semaphore(Name),
    /// This waiter itself: it is no longer parked.
    Waiter(Arrival),
}

impl Wants {
    /// How much the request counts against [`bounds::LOCKS_PER_SESSION_MAX`]. A conversion adds no resource.
    pub(crate) fn lock_count(&self) -> usize {
        match self {
            Wants::Locks(locks) => locks.len(),
            Wants::Conversion { .. } => 0,
            Wants::Permits { .. } => 1,
        }
    }
}

impl Terms {
    /// `None` for the default terms, which need no allocation.
    pub(crate) fn boxed(self) -> Option<Box<Terms>> {
        (self != Terms::default()).then(|| Box::new(self))
    }
}
