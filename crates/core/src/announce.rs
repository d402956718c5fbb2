//! What others are told: busy answers with the holders in the way, pushes to sessions, and events for watchers.
//!
//! Every push and every event of the core is written here: `tell_*` adds a push, `announce_*` adds an event. The rules call
//! these functions at the moment when something happens, so that the effects are in the order of what happened. Nothing
//! here decides anything or changes the lock state.

use crate::event::{ActFacts, Event, RequestFacts};
use crate::outcome::{Busy, BusyWhy, Effects, GrantEnd, Holder, Outcome, Push, SessionEnd, Takes};
use crate::record::{GrantRecord, RestRecord, SessionRecord, WaiterRecord, Wants};
use crate::state::LockState;
use crate::waiter::{Blocked, OwnerId};
use crate::words::{Arrival, GrantId, LogicalMs, Name, Permits, Principal, Reason, SessionId, Value};

impl LockState {
    /// The answer to a request for locks that is blocked and would not wait.
    // Rule: wait
    pub(crate) fn busy(&self, owner: &OwnerId, blocked: Blocked) -> Outcome {
        let frozen = matches!(blocked, Blocked::Frozen(..));
        let (Blocked::At(name, stance) | Blocked::Frozen(name, stance, _)) = blocked;
        let mut holders = self.conflicting_holders(owner, &name, stance).peekable();
        let why = if frozen {
            BusyWhy::Frozen
        } else if holders.peek().is_none() {
            BusyWhy::Queued
        } else if self.conflicting_holders(owner, &name, stance).all(|(grant, _)| self.rests.contains_key(&grant)) {
            BusyWhy::Resting
        } else {
            BusyWhy::Held
        };
        let holders = self.shown_holders(holders);
        let own = self.own_counts(owner, &name);
        let conflicts = stance.mode().conflicts();
        let holder_count =
            self.resources.get(&name).map_or(0, |resource| resource.holders.count_besides(own, conflicts));
        Outcome::Busy(Box::new(Busy { name, why, holders, holder_count }))
    }

    /// The answer to a request for permits that cannot be served now and would not wait.
    pub(crate) fn permits_busy(&self, name: Name, permits: Permits) -> Outcome {
        let semaphore = self.semaphores.get(&name);
        let why = if self.freezes.over(&name).is_some() {
            BusyWhy::Frozen
        } else if semaphore.is_some_and(|semaphore| !semaphore.fits(permits)) {
            let only_rests = semaphore.is_some_and(|it| it.holders.keys().all(|id| self.rests.contains_key(id)));
            if only_rests { BusyWhy::Resting } else { BusyWhy::Held }
        } else {
            BusyWhy::Queued
        };
        let holders = semaphore.into_iter().flat_map(|semaphore| semaphore.holders.iter());
        Outcome::Busy(Box::new(Busy {
            name,
            why,
            holders: self.shown_holders(holders.map(|(id, permits)| (*id, Takes::Permits(*permits)))),
            holder_count: semaphore.map_or(0, |semaphore| semaphore.holders.len() as u32),
        }))
    }

    /// The first holders, as many as a busy answer names.
    fn shown_holders(&self, holders: impl Iterator<Item = (GrantId, Takes)>) -> Vec<Holder> {
        holders.take(self.version.busy_holders_shown_max()).map(|(id, takes)| self.holder(id, takes)).collect()
    }

    /// A grant or a rest, as other sessions see it.
    pub(crate) fn holder(&self, id: GrantId, takes: Takes) -> Holder {
        match (self.grants.get(&id), self.rests.get(&id)) {
            (Some(grant), _) => Holder {
                grant: id,
                takes,
                token: grant.record.token,
                since: grant.record.granted_at,
                session: Some(grant.record.session),
                owner: grant.record.owner.clone(),
            },
            (None, Some(rest)) => Holder {
                grant: id,
                takes,
                token: rest.record.token,
                since: rest.record.since,
                session: None,
                owner: None,
            },
            (None, None) => panic!("a resource names {} as its holder, but no grant and no rest has this id", id.0),
        }
    }

