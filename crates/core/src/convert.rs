//! Requests to change the mode of a held lock. A weaker mode is given at once; a stronger one is an upgrade, which waits for
//! other holders but goes ahead of the queue.
//!
//! This file decides whether a conversion is allowed, waits or is refused. The change itself is made in `grant.rs`.

use crate::command::{Lock, Locks, Terms, Wait};
use crate::event::RequestFacts;
use crate::footprint::footprint;
use crate::mode::{LockMode, Mode};
use crate::once::Asker;
use crate::outcome::{Held, Outcome, Refusal};
use crate::record::Wants;
use crate::state::LockState;
use crate::waiter::{NewWaiter, OwnerId};
use crate::words::{GrantId, Name};

impl LockState {
    // Rule: conversion
    pub(crate) fn convert(&mut self, asker: Asker, id: GrantId, name: &Name, mode: LockMode, wait: Wait) -> Outcome {
        if let Err(answer) = self.check_owner(asker, id) {
            return answer;
        }
        let grant = &self.grants[&id];
        if let Held::Permits { .. } = grant.record.held {
            return Outcome::Refused(Refusal::NotALock);
        }
        let Some(current) = grant.asked_mode(name) else {
            return Outcome::Refused(Refusal::NotInGrant(name.clone()));
        };
        // Rule: job-key
        if grant.record.job().is_some() {
            return Outcome::Refused(Refusal::KeyedGrant);
        }
        if mode == current {
            return Outcome::Converted { grant: id, token: grant.record.token };
        }
        if mode < current {
            // Code of the owner that entered the grant again relies on the present mode.
            if grant.record.count > 1 {
                return Outcome::Refused(Refusal::CountAboveOne);
            }
            return self.change_mode(id, name, mode);
        }
        let facts = RequestFacts {
            session: asker.session,
            number: asker.number,
            owner: grant.record.owner.clone(),
            wants: Held::Locks(Locks::from_buf([Lock { name: name.clone(), mode }])),
            converts: Some(id),
        };
        let outcome = self.upgrade(asker, id, name, current, mode, wait).unwrap_or_else(Outcome::Refused);
        if let Outcome::Refused(_) | Outcome::Deadlock(_) = outcome {
            self.effects.announce_not_granted(facts, &outcome);
        }
        outcome
    }

    fn upgrade(
        &mut self,
        asker: Asker,
        id: GrantId,
        name: &Name,
        current: LockMode,
        mode: LockMode,
        wait: Wait,
    ) -> Result<Outcome, Refusal> {
        let grant = &self.grants[&id];
        if grant.record.count > 1 {
            return Err(Refusal::CountAboveOne);
        }
        let owner_id = grant.owner_id();
        // Rule: deadlock
        if self.waiting_request(&owner_id).is_some() {
            return Err(Refusal::OwnerWaits);
        }
        if current == LockMode::Shared && self.another_will_upgrade(&owner_id, name) {
            return Err(Refusal::UpgradeConflict(name.clone()));
        }
        let stances = self.stances_for(&owner_id, &footprint(&grant.locks_with(name, mode)));
        let Some(blocked) = self.blocked(&owner_id, &stances, None) else {
            return Ok(self.change_mode(id, name, mode));
        };
        let Some(wait) = wait.patience() else { return Ok(self.busy(&owner_id, blocked)) };
        self.may_wait(asker.session, &stances)?;
        let owner = grant.record.owner.clone();
        let wants = Wants::Conversion { grant: id, name: name.clone(), mode };
        Ok(self.enqueue(NewWaiter { asker, owner, wants, wait, terms: Terms::default() }))
    }

    /// Whether another owner holds U on the name or waits to convert there. If so, an upgrade from S is refused: two holders
    /// of S that both wait for X would wait for each other. A rest in mode U has no owner and will not upgrade.
    fn another_will_upgrade(&self, owner: &OwnerId, name: &Name) -> bool {
        let Some(resource) = self.resources.get(name) else { return false };
        let others = resource.holders.modes_besides(self.own_counts(owner, name));
        let holds_update =
            |(grant, mode)| mode == Mode::U && self.grants.get(&grant).is_some_and(|grant| grant.owner_id() != *owner);
        (others.contains(Mode::U) && resource.holders.iter().any(holds_update))
            || resource.queue().is_some_and(|queue| queue.converting().next().is_some())
    }
}
