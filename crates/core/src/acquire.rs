//! Requests for locks: re-entry first, then a grant if nothing is in the way, else waiting or *busy*.
//!
//! This file decides which of these a request gets. What is in the way is decided in `waiter.rs` and `resource.rs`, and the
//! grant itself is made in `grant.rs`.

use crate::bounds::{self, Bound};
use crate::command::{Acquire, Lock, Locks};
use crate::event::RequestFacts;
use crate::footprint::checked_footprint;
use crate::mode::LockMode;
use crate::once::Asker;
use crate::outcome::{Held, Outcome, Refusal};
use crate::record::Wants;
use crate::session::Owner;
use crate::state::LockState;
use crate::waiter::{NewWaiter, OwnerId};
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
            Outcome::Granted { .. } => self.effects.announce_granted(facts, &outcome),
            Outcome::Refused(_) | Outcome::Deadlock(_) | Outcome::Completed { .. } => {
                self.effects.announce_not_granted(facts, &outcome);
            }
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
        if let Some(job) = &terms.job
            && let Some(outcome) = self.may_take_job(asker.session, &owner, &locks, &job.key)?
        {
            return Ok(outcome);
        }
        if let Some(owner) = &owner
            && let Some(outcome) = self.enter_held(asker.session, owner, &locks)?
        {
            return Ok(outcome);
        }
        self.may_hold_more(asker.session, locks.len())?;

        let owner_id = match &owner {
            Some(owner) => OwnerId::Named(asker.session, owner.clone()),
            // Later than every arrival: no existing grant or waiter belongs to this request.
            None => OwnerId::Request(Arrival(u64::MAX)),
        };
        let stances = self.stances_for(&owner_id, &needs);
        let Some(blocked) = self.blocked(&owner_id, &stances, None) else {
            return Ok(self.grant(asker, owner, Held::Locks(locks), terms.boxed()));
        };
        let Some(wait) = wait.patience() else { return Ok(self.busy(&owner_id, blocked)) };
        self.may_wait(asker.session, &stances)?;
        Ok(self.enqueue(NewWaiter { asker, owner, wants: Wants::Locks(locks), wait, terms }))
    }

    /// Re-entry: what a named owner gets ahead of any queue, because it holds the lock already. `None` if it holds none.
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

    /// The owner's grant on exactly this name, in any mode; else its grant on the nearest ancestor that covers the mode.
    pub(crate) fn own_grant_over(&self, owner: &Owner, lock: &Lock) -> Option<(GrantId, LockMode)> {
        let asked_on = |name: &Name| {
            let grant = owner.held.get(name)?.asked?;
            Some((grant, self.grants[&grant].asked_mode(name)?))
        };
        asked_on(&lock.name).or_else(|| {
            let mut above = lock.name.ancestors().rev().filter_map(|ancestor| asked_on(&ancestor));
            above.find(|(_, mode)| *mode >= lock.mode)
        })
    }

    /// Checks the bound on what a session holds and waits for.
    pub(crate) fn may_hold_more(&self, session: SessionId, more: usize) -> Result<(), Refusal> {
        if self.sessions[&session].locks + more > bounds::LOCKS_PER_SESSION_MAX {
            return Err(Refusal::Bound(Bound::LocksPerSession));
        }
        Ok(())
    }
}

/// An election is an exclusive lock on one resource.
pub(crate) fn is_election(locks: &[Lock]) -> bool {
    matches!(locks, [lock] if lock.mode == LockMode::Exclusive)
}