    /// Tells a conflicting holder that a request began to wait, if the holder asked to be told.
    // Rule: contended
    pub(crate) fn tell_contended(&mut self, arrival: Arrival) {
        let waiter = &self.waiters[&arrival];
        let mut listeners: Vec<GrantId> = Vec::new();
        if let Wants::Permits { name, .. } = &waiter.record.wants {
            listeners.extend(self.semaphores[name].holders.keys());
        }
        let owner = waiter.record.owner_id();
        for (name, stance) in &waiter.stances {
            if self.resources.get(name).is_some_and(|resource| resource.listeners > 0) {
                listeners.extend(self.conflicting_holders(&owner, name, *stance).map(|(grant, _)| grant));
            }
        }
        listeners.retain(|grant| self.grants.get(grant).is_some_and(|grant| grant.hears_contended()));
        listeners.sort_unstable();
        listeners.dedup();
        for grant in listeners {
            let record = &self.grants[&grant].record;
            self.effects.pushes.push(Push::Contended { session: record.session, grant });
            self.effects.events.push(Event::Contended { grant, names: record.held.cloned_names() });
        }
    }
}

/// Pushes to sessions.
impl Effects {
    /// Tells a session how the wait of its request ended.
    pub(crate) fn tell_wait_ended(&mut self, waiter: &WaiterRecord, outcome: Outcome) {
        self.pushes.push(Push::Ended { session: waiter.session, number: waiter.number, outcome });
    }

    /// Tells a living session that it lost a grant.
    pub(crate) fn tell_lost(&mut self, session: SessionId, grant: GrantId, how: GrantEnd) {
        self.pushes.push(Push::Lost { session, grant, how });
    }

    /// Tells a session that it ended. Comes after the pushes about its waits.
    pub(crate) fn tell_session_ended(&mut self, session: SessionId, how: SessionEnd) {
        self.pushes.push(Push::SessionEnded { session, how });
    }
}

/// Events for watchers.
impl Effects {
    pub(crate) fn announce_session_opened(&mut self, opened: &SessionRecord) {
        let SessionRecord { id, principal, metadata, .. } = opened;
        let (principal, metadata) = (principal.clone(), metadata.clone());
        self.events.push(Event::SessionOpened { session: *id, principal, metadata });
    }

    /// Comes before the events about the session's grants and waits.
    pub(crate) fn announce_session_ended(&mut self, session: SessionId, how: SessionEnd) {
        self.events.push(Event::SessionEnded { session, how });
    }

    pub(crate) fn announce_queued(&mut self, waiter: &WaiterRecord) {
        self.events.push(Event::Queued { request: waiter.facts(), arrival: waiter.arrival });
    }

    /// Announces a grant. Ignores any other outcome.
    pub(crate) fn announce_granted(&mut self, request: RequestFacts, outcome: &Outcome) {
        if let Outcome::Granted { grant, token, count } = *outcome {
            self.events.push(Event::Granted { request, grant, token, count });
        }
    }

    /// Announces that a request ended without a grant.
    pub(crate) fn announce_not_granted(&mut self, request: RequestFacts, outcome: &Outcome) {
        self.events.push(Event::NotGranted { request, outcome: outcome.clone() });
    }

    /// Announces that a grant, or one count of it, ended.
    pub(crate) fn announce_ended(
        &mut self,
        record: &GrantRecord,
        count_left: u32,
        how: GrantEnd,
        rests_until: Option<LogicalMs>,
    ) {
        self.events.push(Event::Ended {
            grant: record.id,
            token: record.token,
            session: record.session,
            owner: record.owner.clone(),
            held: record.held.clone(),
            count_left,
            how,
            rests_until,
        });
    }

    pub(crate) fn announce_rest_ended(&mut self, rest: &RestRecord, waived: bool) {
        self.events.push(Event::RestEnded { grant: rest.grant, names: rest.held.cloned_names(), waived });
    }

    pub(crate) fn announce_converted(&mut self, record: &GrantRecord) {
        self.events.push(Event::Converted {
            grant: record.id,
            token: record.token,
            session: record.session,
            owner: record.owner.clone(),
            held: record.held.clone(),
        });
    }

    pub(crate) fn announce_value_set(&mut self, grant: GrantId, name: Name, value: Value) {
        self.events.push(Event::ValueSet { grant, name, value });
    }

    /// Announces an administrator's act. Comes before the events that the act causes.
    pub(crate) fn announce_act(&mut self, by: &Principal, reason: &Reason, act: ActFacts) {
        self.events.push(Event::Administered { by: by.clone(), reason: reason.clone(), act });
    }
}
