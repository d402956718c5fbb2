//! Who comes next: after anything was freed, everybody who can now pass is granted, in order of arrival.
//!
//! Whatever ends or weakens a hold, a wait, a rest or a freeze says so by a [`Freed`]; only this file answers it. So there
//! is one place where a wake-up could be missed, and one where a waiter becomes a holder.

use std::collections::BTreeSet;

use crate::once::Asker;
use crate::record::Wants;
use crate::resource::Stance;
use crate::state::LockState;
use crate::waiter::{Freed, Parked};
use crate::words::{Arrival, Name};

impl LockState {
    /// Grants everybody who can pass since the last time, least arrival first, until nobody can.
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
            // A grant elsewhere may have changed who comes first here, so it is asked again.
            if self.candidate(&freed) == Some(arrival) {
                self.look_at(arrival);
            }
            self.freed.push(freed);
        }
    }

    /// The parked waiter with the least arrival that nothing at this place keeps back.
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
            waiter.stances.iter().find(|(other, _)| other == name).expect("a parked waiter has a stance there");
        debug_assert!(matches!(stance, Stance::Converting(_)));
        let own = self.own_counts(&waiter.record.owner_id(), name);
        self.resources.get(name).is_some_and(|resource| !resource.bars(*stance, Some(arrival), own))
    }

    /// Grants a waiter if it passes everywhere, or parks it where it does not.
    // Rule: single-successor
    fn look_at(&mut self, arrival: Arrival) {
        self.unpark(arrival);
        let waiter = &self.waiters[&arrival];
        let blocked = self.blocked(&waiter.record.owner_id(), &waiter.stances, Some(arrival));
        match blocked {
            Some(_) => self.park(arrival, blocked),
            None => self.grant_waiter(arrival),
        }
    }

    fn grant_waiter(&mut self, arrival: Arrival) {
        let mut record = self.remove_waiter(arrival);
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
