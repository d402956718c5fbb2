//! Waiting: how a request joins its queues, is parked where it is blocked, and ends its wait.
//!
//! A waiter is in the queue of every name it needs, so that later requests see it there, but it is parked at one place
//! only: a name where it is blocked, or a freeze. What frees that place looks at it again; what frees any other does not.
//! So a hand-over costs what it grants plus what it parks elsewhere, and a long queue costs nothing.

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

/// A queued request: its record, and what follows from other records.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) record: WaiterRecord,
    /// Its stance on each name that it waits for, in name order. Names that its owner holds strongly enough already are left out.
    pub(crate) stances: Stances,
    pub(crate) parked: Parked,
    pub(crate) term: Term,
}

/// Names that a request needs, each with its stance there.
pub(crate) type Stances = SmallVec<[(Name, Stance); 1]>;

/// The one place where a waiter is looked at again when it is freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// Waiting for permits, where only the head of the queue is ever looked at, or about to be looked at.
    Nowhere,
    /// In the queue of a name.
    At(Name),
    /// At a freeze of one of its names.
    Freeze(FreezeId),
}

/// Where a request is blocked, at the first such name in name order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    Frozen(Name, Stance, FreezeId),
    At(Name, Stance),
}

/// Whose request or grant it is, as far as conflicts are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerId {
    Named(SessionId, OwnerName),
    /// A grant without a named owner is an owner of its own.
    Grant(GrantId),
    /// So is a request that has no grant yet.
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

/// What a request that must wait brings along.
pub(crate) struct NewWaiter {
    pub(crate) asker: Asker,
    pub(crate) owner: Option<OwnerName>,
    pub(crate) wants: Wants,
    pub(crate) wait: Wait,
    pub(crate) terms: Terms,
}

impl LockState {
    /// What the owner of a request or grant has on a name already.
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

    /// The stance of a request of this owner on each name that it needs and its owner does not hold yet.
    pub(crate) fn stances_for(&self, owner: &OwnerId, needs: &Footprint) -> Stances {
        let stance = |(name, need): &(Name, _)| match self.own_counts(owner, name).merged() {
            None => Some((name.clone(), Stance::Fresh(*need))),
            Some(held) if held.covers(*need) => None,
            Some(held) => Some((name.clone(), Stance::Converting(held.merge(*need)))),
        };
        needs.iter().filter_map(stance).collect()
    }

    /// The first name where a request cannot pass. `None` as its arrival is the newest of all.
    pub(crate) fn blocked(&self, owner: &OwnerId, stances: &Stances, arrival: Option<Arrival>) -> Option<Blocked> {
        planted::every_name(stances).iter().find_map(|(name, stance)| {
            // Rule: freeze
            if let Some(freeze) = self.freezes.over(name) {
                return Some(Blocked::Frozen(name.clone(), *stance, freeze));
            }
            let resource = self.resources.get(name)?;
            let own = self.own_counts(owner, name);
            resource.bars(*stance, arrival, own).then(|| Blocked::At(name.clone(), *stance))
        })
    }

    /// The grants and rests of other owners on a name that conflict with a stance there, oldest first.
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

    /// The bounds on waiting.
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

