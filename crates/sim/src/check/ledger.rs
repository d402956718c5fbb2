//! The ledger: the lock state as it follows from the entries and events of the log alone. Sessions, grants, rests and waiters.
//!
//! It is updated event by event, so that the checkers can look at it just before each event and after each entry. It judges nothing:
//! it follows an event that contradicts it as far as possible, and the checkers report the contradiction. How events change it is in
//! `follow.rs`, deadlines are in `due.rs`, and which waiter could be granted is in `looking.rs`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};

use fencepost_core::{
    ActFacts, Arrival, Epoch, FreezeId, GrantId, Held, Lock, LogicalMs, Millis, Mode, Name, OwnerName, Permits,
    RequestFacts, RequestNumber, Scope, SecretHash, SessionId, Terms, Token, ToldReason, Ttl,
};

use super::due::Due;
use super::looking::Blocked;
use super::place::{Modes, NameState, Stance, Stands, needs_of};

/// A hash map with a fixed hasher. Use it only for lookups: its order must not be visible.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// A living session, or one that ended in this entry and whose grants and waits have not ended yet.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lives: bool,
    pub(super) ttl: Ttl,
    pub(super) secret_hash: SecretHash,
    pub(super) renewed_at: LogicalMs,
    pub(super) epoch: Epoch,
    pub(super) grants: BTreeSet<GrantId>,
    pub(super) waits: BTreeMap<RequestNumber, Arrival>,
    pub(super) owners: BTreeMap<OwnerName, Owner>,
}

/// A named owner that holds something or waits.
#[derive(Debug, Default)]
pub(super) struct Owner {
    /// The modes of its grants, by name.
    pub(super) held: BTreeMap<Name, Modes>,
    pub(super) waits: Option<Arrival>,
}

/// The time limits of a grant, from its request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lasts {
    pub(super) ttl: Option<Ttl>,
    pub(super) max_hold: Option<Millis>,
    pub(super) lock_delay: Millis,
}

impl Lasts {
    pub(super) fn of(terms: &Terms) -> Lasts {
        Lasts { ttl: terms.ttl, max_hold: terms.max_hold, lock_delay: terms.lock_delay.millis() }
    }
}

/// A grant: held locks or permits.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) id: GrantId,
    pub(super) token: Token,
    pub(super) session: SessionId,
    pub(super) owner: Option<OwnerName>,
    pub(super) held: Held,
    /// The mode that it takes on each name, with intentions on ancestors; empty for permits.
    pub(super) needs: Vec<(Name, Mode)>,
    pub(super) count: u32,
    pub(super) granted_at: LogicalMs,
    pub(super) hold_until: Option<LogicalMs>,
    /// The index of the entry that granted or extended it last. Even if it is due at once, it does not end in that entry.
    pub(super) timed_at_index: u64,
    pub(super) lasts: Lasts,
    pub(super) converting: Option<Arrival>,
}

/// A rest: after an involuntary end a grant blocks others for its lock delay.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) held: Held,
    pub(super) needs: Vec<(Name, Mode)>,
    pub(super) began_at: LogicalMs,
    pub(super) until: LogicalMs,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) request: RequestFacts,
    pub(super) queued_at: LogicalMs,
    pub(super) until: Option<LogicalMs>,
    pub(super) lasts: Lasts,
    /// The deadlock search gave up on it.
    pub(super) unchecked: bool,
    pub(super) stands: Stands,
    /// What blocked it when it was last checked. Invariant: the waiter is parked there.
    pub(super) parked: Option<Blocked>,
}

/// A semaphore: a name of which permits are taken.
#[derive(Debug, Default)]
pub(super) struct Semaphore {
    /// `None` if it is unknown, because it was set before the backup that was restored.
    pub(super) limit: Option<Permits>,
    pub(super) administered: bool,
    pub(super) out: u64,
    pub(super) queue: BTreeMap<Arrival, Permits>,
}

impl Semaphore {
    pub(super) fn has_room(&self, permits: Permits) -> bool {
        self.limit.is_none_or(|limit| self.out + u64::from(permits.get()) <= u64::from(limit.get()))
    }
}

/// The owner of a request or a grant. What has the same owner does not conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose<'a> {
    Named(SessionId, &'a OwnerName),
    Grant(GrantId),
    /// A new request without a named owner: it owns no grant yet.
    Its,
}

