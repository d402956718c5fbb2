//! Acquiring locks: re-entry, then the order of arrival, then waiting or busy.

use crate::bounds::{self, Bound};
use crate::command::{Acquire, Lock, Locks};
use crate::event::{Event, RequestFacts};
use crate::footprint::checked_footprint;
use crate::mode::LockMode;
use crate::once::Asker;
use crate::outcome::{Busy, BusyWhy, Held, Holder, Outcome, Push, Refusal, Takes};
use crate::record::Wants;
use crate::resource::Stance;
use crate::session::Owner;
use crate::state::LockState;
use crate::waiter::{Blocked, NewWaiter, OwnerId};
use crate::words::{Arrival, GrantId, Name, OwnerName, SessionId};

impl LockState {
    pub(crate) fn acquire(&mut self, asker: Asker, acquire: Acquire) -> Outcome {
        let facts = RequestFacts {
            session: asker.session,
            number: asker.number,
            owner: acquire.owner.clone(),
            wants: Held::Locks(acquire.locks.clone()),
            converts: None,
        };
        let outcome = self.try_acquire(asker, acquire).unwrap_or_else(Outcome::Refused);
        match &outcome {
            Outcome::Granted { .. } => self.announce_grant(facts, &outcome),
            Outcome::Refused(_) | Outcome::Deadlock(_) => return self.not_granted(facts, outcome),
            _ => {}
        }
        outcome
    }

    fn try_acquire(&mut self, asker: Asker, acquire: Acquire) -> Result<Outcome, Refusal> {
        let Acquire { locks, owner, wait, terms } = acquire;
        let needs = checked_footprint(&locks)?;
        if !self.semaphores.is_empty()
            && let Some((name, _)) = needs.iter().find(|(name, _)| self.semaphores.contains_key(name))
        {
            return Err(Refusal::IsSemaphore(name.clone()));
        }
        // Rule: election
        if terms.value.is_some() && !is_election(&locks) {
            return Err(Refusal::NotAnElection);
        }
        if let Some(owner) = &owner
            && let Some(outcome) = self.enter_held(asker.session, owner, &locks)?
        {
            return Ok(outcome);
        }
        self.may_hold_more(asker.session, locks.len())?;

        let owner_id = match &owner {
            Some(owner) => OwnerId::Named(asker.session, owner.clone()),
            // The newest of all: nothing that exists can be its own.
            None => OwnerId::Request(Arrival(u64::MAX)),
        };
        let stands = self.stands_for(&owner_id, &needs);
        let Some(blocked) = self.blocked(&owner_id, &stands, None) else {
            return Ok(self.grant(asker, owner, Held::Locks(locks), terms.boxed()));
        };
        let Some(wait) = wait.patience() else { return Ok(self.busy(&owner_id, blocked)) };
        self.may_wait(asker.session, &stands)?;
        Ok(self.enqueue(NewWaiter { asker, owner, wants: Wants::Locks(locks), wait, terms }))
    }

    /// What a named owner gets past any queue, because it has it already.
    // Rule: re-entry
    fn enter_held(&mut self, session: SessionId, owner: &OwnerName, locks: &Locks) -> Result<Option<Outcome>, Refusal> {
        let Some(owner) = self.sessions[&session].owners.get(owner) else { return Ok(None) };
        // Rule: deadlock
        if owner.waits.is_some() {
            return Err(Refusal::OwnerWaits);
        }
        let [lock] = locks.as_slice() else {
            let mut sorted: Vec<&Lock> = locks.iter().collect();
            sorted.sort_by(|a, b| a.name.cmp(&b.name));
            return match sorted.into_iter().find_map(|lock| Some((lock, self.own_grant_over(owner, lock)?.0))) {
                Some((lock, grant)) => Err(Refusal::AlreadyHeld { name: lock.name.clone(), grant }),
                None => Ok(None),
            };
        };
        match self.own_grant_over(owner, lock) {
            None => Ok(None),
            Some((grant, mode)) if mode < lock.mode => Err(Refusal::UseUpgrade { name: lock.name.clone(), grant }),
            Some((grant, _)) if self.grants[&grant].record.count >= bounds::REENTRIES_MAX => {
                Err(Refusal::Bound(Bound::Reentries))
            }
            Some((grant, _)) => Ok(Some(self.enter_again(grant))),
        }
    }

    /// The grant in which an owner holds this very name, in whatever mode, or else the nearest one that covers it.
    fn own_grant_over(&self, owner: &Owner, lock: &Lock) -> Option<(GrantId, LockMode)> {
        let asked_on = |name: &Name| {
            let grant = owner.held.get(name)?.asked?;
            Some((grant, self.grants[&grant].asked_mode(name)?))
        };
        asked_on(&lock.name).or_else(|| {
            let mut above = lock.name.ancestors().rev().filter_map(|ancestor| asked_on(&ancestor));
            above.find(|(_, mode)| *mode >= lock.mode)
        })
    }

    /// The bound on what a session holds and waits for.
    pub(crate) fn may_hold_more(&self, session: SessionId, more: usize) -> Result<(), Refusal> {
        if self.sessions[&session].locks + more > bounds::LOCKS_PER_SESSION_MAX {
            return Err(Refusal::Bound(Bound::LocksPerSession));
        }
        Ok(())
    }

    /// Announces that a request ended without a grant.
    pub(crate) fn not_granted(&mut self, request: RequestFacts, outcome: Outcome) -> Outcome {
        self.effects.events.push(Event::NotGranted { request, outcome: outcome.clone() });
        outcome
    }

    /// Who is in the way of a request that would not wait.
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

    /// The first few holders, for people.
    pub(crate) fn shown_holders(&self, holders: impl Iterator<Item = (GrantId, Takes)>) -> Vec<Holder> {
        holders.take(self.version.busy_holders_shown_max()).map(|(id, takes)| self.holder(id, takes)).collect()
    }

    /// A grant or a rest, as others see it.
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
            (None, None) => panic!("grant {} holds a resource but is neither a grant nor a rest", id.0),
        }
    }

    /// Tells the holders that asked for it that somebody they conflict with began to wait.
    // Rule: contended
    pub(crate) fn tell_contended(&mut self, arrival: Arrival) {
        let waiter = &self.waiters[&arrival];
        let mut listeners: Vec<GrantId> = Vec::new();
        if let Wants::Permits { name, .. } = &waiter.record.wants {
            listeners.extend(self.semaphores[name].holders.keys());
        }
        let owner = waiter.record.owner_id();
        for (name, stance) in &waiter.stands {
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

/// An election is an exclusive lock on one resource.
pub(crate) fn is_election(locks: &[Lock]) -> bool {
    matches!(locks, [lock] if lock.mode == LockMode::Exclusive)
}
