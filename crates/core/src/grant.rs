//! Grants: how a grant begins, changes its mode, ends and rests.
//!
//! Every change of who holds what is made here, so that the holders of a resource, the session's grants, the owner's
//! holdings, the deadlines and the state hash always agree. This file does not decide whether a grant may be given: its
//! callers have checked that.

use crate::bounds;
use crate::command::{Lock, Locks, Terms};
use crate::deadlines::Due;
use crate::digest::{Digest, Term};
use crate::event::Names;
use crate::footprint::footprint;
use crate::mode::{LockMode, Mode};
use crate::once::Asker;
use crate::outcome::{GrantEnd, Held, Outcome};
use crate::planted;
use crate::record::{GrantRecord, RestRecord};
use crate::session::Session;
use crate::state::LockState;
use crate::waiter::{Freed, OwnerId};
use crate::words::{Arrival, GrantId, Millis, Name, OwnerName, SessionId, Token};

/// A held lock or held permits: the record, and what is derived from other records.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) record: GrantRecord,
    /// The waiting request to convert this grant, if there is one.
    pub(crate) converting: Option<Arrival>,
    pub(crate) term: Term,
}

/// A grant that ended against its holder's will and keeps its resources busy for the lock delay. It has no owner.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) record: RestRecord,
    pub(crate) term: Term,
}

impl Grant {
    pub(crate) fn owner_id(&self) -> OwnerId {
        match &self.record.owner {
            Some(owner) => OwnerId::Named(self.record.session, owner.clone()),
            None => OwnerId::Grant(self.record.id),
        }
    }

    /// The mode that the grant was asked for on exactly this name. `None` for an ancestor.
    pub(crate) fn asked_mode(&self, name: &Name) -> Option<LockMode> {
        let Held::Locks(locks) = &self.record.held else { return None };
        locks.iter().find(|lock| lock.name == *name).map(|lock| lock.mode)
    }

    /// Its locks, with one of them in another mode.
    pub(crate) fn locks_with(&self, name: &Name, mode: LockMode) -> Locks {
        let Held::Locks(locks) = &self.record.held else { panic!("permits have no mode") };
        let changed = |lock: &Lock| Lock { mode: if lock.name == *name { mode } else { lock.mode }, ..lock.clone() };
        locks.iter().map(changed).collect()
    }

    pub(crate) fn hears_contended(&self) -> bool {
        self.record.terms.as_ref().is_some_and(|terms| terms.hear_contended)
    }

    pub(crate) fn digest(&mut self, digest: &mut Digest) {
        digest.put(&mut self.term, &("grant", &self.record));
    }
}

impl Held {
    pub(crate) fn cloned_names(&self) -> Names {
        self.names().cloned().collect()
    }

    /// How much it counts against [`bounds::LOCKS_PER_SESSION_MAX`].
    pub(crate) fn lock_count(&self) -> usize {
        match self {
            Held::Locks(locks) => locks.len(),
            Held::Permits { .. } => 1,
        }
    }
}

impl Session {
    /// Adds the mode that a grant of a named owner takes on a name.
    fn hold(&mut self, owner: &OwnerName, name: &Name, mode: Mode) {
        let owner = self.owners.entry(owner.clone()).or_default();
        owner.held.entry(name.clone()).or_default().counts.add(mode);
    }

    fn unhold(&mut self, owner: &OwnerName, name: &Name, mode: Mode) {
        let owner = self.owners.get_mut(owner).expect("an owner that holds something is known");
        let holding = owner.held.get_mut(name).expect("a name is removed only while it is held");
        holding.counts.subtract(mode);
        if holding.counts.is_empty() {
            owner.held.remove(name);
        }
    }

    pub(crate) fn forget_owner_if_idle(&mut self, name: &OwnerName) {
        if self.owners.get(name).is_some_and(|owner| owner.held.is_empty() && owner.waits.is_none()) {
            self.owners.remove(name);
        }
    }
}