impl<'a> Whose<'a> {
    pub(super) fn request(request: &'a RequestFacts) -> Whose<'a> {
        match (&request.owner, request.converts) {
            (Some(owner), _) => Whose::Named(request.session, owner),
            (None, Some(grant)) => Whose::Grant(grant),
            (None, None) => Whose::Its,
        }
    }

    pub(super) fn grant(grant: &'a Grant) -> Whose<'a> {
        match &grant.owner {
            Some(owner) => Whose::Named(grant.session, owner),
            None => Whose::Grant(grant.id),
        }
    }
}

/// The lock state according to the log.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) index: u64,
    pub(super) stamp: LogicalMs,
    pub(super) grace_at: Option<LogicalMs>,
    pub(super) last_arrival: u64,
    /// The last arrival number before this entry.
    pub(super) arrivals_before: u64,
    pub(super) sessions: Map<SessionId, Session>,
    pub(super) grants: Map<GrantId, Grant>,
    pub(super) rests: Map<GrantId, Rest>,
    pub(super) waiters: BTreeMap<Arrival, Waiter>,
    pub(super) semaphores: BTreeMap<Name, Semaphore>,
    pub(super) freezes: BTreeMap<FreezeId, Scope>,
    pub(super) name_states: Map<Name, NameState>,
    pub(super) parked_at_freeze: BTreeMap<FreezeId, BTreeSet<Arrival>>,
    /// Deadlines, earliest first. Invariant: everything with a deadline has an item here at or before that deadline. Items of things that
    /// are gone stay until their time.
    pub(super) due: BinaryHeap<Reverse<(LogicalMs, Due)>>,

    /// Names that changed since the last look, so that a waiter may have become grantable.
    pub(super) touched: BTreeSet<Name>,
    pub(super) touched_semaphores: BTreeSet<Name>,
    /// How often a waiter was checked.
    pub(super) looks: u64,
    /// Waiters that are not parked yet.
    pub(super) unparked: BTreeSet<Arrival>,
    /// Waiters that wait for more than at the last cycle search: new ones, and those whose owner released something. Used by I13.
    pub(super) further_back: Vec<Arrival>,
    /// Sessions that ended, and whose grants and waits were not checked yet. Used by I7.
    pub(super) dying: Vec<SessionId>,
    /// The last administrator's act in this entry, and what clients are told of its reason.
    pub(super) last_act: Option<(ActFacts, ToldReason)>,

    /// After a restore: rests from the backup, which no event reported, may exist until this stamp.
    pub(super) unknown_rests_until: Option<LogicalMs>,
    /// After a restore: freezes and limits from the backup, which no event reported, may exist.
    pub(super) is_restored: bool,
    pub(super) ever_froze: bool,
}

impl Ledger {
    /// The session, if it lives.
    pub(super) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id).filter(|session| session.lives)
    }

    pub(super) fn waiting(&self, session: SessionId, number: RequestNumber) -> Option<Arrival> {
        self.sessions.get(&session)?.waits.get(&number).copied()
    }

    /// Whether a waiter was queued before this entry.
    pub(super) fn waited_before(&self, arrival: Arrival) -> bool {
        arrival.0 <= self.arrivals_before
    }

    pub(super) fn name_state(&self, name: &Name) -> Option<&NameState> {
        self.name_states.get(name)
    }

    pub(super) fn name_state_mut(&mut self, name: &Name) -> &mut NameState {
        if !self.name_states.contains_key(name) {
            self.name_states.insert(name.clone(), NameState::default());
        }
        self.name_states.get_mut(name).expect("inserted above if it was missing")
    }

    // Rule: freeze
    pub(super) fn freeze_over(&self, name: &Name) -> Option<FreezeId> {
        self.freezes.iter().find(|(_, scope)| scope.covers(name)).map(|(freeze, _)| *freeze)
    }

    /// The modes that an owner already holds on a name.
    pub(super) fn own_modes(&self, whose: Whose<'_>, name: &Name) -> Modes {
        match whose {
            Whose::Named(session, owner) => {
                let owner = self.sessions.get(&session).and_then(|session| session.owners.get(owner));
                owner.and_then(|owner| owner.held.get(name)).copied().unwrap_or_default()
            }
            Whose::Grant(grant) => {
                let mut own = Modes::default();
                if self.grants.contains_key(&grant)
                    && let Some(mode) = self.name_states.get(name).and_then(|state| state.holders.get(&grant))
                {
                    own.add(*mode);
                }
                own
            }
            Whose::Its => Modes::default(),
        }
    }

    /// The modes that the request would hold on each name if it were granted; empty for permits.
    pub(super) fn needs_of_request(&self, request: &RequestFacts) -> Vec<(Name, Mode)> {
        let Held::Locks(wanted) = &request.wants else { return Vec::new() };
        let Some(grant) = request.converts.and_then(|grant| self.grants.get(&grant)) else { return needs_of(wanted) };
        let Held::Locks(held) = &grant.held else { return Vec::new() };
        let converted = |lock: &Lock| wanted.iter().find(|other| other.name == lock.name).unwrap_or(lock).clone();
        needs_of(&held.iter().map(converted).collect::<Vec<Lock>>())
    }

    /// The queues that a request would join now, with its stance in each.
    pub(super) fn stands_of(&self, request: &RequestFacts) -> Stands {
        let whose = Whose::request(request);
        let stance =
            |(name, need): (Name, Mode)| Stance::of(need, self.own_modes(whose, &name)).map(|stance| (name, stance));
        self.needs_of_request(request).into_iter().filter_map(stance).collect()
    }

    pub(super) fn touch(&mut self, name: &Name) {
        if !self.touched.contains(name) {
            self.touched.insert(name.clone());
        }
    }

    pub(super) fn touch_semaphore(&mut self, name: &Name) {
        self.touched_semaphores.insert(name.clone());
    }

    /// Puts a request into its queues.
    pub(super) fn add_waiter(
        &mut self,
        arrival: Arrival,
        request: RequestFacts,
        until: Option<LogicalMs>,
        lasts: Lasts,
        unchecked: bool,
    ) {
        if let Some(session) = self.sessions.get_mut(&request.session) {
            session.waits.insert(request.number, arrival);
            if let Some(owner) = &request.owner {
                session.owners.entry(owner.clone()).or_default().waits = Some(arrival);
            }
        }
        if let Some(grant) = request.converts.and_then(|grant| self.grants.get_mut(&grant)) {
            grant.converting = Some(arrival);
        }
        if let Some(until) = until {
            self.will_be_due(until, Due::Wait(arrival));
        }
        if let Held::Permits { name, permits } = &request.wants {
            self.semaphores.entry(name.clone()).or_default().queue.insert(arrival, *permits);
            self.touch_semaphore(name);
        }
        let (queued_at, stands) = (self.stamp, Stands::new());
        let waiter = Waiter { request, queued_at, until, lasts, unchecked, stands, parked: None };
        self.waiters.insert(arrival, waiter);
        self.stand(arrival);
    }

    fn stand(&mut self, arrival: Arrival) {
        let Some(waiter) = self.waiters.get(&arrival) else { return };
        let stands = self.stands_of(&waiter.request);
        for (name, stance) in &stands {
            self.name_state_mut(name).stand(arrival, *stance);
        }
        self.waiters.get_mut(&arrival).expect("it is there").stands = stands;
        self.unparked.insert(arrival);
        self.further_back.push(arrival);
    }

    fn leave(&mut self, arrival: Arrival) {
        self.unpark(arrival);
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        for (name, stance) in std::mem::take(&mut waiter.stands) {
            self.name_state_mut(&name).leave(arrival, stance);
            self.touch(&name);
        }
        self.unparked.remove(&arrival);
    }

    pub(super) fn remove_waiter(&mut self, arrival: Arrival) -> Option<Waiter> {
        self.leave(arrival);
        let waiter = self.waiters.remove(&arrival)?;
        let request = &waiter.request;
        if let Some(session) = self.sessions.get_mut(&request.session) {
            session.waits.remove(&request.number);
            if let Some(owner) = &request.owner {
                session.owners.entry(owner.clone()).or_default().waits = None;
                session.forget_idle(owner);
            }
        }
        if let Some(grant) = request.converts.and_then(|grant| self.grants.get_mut(&grant)) {
            grant.converting = None;
        }
        if let Held::Permits { name, .. } = &request.wants {
            if let Some(semaphore) = self.semaphores.get_mut(name) {
                semaphore.queue.remove(&arrival);
            }
            self.touch_semaphore(name);
        }
        Some(waiter)
    }

    /// The pending request of an owner.
    // Rule: deadlock
    pub(super) fn waits_of(&self, whose: Whose<'_>) -> Option<Arrival> {
        match whose {
            Whose::Named(session, owner) => self.sessions.get(&session)?.owners.get(owner)?.waits,
            Whose::Grant(grant) => self.grants.get(&grant)?.converting,
            Whose::Its => None,
        }
    }

    /// An owner's grants changed: its waiting request may need other queues or another stance.
    fn update_stands(&mut self, session: SessionId, owner: Option<&OwnerName>, grant: GrantId) {
        let whose = owner.map_or(Whose::Grant(grant), |owner| Whose::Named(session, owner));
        let Some(arrival) = self.waits_of(whose) else { return };
        let Some(waiter) = self.waiters.get(&arrival) else { return };
        if waiter.stands != self.stands_of(&waiter.request) {
            self.leave(arrival);
            self.stand(arrival);
        }
    }

    pub(super) fn add_grant(&mut self, grant: Grant) {
        let id = grant.id;
        if let Some(session) = self.sessions.get_mut(&grant.session) {
            session.grants.insert(id);
            if let Some(owner) = &grant.owner {
                session.hold(owner, &grant.needs);
            }
        }
        for (name, mode) in &grant.needs {
            self.name_state_mut(name).hold(id, *mode);
        }
        if let Held::Permits { name, permits } = &grant.held {
            self.semaphores.entry(name.clone()).or_default().out += u64::from(permits.get());
        }
        self.grants.insert(id, grant);
        if let Some(until) = self.deadline(Due::Grant(id)) {
            self.will_be_due(until, Due::Grant(id));
        }
    }

    /// Ends a grant. With `rests_until` it rests until then.
    pub(super) fn remove_grant(&mut self, id: GrantId, rests_until: Option<LogicalMs>) {
        let Some(grant) = self.grants.remove(&id) else { return };
        if let Some(session) = self.sessions.get_mut(&grant.session) {
            session.grants.remove(&id);
            if let Some(owner) = &grant.owner {
                session.let_go(owner, &grant.needs);
            }
        }
        match rests_until {
            None => self.vacate(id, &grant.held, &grant.needs),
            Some(until) => {
                let (held, needs, began_at) = (grant.held, grant.needs, self.stamp);
                self.rests.insert(id, Rest { held, needs, began_at, until });
                self.will_be_due(until, Due::Rest(id));
            }
        }
        self.update_stands(grant.session, grant.owner.as_ref(), id);
    }

    pub(super) fn remove_rest(&mut self, id: GrantId) {
        if let Some(rest) = self.rests.remove(&id) {
            self.vacate(id, &rest.held, &rest.needs);
        }
    }

    fn vacate(&mut self, id: GrantId, held: &Held, needs: &[(Name, Mode)]) {
        for (name, _) in needs {
            self.name_state_mut(name).let_go(id);
            self.touch(name);
        }
        if let Held::Permits { name, permits } = held {
            let semaphore = self.semaphores.entry(name.clone()).or_default();
            semaphore.out = semaphore.out.saturating_sub(u64::from(permits.get()));
            self.touch_semaphore(name);
            self.forget_unused(name);
        }
    }

    /// Forgets a semaphore that is not in use. Its limit came with a request, and lives only while the name is in use; a limit set by an
    /// administrator stays.
    pub(super) fn forget_unused(&mut self, name: &Name) {
        if self.semaphores.get(name).is_some_and(|it| !it.administered && it.out == 0 && it.queue.is_empty()) {
            self.semaphores.remove(name);
        }
    }

    pub(super) fn change_mode(&mut self, id: GrantId, token: Token, held: &Held) {
        let Held::Locks(locks) = held else { return };
        let needs = needs_of(locks);
        let Some(grant) = self.grants.get_mut(&id) else { return };
        grant.token = token;
        grant.held = held.clone();
        let before = std::mem::replace(&mut grant.needs, needs.clone());
        let (session, owner) = (grant.session, grant.owner.clone());
        if let Some(owner) = &owner
            && let Some(session) = self.sessions.get_mut(&session)
        {
            session.hold(owner, &needs);
            session.let_go(owner, &before);
        }
        for (name, mode) in &needs {
            self.name_state_mut(name).hold(id, *mode);
            self.touch(name);
        }
        self.update_stands(session, owner.as_ref(), id);
    }

    /// Forgets an ended session, and everything that should have ended with it.
    pub(super) fn forget_session(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        let (waits, grants): (Vec<Arrival>, Vec<GrantId>) =
            (session.waits.values().copied().collect(), session.grants.iter().copied().collect());
        for arrival in waits {
            self.remove_waiter(arrival);
        }
        for grant in grants {
            self.remove_grant(grant, None);
        }
        self.sessions.remove(&id);
    }

    /// The cluster was restored: a new log without sessions. Rests, freezes and limits from the backup exist, but no event reports them.
    pub(super) fn restored(&mut self) {
        *self = Ledger { is_restored: true, ever_froze: self.ever_froze, looks: self.looks, ..Ledger::default() };
    }
}

impl Session {
    fn hold(&mut self, owner: &OwnerName, needs: &[(Name, Mode)]) {
        let owner = self.owners.entry(owner.clone()).or_default();
        for (name, mode) in needs {
            owner.held.entry(name.clone()).or_default().add(*mode);
        }
    }

    fn let_go(&mut self, name: &OwnerName, needs: &[(Name, Mode)]) {
        let Some(owner) = self.owners.get_mut(name) else { return };
        for (name, mode) in needs {
            if let Some(held) = owner.held.get_mut(name) {
                held.take(*mode);
                if held.is_empty() {
                    owner.held.remove(name);
                }
            }
        }
        self.forget_idle(name);
    }

    fn forget_idle(&mut self, name: &OwnerName) {
        if self.owners.get(name).is_some_and(|owner| owner.held.is_empty() && owner.waits.is_none()) {
            self.owners.remove(name);
        }
    }
}
