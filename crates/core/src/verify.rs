//! A full check of the state, for tests, simulations and operators: does all derived data agree with the records, and do the
//! rules hold that can be checked on a single state?
//!
//! It walks over the whole state, so it is never part of `apply`. It repairs nothing.

use std::collections::BTreeSet;

use crate::footprint::footprint;
use crate::outcome::Held;
use crate::record::{Record, Wants};
use crate::resource::{Resource, Stance};
use crate::state::LockState;
use crate::waiter::{Blocked, Parked};
use crate::words::Name;

impl LockState {
    /// Checks that the state is consistent.
    ///
    /// # Errors
    /// A sentence that says what is inconsistent.
    pub fn verify(&self) -> Result<(), String> {
        ensure(self.freed.is_empty() && self.loosened.is_empty(), || {
            format!("left over after an entry: freed {:?}, loosened {:?}", self.freed, self.loosened)
        })?;
        let rebuilt = LockState::restore(0, self.records()).map_err(|bad| bad.to_string())?;
        ensure(rebuilt.records().eq(self.records()), || "restored records differ".into())?;
        ensure(rebuilt.state_hash() == self.state_hash(), || "the state hash does not match the records".into())?;
        self.verify_derived(&rebuilt)?;
        self.verify_exclusion()?;
        self.verify_waiters()
    }

    fn verify_derived(&self, rebuilt: &LockState) -> Result<(), String> {
        ensure(self.principals == rebuilt.principals, || "the sessions of a principal are counted wrongly".into())?;
        ensure(self.limit_count == rebuilt.limit_count, || "the limits are counted wrongly".into())?;
        ensure(self.next_deadline() == rebuilt.next_deadline(), || {
            format!(
                "the first deadline is {:?}, but {:?} by the records",
                self.next_deadline(),
                rebuilt.next_deadline()
            )
        })?;
        ensure(self.resources.len() == rebuilt.resources.len(), || {
            "a free name is in the table, or a name in use is not".into()
        })?;
        for (id, session) in self.sessions.range(..) {
            let (ours, theirs) = (session, &rebuilt.sessions[id]);
            ensure(ours.grants == theirs.grants && ours.locks == theirs.locks && ours.waits == theirs.waits, || {
                format!("{id:?}: what it holds or waits for is counted wrongly")
            })?;
            ensure(format!("{:?}", ours.owners) == format!("{:?}", theirs.owners), || {
                format!("the owners of {id:?} do not agree with its grants")
            })?;
            ensure(ours.timer <= theirs.timer, || format!("the timer of {id:?} is too late"))?;
        }
        for name in self.names_in_use() {
            let (ours, theirs) = (self.resources.get(&name), rebuilt.resources.get(&name));
            ensure(ours.map(outline) == theirs.map(outline), || format!("{name}: {ours:?} but rebuilt {theirs:?}"))?;
        }
        ensure(format!("{:?}", self.jobs) == format!("{:?}", rebuilt.jobs), || {
            "what is derived from jobs does not agree with their records".into()
        })?;
        for (name, semaphore) in &self.semaphores {
            let theirs = &rebuilt.semaphores[name];
            ensure(
                semaphore.out == theirs.out && semaphore.holders == theirs.holders && semaphore.queue == theirs.queue,
                || format!("semaphore {name}: its permits or its queue are counted wrongly"),
            )?;
        }
        Ok(())
    }

    /// Checks that two grants of different owners on one name are compatible. Rests are left out: a rest has no owner, and an
    /// owner may still hold a grant that conflicts with the rest of another grant of its own.
    fn verify_exclusion(&self) -> Result<(), String> {
        for grant in self.grants.values() {
            let Held::Locks(locks) = &grant.record.held else { continue };
            let owner = grant.owner_id();
            for (name, mode) in footprint(locks) {
                let mut conflicting = self.conflicting_holders(&owner, &name, Stance::Fresh(mode));
                let other = conflicting.find(|(other, _)| self.grants.contains_key(other));
                ensure(other.is_none(), || {
                    format!("{name}: grant {} in {mode:?} beside {other:?}", grant.record.id.0)
                })?;
            }
        }
        Ok(())
    }

    /// Checks that no request waits that could be granted, and that every waiter is parked where it is blocked.
    fn verify_waiters(&self) -> Result<(), String> {
        for (arrival, waiter) in &self.waiters {
            let blocked = self.blocked(&waiter.record.owner_id(), &waiter.stances, Some(*arrival));
            let needs = self.needs_of(&waiter.record.wants);
            ensure(waiter.stances == self.stances_for(&waiter.record.owner_id(), &needs), || {
                format!("arrival {} is not in the queues where it should be", arrival.0)
            })?;
            if let Wants::Permits { name, permits } = &waiter.record.wants {
                let semaphore = &self.semaphores[name];
                let is_head = semaphore.queue.first_key_value().is_some_and(|(head, _)| head == arrival);
                let passes = is_head && semaphore.fits(*permits) && self.freezes.over(name).is_none();
                ensure(!passes, || format!("arrival {} waits for free permits", arrival.0))?;
                continue;
            }
            ensure(blocked.is_some(), || format!("arrival {} waits for nothing", arrival.0))?;
            let is_watched = match &waiter.parked {
                Parked::Nowhere => false,
                Parked::Freeze(freeze) => self.freezes.get(*freeze).is_some_and(|it| it.parked.contains(arrival)),
                Parked::At(name) => {
                    waiter.stances.iter().find(|(other, _)| other == name).is_some_and(|(name, stance)| {
                        let here = [(name.clone(), *stance)].into_iter().collect();
                        let blocked_here = self.blocked(&waiter.record.owner_id(), &here, Some(*arrival));
                        let queue = self.resources.get(name).and_then(|resource| resource.queue());
                        matches!(blocked_here, Some(Blocked::At(..) | Blocked::Frozen(..)))
                            && queue.is_some_and(|queue| queue.is_parked(*arrival, *stance))
                    })
                }
            };
            ensure(is_watched, || {
                format!("arrival {} is parked where nothing blocks it: {:?}", arrival.0, waiter.parked)
            })?;
        }
        Ok(())
    }

    fn names_in_use(&self) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        for record in self.records() {
            let held = match record {
                Record::Grant(grant) => grant.held,
                Record::Rest(rest) => rest.held,
                Record::Waiter(waiter) => waiter.wants.held(),
                _ => continue,
            };
            if let Held::Locks(locks) = held {
                names.extend(footprint(&locks).into_iter().map(|(name, _)| name));
            }
        }
        names
    }
}

/// The parts of a resource that must be equal after a restore. Where its waiters are parked may differ.
fn outline(resource: &Resource) -> String {
    let queue = resource.queue();
    let fresh: Vec<_> = queue.into_iter().flat_map(|queue| queue.fresh_by_mode()).collect();
    let converting: Vec<_> = queue.into_iter().flat_map(|queue| queue.converting()).collect();
    format!("{:?} {} {fresh:?} {converting:?}", resource.holders, resource.listeners)
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