impl LockState {
    /// Draws the next number of the group's one counter for ids and tokens.
    // Rule: token-order
    pub(crate) fn draw_token(&mut self) -> Token {
        assert!(self.last_token < bounds::TOKEN_MAX, "the token counter has reached 2^53: no grant can be made");
        self.last_token += 1;
        Token(self.last_token)
    }

    /// Makes a grant. The caller has checked that nothing is in its way.
    pub(crate) fn grant(
        &mut self,
        asker: Asker,
        owner: Option<OwnerName>,
        held: Held,
        terms: Option<Box<Terms>>,
    ) -> Outcome {
        let drawn = self.draw_token();
        let (id, token) = (GrantId(drawn.0), planted::newest_token(drawn, self.last_arrival));
        let hold_until = terms.as_ref().and_then(|terms| terms.max_hold).map(|limit| self.stamp.after(limit));
        // Rule: no-grant-to-the-dead
        assert!(self.sessions.contains_key(&asker.session), "a grant to a session that has ended");
        self.insert_grant(GrantRecord {
            id,
            token,
            session: asker.session,
            owner,
            held,
            count: 1,
            granted_at: self.stamp,
            hold_until,
            terms,
        });
        Outcome::Granted { grant: id, token, count: 1 }
    }

    /// Puts a grant into the state, new or from a snapshot.
    pub(crate) fn insert_grant(&mut self, record: GrantRecord) {
        let id = record.id;
        let mut grant = Box::new(Grant { record, converting: None, term: Term::default() });
        grant.digest(&mut self.digest);
        let session = self.sessions.get_mut(&grant.record.session).expect("a grant has a living session");
        session.grants.insert(id);
        session.locks += grant.record.held.lock_count();
        match &grant.record.held {
            Held::Locks(locks) => {
                for (name, mode) in footprint(locks) {
                    if let Some(owner) = &grant.record.owner {
                        session.hold(owner, &name, mode);
                    }
                    let resource = self.resources.get_or_insert(&name);
                    resource.holders.insert(id, mode);
                    resource.listeners += u32::from(grant.hears_contended());
                }
                if let Some(owner) = &grant.record.owner {
                    let owner = session.owners.get_mut(owner).expect("the loop above has added it");
                    for lock in locks {
                        owner.held.get_mut(&lock.name).expect("the loop above has added the name").asked = Some(id);
                    }
                }
            }
            Held::Permits { name, permits } => {
                let semaphore = self.semaphores.get_mut(name).expect("a semaphore exists before its grants");
                semaphore.take(id, *permits);
            }
        }
        if let Some(until) = grant.record.hold_until {
            self.deadlines.insert(until, Due::Hold(id));
        }
        let ttl = grant.record.terms.as_ref().and_then(|terms| terms.ttl);
        let (session_id, granted_at) = (grant.record.session, grant.record.granted_at);
        let for_job = grant.record.job().is_some();
        self.grants.insert(id, grant);
        // Rule: ttl
        if let Some(ttl) = ttl {
            let renewed_at = session.record.renewed_at;
            session.ttls.get_or_insert_default().insert(granted_at, ttl, id, renewed_at);
            self.move_session_timer(session_id);
        }
        if for_job {
            self.hold_job(id);
        }
    }

