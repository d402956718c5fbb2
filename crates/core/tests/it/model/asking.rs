//! How the model grants: what a request needs on each name, when it passes, and who comes next.
//!
//! Also acquiring, taking permits and converting, which all end in `grant_or_wait`. How things end is in `ending.rs`.

use fencepost_core::*;

use super::Model;
use super::jobs::job_of;

/// What a request needs on a name that its owner does not already hold in a sufficient mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// The owner holds nothing there.
    Fresh(Mode),
    /// The owner holds a weaker mode there and would then hold this one.
    Converting(Mode),
}

/// Whether `name` is an ancestor of `below`.
pub fn is_ancestor(name: &Name, below: &Name) -> bool {
    name.is_path() && below.as_str().strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// The mode that locks take on a name: that of a lock on the name itself, merged with the intentions of locks below it.
// Rule: hierarchy
pub fn mode_at(locks: &[Lock], name: &Name) -> Option<Mode> {
    let mut merged: Option<Mode> = None;
    for lock in locks {
        let mode = if lock.name == *name {
            lock.mode.mode()
        } else if is_ancestor(name, &lock.name) {
            lock.mode.intention()
        } else {
            continue;
        };
        merged = Some(merged.map_or(mode, |other| other.merge(mode)));
    }
    merged
}

/// The mode that a grant, a rest or a request takes on a name.
pub fn held_mode_at(held: &Held, name: &Name) -> Option<Mode> {
    match held {
        Held::Locks(locks) => mode_at(locks, name),
        Held::Permits { .. } => None,
    }
}

/// The permits that a grant, a rest or a request takes of a semaphore.
pub fn permits_at(held: &Held, semaphore: &Name) -> Option<Permits> {
    match held {
        Held::Permits { name, permits } if name == semaphore => Some(*permits),
        _ => None,
    }
}

/// Every name that locks touch, ancestors included, in name order.
pub fn footprint_names(locks: &[Lock]) -> Vec<Name> {
    let mut names = Vec::new();
    for lock in locks {
        names.extend(lock.name.ancestors());
        names.push(lock.name.clone());
    }
    names.sort();
    names.dedup();
    names
}

pub fn names_of(held: &Held) -> Names {
    held.names().cloned().collect()
}

pub fn boxed_unless_default(terms: &Terms) -> Option<Box<Terms>> {
    (*terms != Terms::default()).then(|| Box::new(terms.clone()))
}

impl Model {
    pub fn facts(waiter: &WaiterRecord) -> RequestFacts {
        RequestFacts {
            session: waiter.session,
            number: waiter.number,
            owner: waiter.owner.clone(),
            wants: waiter.wants.held(),
            converts: match waiter.wants {
                Wants::Conversion { grant, .. } => Some(grant),
                _ => None,
            },
        }
    }

    /// Whether the grant and the request have the same owner.
    pub fn is_own(&self, waiter: &WaiterRecord, grant: &GrantRecord) -> bool {
        match (&waiter.owner, &waiter.wants) {
            (Some(_), _) => grant.session == waiter.session && grant.owner == waiter.owner,
            (None, Wants::Conversion { grant: id, .. }) => grant.id == *id,
            (None, _) => false,
        }
    }

    /// The waiting request of a grant's owner, if there is one.
    pub fn waiting_request_of_owner(&self, grant: &GrantRecord) -> Option<&WaiterRecord> {
        self.waiters.iter().find(|waiter| self.is_own(waiter, grant))
    }

    /// What the request needs, name by name. Names that its owner holds in a sufficient mode are left out.
    pub fn stances(&self, waiter: &WaiterRecord) -> Vec<(Name, Stance)> {
        let Held::Locks(locks) = waiter.wants.held() else {
            return Vec::new();
        };
        let mut stances = Vec::new();
        for name in footprint_names(&locks) {
            stances.extend(self.stance_at(waiter, &locks, &name).map(|stance| (name, stance)));
        }
        stances
    }

    fn stance_at(&self, waiter: &WaiterRecord, locks: &[Lock], name: &Name) -> Option<Stance> {
        let need = mode_at(locks, name)?;
        let own = self.grants.iter().filter(|grant| self.is_own(waiter, grant));
        match own.filter_map(|grant| held_mode_at(&grant.held, name)).reduce(Mode::merge) {
            None => Some(Stance::Fresh(need)),
            Some(holds) if holds.covers(need) => None,
            Some(holds) => Some(Stance::Converting(holds.merge(need))),
        }
    }

    fn stance_of_waiter_at(&self, waiter: &WaiterRecord, name: &Name) -> Option<Stance> {
        match waiter.wants.held() {
            Held::Locks(locks) => self.stance_at(waiter, &locks, name),
            Held::Permits { .. } => None,
        }
    }

    pub fn is_frozen(&self, name: &Name) -> bool {
        self.freezes.iter().any(|freeze| match &freeze.scope {
            Scope::Name(frozen) => frozen == name,
            Scope::Prefix(prefix) => name.as_str().as_bytes().starts_with(prefix),
        })
    }

    /// The grants of other owners that conflict with this request here.
    pub fn grants_in_the_way(&self, waiter: &WaiterRecord, name: &Name, stance: Stance) -> Vec<&GrantRecord> {
        let (Stance::Fresh(wanted) | Stance::Converting(wanted)) = stance;
        let others = self.grants.iter().filter(|grant| !self.is_own(waiter, grant));
        others.filter(|grant| held_mode_at(&grant.held, name).is_some_and(|mode| !mode.compatible(wanted))).collect()
    }

    fn rests_in_the_way(&self, name: &Name, stance: Stance) -> Vec<&RestRecord> {
        let (Stance::Fresh(wanted) | Stance::Converting(wanted)) = stance;
        let conflicts =
            |rest: &&RestRecord| held_mode_at(&rest.held, name).is_some_and(|mode| !mode.compatible(wanted));
        self.rests.iter().filter(conflicts).collect()
    }

    /// The requests that go ahead of this one on this name.
    // Rule: fifo, conversion
    pub fn waiters_in_the_way(&self, waiter: &WaiterRecord, name: &Name, stance: Stance) -> Vec<&WaiterRecord> {
        let in_the_way = |other: &&WaiterRecord| {
            let earlier = other.arrival < waiter.arrival;
            match (stance, self.stance_of_waiter_at(other, name)) {
                (_, None) => false,
                (Stance::Fresh(wanted), Some(Stance::Fresh(theirs))) => earlier && !wanted.compatible(theirs),
                (Stance::Fresh(wanted), Some(Stance::Converting(target))) => !wanted.compatible(target),
                (Stance::Converting(_), Some(Stance::Fresh(_))) => false,
                (Stance::Converting(wanted), Some(Stance::Converting(_))) => earlier && !wanted.compatible(Mode::U),
            }
        };
        self.waiters.iter().filter(|other| other.arrival != waiter.arrival).filter(in_the_way).collect()
    }

    fn passes_at(&self, waiter: &WaiterRecord, name: &Name, stance: Stance) -> bool {
        !self.is_frozen(name)
            && self.grants_in_the_way(waiter, name, stance).is_empty()
            && self.rests_in_the_way(name, stance).is_empty()
            && self.waiters_in_the_way(waiter, name, stance).is_empty()
    }

    fn permits_out(&self, semaphore: &Name) -> u64 {
        let held = self.grants.iter().map(|grant| &grant.held).chain(self.rests.iter().map(|rest| &rest.held));
        held.filter_map(|held| permits_at(held, semaphore)).map(|permits| u64::from(permits.get())).sum()
    }

    fn has_room(&self, semaphore: &Name, permits: Permits) -> bool {
        let limit = self.live_limit(semaphore).expect("a requested semaphore has a limit");
        self.permits_out(semaphore) + u64::from(permits.get()) <= u64::from(limit.get())
    }

    pub fn live_limit(&self, semaphore: &Name) -> Option<Permits> {
        self.semaphores.iter().find(|record| record.name == *semaphore).map(|record| record.limit)
    }

    /// Whether a request, waiting or new, can be granted now.
    pub fn passes(&self, waiter: &WaiterRecord) -> bool {
        match &waiter.wants {
            Wants::Permits { name, permits } => {
                let head = !self
                    .waiters
                    .iter()
                    .any(|other| other.arrival < waiter.arrival && permits_at(&other.wants.held(), name).is_some());
                head && !self.is_frozen(name) && self.has_room(name, *permits)
            }
            _ => self.stances(waiter).iter().all(|(name, stance)| self.passes_at(waiter, name, *stance)),
        }
    }

    /// The waiter that must be granted next.
    pub fn next_successor(&self) -> Option<&WaiterRecord> {
        self.waiters.iter().filter(|waiter| self.passes(waiter)).min_by_key(|waiter| waiter.arrival)
    }

    // Rule: single-successor, no-missed-wake-up
    pub fn grant_successors(&mut self) {
        self.end_cycles_closed_by_an_end();
        while let Some(waiter) = self.next_successor().cloned() {
            if let Some(refusal) = self.no_room_for_job_of(&waiter) {
                self.end_wait(waiter.arrival, Outcome::Refused(refusal));
                continue;
            }
            self.waiters.retain(|other| other.arrival != waiter.arrival);
            let outcome = self.grant_now(&waiter);
            let now = self.now();
            self.effects.waited_ms.push(now.0 - waiter.queued_at.0);
            self.record_answer(waiter.session, waiter.number, now, outcome.clone());
            self.push(Push::Ended { session: waiter.session, number: waiter.number, outcome });
        }
        // Rule: free-names
        let mut semaphores = std::mem::take(&mut self.semaphores);
        semaphores.retain(|semaphore| semaphore.administered || self.in_use_as_semaphore(&semaphore.name));
        self.semaphores = semaphores;
    }

    fn all_held(&self) -> impl Iterator<Item = Held> {
        let grants = self.grants.iter().map(|grant| grant.held.clone());
        let rests = self.rests.iter().map(|rest| rest.held.clone());
        grants.chain(rests).chain(self.waiters.iter().map(|waiter| waiter.wants.held()))
    }

    fn in_use_as_semaphore(&self, name: &Name) -> bool {
        self.all_held().any(|held| permits_at(&held, name).is_some())
    }

    pub fn in_use_as_lock(&self, name: &Name) -> bool {
        self.all_held().any(|held| held_mode_at(&held, name).is_some())
    }

    /// Grants a request that passes, waiting or new.
    // Rule: token-order
    fn grant_now(&mut self, waiter: &WaiterRecord) -> Outcome {
        self.header.last_token += 1;
        let (id, token) = (GrantId(self.header.last_token), Token(self.header.last_token));
        if let Wants::Conversion { grant, name, mode } = &waiter.wants {
            return self.set_mode(*grant, name, *mode, Some(token));
        }
        let max_hold = waiter.terms.as_ref().and_then(|terms| terms.max_hold);
        self.add_grant(GrantRecord {
            id,
            token,
            session: waiter.session,
            owner: waiter.owner.clone(),
            held: waiter.wants.held(),
            count: 1,
            granted_at: self.now(),
            hold_until: max_hold.map(|max_hold| self.now().after(max_hold)),
            terms: waiter.terms.clone(),
        });
        self.event(Event::Granted { request: Model::facts(waiter), grant: id, token, count: 1 });
        Outcome::Granted { grant: id, token, count: 1 }
    }

    fn set_mode(&mut self, id: GrantId, name: &Name, mode: LockMode, token: Option<Token>) -> Outcome {
        let grant = self.grant_mut(id).expect("a conversion ends with its grant");
        let Held::Locks(locks) = &mut grant.held else { unreachable!("permits have no mode") };
        locks.iter_mut().find(|lock| lock.name == *name).expect("checked when the conversion was requested").mode =
            mode;
        grant.token = token.unwrap_or(grant.token);
        let GrantRecord { token, session, owner, held, .. } = grant.clone();
        self.event(Event::Converted { grant: id, token, session, owner, held });
        Outcome::Converted { grant: id, token }
    }

    fn candidate(
        &self,
        request: &Request,
        owner: Option<OwnerName>,
        wants: Wants,
        wait: Wait,
        terms: &Terms,
    ) -> WaiterRecord {
        WaiterRecord {
            arrival: Arrival(self.header.last_arrival + 1),
            session: request.session,
            number: request.number,
            owner,
            wants,
            queued_at: self.now(),
            until: match wait {
                Wait::UpTo(duration) => Some(self.now().after(duration)),
                Wait::No | Wait::Forever => None,
            },
            terms: boxed_unless_default(terms),
            unchecked: false,
        }
    }

    fn announce_refusal(&mut self, request: RequestFacts, outcome: Outcome) -> Outcome {
        if matches!(outcome, Outcome::Refused(_) | Outcome::Deadlock(_)) {
            self.event(Event::NotGranted { request, outcome: outcome.clone() });
        }
        outcome
    }

    /// Grants a request that passes. Otherwise it waits, or is answered busy or refused.
    // Rule: wait
    fn grant_or_wait(&mut self, waiter: WaiterRecord, wait: Wait, search: bool) -> Outcome {
        if self.passes(&waiter) {
            return self.grant_now(&waiter);
        }
        if matches!(wait, Wait::No | Wait::UpTo(Millis::ZERO)) {
            return Outcome::Busy(Box::new(self.busy(&waiter)));
        }
        if self.waiters.iter().filter(|other| other.session == waiter.session).count()
            >= bounds::WAITERS_PER_SESSION_MAX
        {
            return Outcome::Refused(Refusal::Bound(Bound::WaitersPerSession));
        }
        if self.a_queue_is_full(&waiter) {
            return Outcome::Refused(Refusal::Bound(Bound::WaitersPerResource));
        }
        self.header.last_arrival += 1;
        self.waiters.push(waiter.clone());
        if search && self.closes_a_cycle(&waiter) {
            let scene = self.scene(&waiter);
            self.deadlocks.push(scene);
            self.waiters.pop();
            return Outcome::Deadlock(Box::new(Cycle { links: Vec::new() }));
        }
        self.event(Event::Queued { request: Model::facts(&waiter), arrival: waiter.arrival });
        self.tell_contended(&waiter);
        Outcome::Queued { arrival: waiter.arrival, unchecked: false }
    }

    fn a_queue_is_full(&self, waiter: &WaiterRecord) -> bool {
        if self.waiters.len() < bounds::WAITERS_PER_RESOURCE_MAX {
            return false; // No queue can be longer than all waiters together.
        }
        let mut names: Vec<Name> = self.stances(waiter).into_iter().map(|(name, _)| name).collect();
        if let Wants::Permits { name, .. } = &waiter.wants {
            names.push(name.clone());
        }
        names.iter().any(|name| {
            let waits_there = |other: &&WaiterRecord| {
                permits_at(&other.wants.held(), name).is_some() || self.stance_of_waiter_at(other, name).is_some()
            };
            self.waiters.iter().filter(waits_there).count() >= bounds::WAITERS_PER_RESOURCE_MAX
        })
    }

    // Rule: contended
    fn tell_contended(&mut self, waiter: &WaiterRecord) {
        let mut listening: Vec<GrantRecord> = (self.grants.iter())
            .filter(|grant| grant.terms.as_ref().is_some_and(|terms| terms.hear_contended))
            .cloned()
            .collect();
        listening.sort_by_key(|grant| grant.id);
        let stances = self.stances(waiter);
        for grant in listening {
            let conflicts = match &waiter.wants {
                Wants::Permits { name, .. } => permits_at(&grant.held, name).is_some(),
                _ => stances.iter().any(|(name, stance)| {
                    self.grants_in_the_way(waiter, name, *stance).iter().any(|other| other.id == grant.id)
                }),
            };
            if conflicts {
                self.push(Push::Contended { session: grant.session, grant: grant.id });
                self.event(Event::Contended { grant: grant.id, names: names_of(&grant.held) });
            }
        }
    }

    fn busy(&self, waiter: &WaiterRecord) -> Busy {
        let (name, why, mut holders) = match &waiter.wants {
            Wants::Permits { name, permits } => {
                let grants: Vec<_> = (self.grants.iter()).filter(|g| permits_at(&g.held, name).is_some()).collect();
                let rests: Vec<_> = (self.rests.iter()).filter(|r| permits_at(&r.held, name).is_some()).collect();
                let why = if self.is_frozen(name) {
                    BusyWhy::Frozen
                } else if self.has_room(name, *permits) {
                    BusyWhy::Queued
                } else if grants.is_empty() {
                    BusyWhy::Resting
                } else {
                    BusyWhy::Held
                };
                (name.clone(), why, holders_at(name, &grants, &rests))
            }
            _ => {
                let stances = self.stances(waiter);
                let blocked = stances.into_iter().find(|(name, stance)| !self.passes_at(waiter, name, *stance));
                let (name, stance) = blocked.expect("a busy request is blocked somewhere");
                let grants = self.grants_in_the_way(waiter, &name, stance);
                let rests = self.rests_in_the_way(&name, stance);
                let why = if self.is_frozen(&name) {
                    BusyWhy::Frozen
                } else if !grants.is_empty() {
                    BusyWhy::Held
                } else if !rests.is_empty() {
                    BusyWhy::Resting
                } else {
                    BusyWhy::Queued
                };
                let holders = holders_at(&name, &grants, &rests);
                (name, why, holders)
            }
        };
        let holder_count = holders.len() as u32;
        holders.truncate(bounds::BUSY_HOLDERS_SHOWN_MAX);
        Busy { name, why, holders, holder_count }
    }

    pub fn acquire(&mut self, request: &Request, acquire: &Acquire) -> Outcome {
        let wants = Wants::Locks(acquire.locks.clone());
        let candidate = self.candidate(request, acquire.owner.clone(), wants, acquire.wait, &acquire.terms);
        let outcome = self.acquire_checked(&candidate, acquire);
        self.announce_refusal(Model::facts(&candidate), outcome)
    }

    fn acquire_checked(&mut self, candidate: &WaiterRecord, acquire: &Acquire) -> Outcome {
        let locks = &acquire.locks;
        if locks.is_empty() || locks.len() > bounds::MULTI_LOCK_MAX {
            return Outcome::Refused(Refusal::Bound(Bound::MultiLock));
        }
        let mut names: Vec<&Name> = locks.iter().map(|lock| &lock.name).collect();
        names.sort();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Outcome::Refused(Refusal::NamedTwice(twice[0].clone()));
        }
        let footprint = footprint_names(locks);
        if footprint.len() > bounds::FOOTPRINT_NAMES_MAX {
            return Outcome::Refused(Refusal::Bound(Bound::FootprintNames));
        }
        if let Some(name) = footprint.iter().find(|name| self.live_limit(name).is_some()) {
            return Outcome::Refused(Refusal::IsSemaphore(name.clone()));
        }
        if acquire.terms.value.is_some() && (locks.len() != 1 || locks[0].mode != LockMode::Exclusive) {
            return Outcome::Refused(Refusal::NotAnElection);
        }
        if let Some(outcome) = self.answer_for_job(candidate, acquire) {
            return outcome;
        }
        if acquire.owner.is_some() {
            let same_owner = |w: &&WaiterRecord| w.session == candidate.session && w.owner == candidate.owner;
            if self.waiters.iter().any(|waiter| same_owner(&waiter)) {
                return Outcome::Refused(Refusal::OwnerWaits);
            }
            if let Some(outcome) = self.acquire_what_is_held(candidate, locks) {
                return outcome;
            }
        }
        if self.locks_of_session(candidate.session) + locks.len() > bounds::LOCKS_PER_SESSION_MAX {
            return Outcome::Refused(Refusal::Bound(Bound::LocksPerSession));
        }
        let holds_something = self.grants.iter().any(|grant| self.is_own(candidate, grant));
        self.grant_or_wait(candidate.clone(), acquire.wait, holds_something)
    }

    /// The owner's grant on exactly this name, with its mode.
    fn own_asked(&self, candidate: &WaiterRecord, name: &Name) -> Option<(GrantId, LockMode)> {
        let own = self.grants.iter().filter(|grant| self.is_own(candidate, grant));
        own.filter_map(|grant| match &grant.held {
            Held::Locks(locks) => locks.iter().find(|lock| lock.name == *name).map(|lock| (grant.id, lock.mode)),
            Held::Permits { .. } => None,
        })
        .next()
    }

    /// The owner's grant on the nearest ancestor whose mode covers this lock.
    fn own_covering(&self, candidate: &WaiterRecord, lock: &Lock) -> Option<GrantId> {
        let asked = lock.name.ancestors().rev().filter_map(|above| self.own_asked(candidate, &above));
        asked.filter(|(_, mode)| *mode >= lock.mode).map(|(grant, _)| grant).next()
    }

    // Rule: re-entry
    fn acquire_what_is_held(&mut self, candidate: &WaiterRecord, locks: &Locks) -> Option<Outcome> {
        if let [lock] = locks.as_slice() {
            return match self.own_asked(candidate, &lock.name) {
                Some((grant, mode)) if mode >= lock.mode => Some(self.enter_again(candidate, grant)),
                Some((grant, _)) => Some(Outcome::Refused(Refusal::UseUpgrade { name: lock.name.clone(), grant })),
                None => self.own_covering(candidate, lock).map(|grant| self.enter_again(candidate, grant)),
            };
        }
        let mut sorted: Vec<&Lock> = locks.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        for lock in sorted {
            let asked = self.own_asked(candidate, &lock.name).map(|(grant, _)| grant);
            if let Some(grant) = asked.or_else(|| self.own_covering(candidate, lock)) {
                return Some(Outcome::Refused(Refusal::AlreadyHeld { name: lock.name.clone(), grant }));
            }
        }
        None
    }

    fn enter_again(&mut self, candidate: &WaiterRecord, id: GrantId) -> Outcome {
        let grant = self.grant_mut(id).expect("just found");
        if grant.count >= bounds::REENTRIES_MAX {
            return Outcome::Refused(Refusal::Bound(Bound::Reentries));
        }
        grant.count += 1;
        let (token, count) = (grant.token, grant.count);
        self.event(Event::Granted { request: Model::facts(candidate), grant: id, token, count });
        Outcome::Granted { grant: id, token, count }
    }

    fn locks_of_session(&self, session: SessionId) -> usize {
        let grants = self.grants.iter().filter(|grant| grant.session == session);
        let held: usize = grants.map(|grant| grant.held.names().count()).sum();
        let waiters = self.waiters.iter().filter(|waiter| waiter.session == session);
        let acquiring = waiters.filter(|waiter| !matches!(waiter.wants, Wants::Conversion { .. }));
        held + acquiring.map(|waiter| waiter.wants.held().names().count()).sum::<usize>()
    }

    // Rule: semaphore
    pub fn take_permits(&mut self, request: &Request, take: &TakePermits) -> Outcome {
        let wants = Wants::Permits { name: take.name.clone(), permits: take.permits };
        let candidate = self.candidate(request, None, wants, take.wait, &take.terms);
        let outcome = self.take_permits_checked(&candidate, take);
        self.announce_refusal(Model::facts(&candidate), outcome)
    }

    fn take_permits_checked(&mut self, candidate: &WaiterRecord, take: &TakePermits) -> Outcome {
        let name = take.name.clone();
        if name.is_path() {
            return Outcome::Refused(Refusal::PathSemaphore(name));
        }
        if self.in_use_as_lock(&name) {
            return Outcome::Refused(Refusal::IsLock(name));
        }
        if take.terms.value.is_some() {
            return Outcome::Refused(Refusal::NotALock);
        }
        if take.terms.job.is_some() {
            return Outcome::Refused(Refusal::KeyNeedsExclusive);
        }
        let limit = match (self.live_limit(&name), take.limit) {
            (Some(live), Some(asked)) if live != asked => {
                return Outcome::Refused(Refusal::LimitDiffers { name, live });
            }
            (None, None) => return Outcome::Refused(Refusal::NoLimit(name)),
            (live, asked) => live.or(asked).expect("one of them is known"),
        };
        if take.permits > limit {
            return Outcome::Refused(Refusal::MoreThanLimit { name, limit });
        }
        if self.locks_of_session(candidate.session) + 1 > bounds::LOCKS_PER_SESSION_MAX {
            return Outcome::Refused(Refusal::Bound(Bound::LocksPerSession));
        }
        if self.live_limit(&name).is_none() {
            // If the request is not granted and does not wait, `grant_successors` removes it again.
            self.semaphores.push(SemaphoreRecord { name, limit, administered: false });
        }
        self.grant_or_wait(candidate.clone(), take.wait, false)
    }

    // Rule: conversion
    pub fn convert(&mut self, request: &Request, id: GrantId, name: &Name, mode: LockMode, wait: Wait) -> Outcome {
        let Some(grant) = self.grant_of(request.session, id).cloned() else {
            return self.why_not_held(request.session, id);
        };
        let Held::Locks(locks) = &grant.held else {
            return Outcome::Refused(Refusal::NotALock);
        };
        let Some(lock) = locks.iter().find(|lock| lock.name == *name) else {
            return Outcome::Refused(Refusal::NotInGrant(name.clone()));
        };
        // Rule: job-key
        if job_of(&grant).is_some() {
            return Outcome::Refused(Refusal::KeyedGrant);
        }
        if mode == lock.mode {
            return Outcome::Converted { grant: id, token: grant.token };
        }
        if mode < lock.mode {
            if grant.count > 1 {
                return Outcome::Refused(Refusal::CountAboveOne);
            }
            self.note_loosened(&grant);
            return self.set_mode(id, name, mode, None);
        }
        let wants = Wants::Conversion { grant: id, name: name.clone(), mode };
        let candidate = self.candidate(request, grant.owner.clone(), wants, wait, &Terms::default());
        let outcome = self.upgrade_checked(&candidate, &grant, lock, wait);
        self.announce_refusal(Model::facts(&candidate), outcome)
    }

    fn upgrade_checked(&mut self, candidate: &WaiterRecord, grant: &GrantRecord, lock: &Lock, wait: Wait) -> Outcome {
        if grant.count > 1 {
            return Outcome::Refused(Refusal::CountAboveOne);
        }
        if self.waiting_request_of_owner(grant).is_some() {
            return Outcome::Refused(Refusal::OwnerWaits);
        }
        if lock.mode == LockMode::Shared {
            let others = self.grants.iter().filter(|other| !self.is_own(candidate, other));
            let update_held = others.filter_map(|other| held_mode_at(&other.held, &lock.name)).any(|m| m == Mode::U);
            let converting = |waiter: &WaiterRecord| {
                matches!(self.stance_of_waiter_at(waiter, &lock.name), Some(Stance::Converting(_)))
            };
            if update_held || self.waiters.iter().any(converting) {
                return Outcome::Refused(Refusal::UpgradeConflict(lock.name.clone()));
            }
        }
        self.grant_or_wait(candidate.clone(), wait, true)
    }
}

fn holders_at(name: &Name, grants: &[&GrantRecord], rests: &[&RestRecord]) -> Vec<Holder> {
    let takes = |held: &Held| match held_mode_at(held, name) {
        Some(mode) => Takes::Mode(mode),
        None => Takes::Permits(permits_at(held, name).expect("a holder takes a mode or permits")),
    };
    let grants = grants.iter().map(|grant| Holder {
        grant: grant.id,
        takes: takes(&grant.held),
        token: grant.token,
        since: grant.granted_at,
        session: Some(grant.session),
        owner: grant.owner.clone(),
    });
    let rests = rests.iter().map(|rest| Holder {
        grant: rest.grant,
        takes: takes(&rest.held),
        token: rest.token,
        since: rest.since,
        session: None,
        owner: None,
    });
    let mut holders: Vec<Holder> = grants.chain(rests).collect();
    holders.sort_by_key(|holder| holder.grant);
    holders
}
