//! Successors: after something was freed, every waiter that now can pass is granted, in order of arrival.
//!
//! Every rule that ends or weakens a grant, or ends a wait, a rest or a freeze, adds a [`Freed`] to the state. Only this file
//! takes them out again. So there is one place where a wake-up could be missed, and one place where a waiter becomes a
//! holder.

use std::collections::BTreeSet;

use crate::once::Asker;
use crate::outcome::{Outcome, Refusal};
use crate::record::Wants;
use crate::resource::Stance;
use crate::state::LockState;
use crate::waiter::{Freed, Parked};
use crate::words::{Arrival, Name};

impl LockState {
    /// Grants the waiters that can pass now, earliest arrival first, until no waiter can.
    // Rule: no-missed-wake-up
    pub(crate) fn grant_successors(&mut self) {
        self.end_loosened_cycles();
        let mut ready: BTreeSet<(Arrival, Freed)> = BTreeSet::new();
        loop {
            for freed in std::mem::take(&mut self.freed) {
                match self.candidate(&freed) {
                    Some(arrival) => drop(ready.insert((arrival, freed))),
                    None => self.forget_if_free(&freed),
                }
            }
            let Some((arrival, freed)) = ready.pop_first() else { return };
            // Another grant may have changed which waiter comes first, so the candidate is computed again.
            if self.candidate(&freed) == Some(arrival) {
                self.look_at(arrival);
            }
            self.freed.push(freed);
        }
    }

    /// The earliest waiter that is parked at the freed name or semaphore, and no longer blocked there; or the freed waiter itself.
    fn candidate(&self, freed: &Freed) -> Option<Arrival> {
        match freed {
            Freed::Name(name) => {
                let resource = self.resources.get(name)?;
                let converting = resource.parked_conversions().find(|arrival| self.conversion_passes(*arrival, name));
                resource.next_fresh_candidate().into_iter().chain(converting).min()
            }
            // Rule: semaphore
            Freed::Semaphore(name) => {
                let semaphore = self.semaphores.get(name)?;
                let (arrival, permits) = semaphore.queue.first_key_value()?;
                (semaphore.fits(*permits) && self.freezes.over(name).is_none()).then_some(*arrival)
            }
            Freed::Waiter(arrival) => {
                let is_unparked = self.waiters.get(arrival).is_some_and(|waiter| waiter.parked == Parked::Nowhere);
                is_unparked.then_some(*arrival)
            }
        }
    }

    fn conversion_passes(&self, arrival: Arrival, name: &Name) -> bool {
        let waiter = &self.waiters[&arrival];
        let (_, stance) =
            waiter.stances.iter().find(|(other, _)| other == name).expect("a waiter has a stance where it is parked");
        debug_assert!(matches!(stance, Stance::Converting(_)));
        let own = self.own_counts(&waiter.record.owner_id(), name);
        self.resources.get(name).is_some_and(|resource| !resource.blocks(*stance, Some(arrival), own))
    }

    /// Grants a waiter if it can pass on all its names; otherwise parks it where it is blocked.
    // Rule: single-successor
    fn look_at(&mut self, arrival: Arrival) {
        self.unpark(arrival);
        let waiter = &self.waiters[&arrival];
        let blocked = self.blocked(&waiter.record.owner_id(), &waiter.stances, Some(arrival));
        match blocked {
            Some(_) => self.park(arrival, blocked),
            None => match self.may_be_granted_now(arrival) {
                Ok(()) => self.grant_waiter(arrival),
                Err(refusal) => self.end_wait(arrival, Outcome::Refused(refusal)),
            },
        }
    }

    /// Whether a job that can pass has room for what it may store. Room was there when it began to wait.
    // Rule: keep
    fn may_be_granted_now(&self, arrival: Arrival) -> Result<(), Refusal> {
        match self.waiters[&arrival].record.job() {
            Some((name, _)) => self.has_room_for_job(name),
            None => Ok(()),
        }
    }

    fn grant_waiter(&mut self, arrival: Arrival) {
        let mut record = self.remove_waiter(arrival);
        self.effects.waited_ms.push(self.stamp.0 - record.queued_at.0);
        let asker = Asker { session: record.session, number: record.number };
        let outcome = match &record.wants {
            Wants::Conversion { grant, name, mode } => self.change_mode(*grant, name, *mode),
            Wants::Locks(_) | Wants::Permits { .. } => {
                let terms = record.terms.take();
                let outcome = self.grant(asker, record.owner.clone(), record.wants.held(), terms);
                self.effects.announce_granted(record.facts(), &outcome);
                outcome
            }
        };
        self.answer_waiter(&record, outcome);
    }

    fn forget_if_free(&mut self, freed: &Freed) {
        match freed {
            Freed::Name(name) => self.resources.forget_if_free(name),
            Freed::Semaphore(name) => self.forget_semaphore_if_free(name),
            Freed::Waiter(_) => {}
        }
    }
}