    /// Changes the mode of a grant. The caller has checked that nothing is in its way.
    // Rule: conversion
    pub(crate) fn change_mode(&mut self, id: GrantId, name: &Name, mode: LockMode) -> Outcome {
        let grant = &self.grants[&id];
        let Held::Locks(before) = &grant.record.held else { panic!("permits have no mode") };
        let after = grant.locks_with(name, mode);
        let stronger = grant.asked_mode(name) < Some(mode);
        let (old_needs, new_needs) = (footprint(before), footprint(&after));

        if stronger && planted::upgrade_draws_token() {
            let token = self.draw_token();
            self.grants.get_mut(&id).expect("the grant was found above").record.token = token;
        }
        let grant = self.grants.get_mut(&id).expect("the grant was found above");
        grant.record.held = Held::Locks(after);
        grant.digest(&mut self.digest);
        let record = &grant.record;
        let session = self.sessions.get_mut(&record.session).expect("a grant has a living session");
        for ((name, old), (_, new)) in old_needs.into_iter().zip(new_needs) {
            if let Some(owner) = &record.owner {
                // Added before the old mode is removed, so that the holding is not dropped in between.
                session.hold(owner, &name, new);
                session.unhold(owner, &name, old);
            }
            let resource = self.resources.get_mut(&name).expect("a held name is in use");
            resource.holders.remove(id);
            resource.holders.insert(id, new);
            // Rule: no-missed-wake-up
            self.freed.push(Freed::Name(name));
        }
        self.effects.announce_converted(record);
        let (token, owner_id) = (record.token, grant.owner_id());
        self.owner_holdings_changed(&owner_id);
        Outcome::Converted { grant: id, token }
    }

    /// Re-entry: adds one count to a grant of a named owner.
    pub(crate) fn enter_again(&mut self, id: GrantId) -> Outcome {
        let grant = self.grants.get_mut(&id).expect("an owner enters again what it holds");
        grant.record.count += 1;
        grant.digest(&mut self.digest);
        Outcome::Granted { grant: id, token: grant.record.token, count: grant.record.count }
    }

    /// Gives one count back and returns how many are left. The last one ends the grant.
    pub(crate) fn give_back(&mut self, id: GrantId) -> u32 {
        let grant = self.grants.get_mut(&id).expect("a grant that is given back is held");
        if grant.record.count == 1 {
            self.end_grant(id, &GrantEnd::Released);
            return 0;
        }
        grant.record.count -= 1;
        grant.digest(&mut self.digest);
        let record = &grant.record;
        self.effects.announce_ended(record, record.count, GrantEnd::Released, None);
        record.count
    }

    /// Ends a grant, however often its owner has entered it. The requests that it blocked are granted later, by `grant_successors`.
    pub(crate) fn end_grant(&mut self, id: GrantId, how: &GrantEnd) {
        if let Some(arrival) = self.grants[&id].converting {
            self.end_wait(arrival, Outcome::GrantEnded(how.clone()));
        }
        let grant = self.grants.remove(&id).expect("a grant ends once");
        self.digest.take(grant.term);
        let record = &grant.record;
        if let Some(until) = record.hold_until {
            self.deadlines.remove(until, Due::Hold(id));
        }
        let session = self.sessions.get_mut(&record.session).expect("a grant has a living session");
        session.grants.remove(&id);
        session.locks -= record.held.lock_count();
        let ttl = record.terms.as_ref().and_then(|terms| terms.ttl);
        if let (Some(ttl), Some(ttls)) = (ttl, &mut session.ttls) {
            ttls.remove(record.granted_at, ttl, id);
            if ttls.is_empty() {
                session.ttls = None;
            }
        }
        // Rule: lock-delay
        let delay = record.terms.as_ref().map_or(Millis::ZERO, |terms| terms.lock_delay.millis());
        let rests = how.involuntary() && delay.get() > 0 && planted::involuntary_end_rests();
        let rests_until = rests.then(|| self.stamp.after(delay));

        if let Held::Locks(locks) = &record.held {
            for (name, mode) in footprint(locks) {
                if let Some(owner) = &record.owner {
                    session.unhold(owner, &name, mode);
                }
                let resource = self.resources.get_mut(&name).expect("a held name is in use");
                resource.listeners -= u32::from(grant.hears_contended());
            }
            if let Some(owner) = record.owner.as_ref().and_then(|owner| session.owners.get_mut(owner)) {
                for lock in locks {
                    if let Some(holding) = owner.held.get_mut(&lock.name) {
                        holding.asked = None;
                    }
                }
            }
        }
        let session_id = record.session;
        if ttl.is_some() {
            self.move_session_timer(session_id);
        }
        match rests_until {
            Some(until) => {
                let (held, token) = (record.held.clone(), record.token);
                self.insert_rest(RestRecord { grant: id, token, held, since: self.stamp, until });
            }
            None => self.vacate(id, &record.held),
        }
        self.unhold_job(record, how);
        self.effects.announce_ended(record, 0, how.clone(), rests_until);
        if how.involuntary() && !matches!(how, GrantEnd::Session(_)) {
            self.note_loss(session_id, id, how);
        }
        self.owner_holdings_changed(&grant.owner_id());
    }