    /// Lets a request wait, unless that would close a cycle of owners that wait for each other.
    // Rule: wait
    pub(crate) fn enqueue(&mut self, new: NewWaiter) -> Outcome {
        self.last_arrival += 1;
        let arrival = Arrival(self.last_arrival);
        let NewWaiter { asker, owner, wants, wait, terms } = new;
        let until = match wait {
            Wait::No => panic!("a request that would not wait was queued"),
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
            // Nobody was looked at in between, so taking it out again leaves everything as it was.
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
        let session = self.sessions.get_mut(&record.session).expect("who waits has a session");
        let at = session.waits.partition_point(|(number, _)| *number < record.number);
        session.waits.insert(at, (record.number, arrival));
        session.locks += record.wants.lock_count();
        if let Some(owner) = &record.owner {
            let owner = session.owners.entry(owner.clone()).or_default();
            assert!(owner.waits.is_none(), "an owner waits for two requests");
            owner.waits = Some(arrival);
        }
        if let Wants::Conversion { grant, .. } = &record.wants {
            let grant = self.grants.get_mut(grant).expect("who converts holds the grant");
            grant.converting = Some(arrival);
        }
        let mut waiter = Waiter { record, stances: Stances::new(), parked: Parked::Nowhere, term: Term::default() };
        waiter.digest(&mut self.digest);
        self.waiters.insert(arrival, Box::new(waiter));
        self.join_queues(arrival);
    }

    /// Takes a waiter out of the state, with nothing said. The names that it barred are looked at later.
    pub(crate) fn remove_waiter(&mut self, arrival: Arrival) -> WaiterRecord {
        self.leave_queues(arrival);
        let waiter = self.waiters.remove(&arrival).expect("a wait ends once");
        let record = waiter.record;
        self.digest.take(waiter.term);
        if let Some(until) = record.until {
            self.deadlines.remove(until, Due::Wait(arrival));
        }
        let session = self.sessions.get_mut(&record.session).expect("who waits has a session");
        let at = session.waits.binary_search_by_key(&record.number, |(number, _)| *number);
        session.waits.remove(at.expect("who waits is known to its session"));
        session.locks -= record.wants.lock_count();
        if let Some(owner) = &record.owner {
            session.owners.get_mut(owner).expect("who waits is known").waits = None;
            session.forget_owner_if_idle(owner);
        }
        if let Wants::Conversion { grant, .. } = &record.wants
            && let Some(grant) = self.grants.get_mut(grant)
        {
            grant.converting = None;
        }
        record
    }

    /// Ends a wait without a grant and tells its session.
    pub(crate) fn end_wait(&mut self, arrival: Arrival, outcome: Outcome) {
        let record = self.remove_waiter(arrival);
        self.effects.announce_not_granted(record.facts(), &outcome);
        self.answer_waiter(&record, outcome);
    }

    /// Answers a request whose wait ended: by a push now, and from memory if it is repeated.
    pub(crate) fn answer_waiter(&mut self, record: &WaiterRecord, outcome: Outcome) {
        self.remember(Asker { session: record.session, number: record.number }, outcome.clone());
        self.effects.tell_wait_ended(record, outcome);
    }

    /// Puts a waiter into its queues, and parks it where it is blocked.
    fn join_queues(&mut self, arrival: Arrival) {
        let waiter = &self.waiters[&arrival];
        if let Wants::Permits { name, permits } = &waiter.record.wants {
            let (name, permits) = (name.clone(), *permits);
            let semaphore = self.semaphores.get_mut(&name).expect("who waits for permits keeps the semaphore in use");
            semaphore.queue.insert(arrival, permits);
            return;
        }
        let owner = waiter.record.owner_id();
        let stances = self.stances_for(&owner, &self.needs_of(&waiter.record.wants));
        for (name, stance) in &stances {
            self.resources.get_or_insert(name).queue_mut().join(arrival, *stance);
        }
        let blocked = self.blocked(&owner, &stances, Some(arrival));
        self.waiters.get_mut(&arrival).expect("it is there").stances = stances;
        self.park(arrival, blocked);
    }

    /// Takes a waiter out of its queues; what it barred there is looked at later.
    fn leave_queues(&mut self, arrival: Arrival) {
        self.unpark(arrival);
        let waiter = self.waiters.get_mut(&arrival).expect("who leaves a queue waits");
        let stances = std::mem::take(&mut waiter.stances);
        if let Wants::Permits { name, .. } = &waiter.record.wants {
            let name = name.clone();
            let semaphore = self.semaphores.get_mut(&name).expect("who waits for permits keeps the semaphore in use");
            semaphore.queue.remove(&arrival);
            self.freed.push(Freed::Semaphore(name));
            return;
        }
        for (name, stance) in stances {
            self.resources.get_mut(&name).expect("a queued waiter keeps the name in use").leave(arrival, stance);
            self.freed.push(Freed::Name(name));
        }
    }

    /// Computes the stances of a waiter again, after its owner has let go of something.
    pub(crate) fn rejoin_queues(&mut self, arrival: Arrival) {
        let waiter = &self.waiters[&arrival];
        let needs = self.needs_of(&waiter.record.wants);
        if waiter.stances != self.stances_for(&waiter.record.owner_id(), &needs) {
            self.leave_queues(arrival);
            self.join_queues(arrival);
            self.loosened.push(arrival);
        }
    }

    /// Parks a waiter where it is blocked. If it is blocked nowhere it is looked at before the operation ends.
    pub(crate) fn park(&mut self, arrival: Arrival, blocked: Option<Blocked>) {
        let waiter = self.waiters.get_mut(&arrival).expect("who is parked waits");
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
                let resource = self.resources.get_mut(&name).expect("where somebody is blocked is in use");
                resource.queue_mut().park(arrival, stance);
                Parked::At(name)
            }
        };
    }

    pub(crate) fn unpark(&mut self, arrival: Arrival) {
        let waiter = self.waiters.get_mut(&arrival).expect("who is parked waits");
        match std::mem::replace(&mut waiter.parked, Parked::Nowhere) {
            Parked::Nowhere => {}
            Parked::Freeze(freeze) => self.freezes.unpark(freeze, arrival),
            Parked::At(name) => {
                let (_, stance) =
                    waiter.stances.iter().find(|(other, _)| *other == name).expect("it has a stance there");
                let resource = self.resources.get_mut(&name).expect("where somebody is parked is in use");
                resource.queue_mut().unpark(arrival, *stance);
            }
        }
    }

    /// What a request needs name by name.
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

/// Something that changed so that somebody may pass now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freed {
    Name(Name),
    Semaphore(Name),
    Waiter(Arrival),
}

impl Wants {
    /// How many resources a session holds more once this is granted.
    pub(crate) fn lock_count(&self) -> usize {
        match self {
            Wants::Locks(locks) => locks.len(),
            Wants::Conversion { .. } => 0,
            Wants::Permits { .. } => 1,
        }
    }
}

impl Terms {
    /// Kept only if they are not the default.
    pub(crate) fn boxed(self) -> Option<Box<Terms>> {
        (self != Terms::default()).then(|| Box::new(self))
    }
}