    /// Removes a grant, or its rest, from the holders of its resources.
    fn vacate(&mut self, id: GrantId, held: &Held) {
        match held {
            Held::Locks(locks) => {
                for (name, _) in footprint(locks) {
                    let resource = self.resources.get_mut(&name).expect("a held name is in use");
                    resource.holders.remove(id);
                    if resource.is_free() {
                        self.resources.forget_if_free(&name);
                    } else if planted::free_name_wakes_waiters() {
                        self.freed.push(Freed::Name(name));
                    }
                }
            }
            Held::Permits { name, .. } => {
                self.semaphores.get_mut(name).expect("a semaphore with permits out is in use").put_back(id);
                self.freed.push(Freed::Semaphore(name.clone()));
            }
        }
    }

    fn insert_rest(&mut self, record: RestRecord) {
        self.deadlines.insert(record.until, Due::Rest(record.grant));
        let mut rest = Rest { record, term: Term::default() };
        self.digest.put(&mut rest.term, &("rest", &rest.record));
        self.rests.insert(rest.record.grant, rest);
    }

    /// Puts a rest from a snapshot into the state, and among the holders of its resources.
    pub(crate) fn restore_rest(&mut self, record: RestRecord) {
        match &record.held {
            Held::Locks(locks) => {
                for (name, mode) in footprint(locks) {
                    self.resources.get_or_insert(&name).holders.insert(record.grant, mode);
                }
            }
            Held::Permits { name, permits } => {
                let semaphore = self.semaphores.get_mut(name).expect("a semaphore exists before its rests");
                semaphore.take(record.grant, *permits);
            }
        }
        self.insert_rest(record);
    }

    /// Ends a rest. The requests that it blocked are granted later, by `grant_successors`.
    pub(crate) fn end_rest(&mut self, id: GrantId, waived: bool) {
        let rest = self.rests.remove(&id).expect("a rest ends once");
        self.digest.take(rest.term);
        self.deadlines.remove(rest.record.until, Due::Rest(id));
        self.vacate(id, &rest.record.held);
        self.effects.announce_rest_ended(&rest.record, waived);
    }

    /// Tells a living session that it lost a grant: by a push now, and from memory if it releases the grant later.
    fn note_loss(&mut self, session_id: SessionId, grant: GrantId, how: &GrantEnd) {
        let session = self.sessions.get_mut(&session_id).expect("only a living session loses a single grant");
        let lost = &mut session.record.lost;
        let at = lost.partition_point(|(other, _)| *other < grant);
        lost.insert(at, (grant, how.clone()));
        if lost.len() > bounds::LOST_GRANTS_REMEMBERED_MAX {
            lost.remove(0);
        }
        session.digest(&mut self.digest);
        self.effects.tell_lost(session_id, grant, how.clone());
    }

    /// Called when an owner holds more or less than before: its waiting request may have other stances now, and an owner that
    /// neither holds nor waits is forgotten.
    fn owner_holdings_changed(&mut self, owner: &OwnerId) {
        if let Some(arrival) = self.waiting_request(owner) {
            self.rejoin_queues(arrival);
        } else if let OwnerId::Named(session, owner) = owner {
            let session = self.sessions.get_mut(session).expect("a grant has a living session");
            session.forget_owner_if_idle(owner);
        }
    }
}
