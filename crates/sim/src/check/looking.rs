//! Which waiters can be granted: what blocks a request, and which waiters must be checked again after a change.
//!
//! A waiter is parked at the first name or freeze that blocks it. It is checked again only when that name or freeze changes. So the cost
//! of an entry depends on what it touches, not on how many requests wait.

use fencepost_core::{Arrival, FreezeId, Held, Name};

use super::ledger::{Ledger, Whose};
use super::place::{NameState, Stance, Stands};

/// What blocks a request: the first one in name order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Blocked {
    Freeze(FreezeId),
    At(Name),
}

impl Ledger {
    /// What blocks a request for locks; `None` if nothing does. `None` as the arrival means the newest of all.
    pub(super) fn blocked(&self, whose: Whose<'_>, stands: &Stands, arrival: Option<Arrival>) -> Option<Blocked> {
        stands.iter().find_map(|(name, stance)| {
            if let Some(freeze) = self.freeze_over(name) {
                return Some(Blocked::Freeze(freeze));
            }
            let state = self.name_states.get(name)?;
            let is_blocked = state.is_held_against(*stance, self.own_modes(whose, name))
                || state.ahead_of(*stance, arrival).is_some();
            is_blocked.then(|| Blocked::At(name.clone()))
        })
    }

    /// Whether this waiter is the head of a semaphore's queue and can be granted.
    // Rule: semaphore
    pub(super) fn permits_pass(&self, name: &Name, arrival: Arrival) -> bool {
        let Some(semaphore) = self.semaphores.get(name) else { return false };
        let is_head = semaphore.queue.first_key_value().is_some_and(|(head, permits)| {
            *head == arrival && semaphore.limit.is_some() && semaphore.has_room(*permits)
        });
        is_head && self.freeze_over(name).is_none()
    }

    /// Whether a waiter can be granted.
    pub(super) fn passes(&self, arrival: Arrival) -> bool {
        let Some(waiter) = self.waiters.get(&arrival) else { return false };
        match &waiter.request.wants {
            Held::Permits { name, .. } => self.permits_pass(name, arrival),
            Held::Locks(_) => self.blocked(Whose::request(&waiter.request), &waiter.stands, Some(arrival)).is_none(),
        }
    }

    /// Whether a request may wait for a reason that is unknown here, because it is older than a restore.
    pub(super) fn may_have_hidden_reasons(&self) -> bool {
        self.is_restored && (self.ever_froze || self.unknown_rests_until.is_some_and(|until| self.stamp <= until))
    }

    /// The waiters that can be granted, among new ones and those that a change since the last look may have unblocked. Every other waiter
    /// was checked before, and stays parked.
    // Rule: no-missed-wake-up
    pub(super) fn look(&mut self) -> Vec<Arrival> {
        let mut free = Vec::new();
        while let Some(arrival) = self.unparked.pop_first() {
            self.look_at(arrival, &mut free);
        }
        while let Some(name) = self.touched.pop_first() {
            // A waiter that is blocked elsewhere is parked there. Then the next one is the first here.
            loop {
                let waiting = self.name_states.get(&name).map(NameState::may_pass).unwrap_or_default();
                let mut moved = false;
                for arrival in waiting {
                    moved |= self.look_at(arrival, &mut free);
                }
                if !moved {
                    break;
                }
            }
            if self.name_states.get(&name).is_some_and(NameState::is_free) {
                self.name_states.remove(&name);
            }
        }
        while let Some(name) = self.touched_semaphores.pop_first() {
            let head = self.semaphores.get(&name).and_then(|semaphore| semaphore.queue.keys().next().copied());
            free.extend(head.filter(|head| self.permits_pass(&name, *head)));
        }
        free
    }

    /// Parks a waiter where it is blocked, or adds it to `free`. Returns whether it left the place where it was parked.
    fn look_at(&mut self, arrival: Arrival, free: &mut Vec<Arrival>) -> bool {
        let Some(waiter) = self.waiters.get(&arrival) else { return false };
        if matches!(waiter.request.wants, Held::Permits { .. }) {
            return false;
        }
        self.looks += 1;
        let parked = self.blocked(Whose::request(&waiter.request), &waiter.stands, Some(arrival));
        if parked.is_none() {
            free.push(arrival);
        }
        let has_moved = waiter.parked != parked;
        if has_moved {
            self.unpark(arrival);
            self.park(arrival, parked);
        }
        has_moved
    }

    fn stance_at(&self, arrival: Arrival, name: &Name) -> Option<Stance> {
        let stands = &self.waiters.get(&arrival)?.stands;
        stands.iter().find(|(other, _)| other == name).map(|(_, stance)| *stance)
    }

    fn park(&mut self, arrival: Arrival, parked: Option<Blocked>) {
        match &parked {
            None => {}
            Some(Blocked::Freeze(freeze)) => drop(self.parked_at_freeze.entry(*freeze).or_default().insert(arrival)),
            Some(Blocked::At(name)) => {
                if let Some(stance) = self.stance_at(arrival, name) {
                    self.name_state_mut(name).park(arrival, stance);
                }
            }
        }
        if let Some(waiter) = self.waiters.get_mut(&arrival) {
            waiter.parked = parked;
        }
    }

    pub(super) fn unpark(&mut self, arrival: Arrival) {
        let Some(waiter) = self.waiters.get_mut(&arrival) else { return };
        match waiter.parked.take() {
            None => {}
            Some(Blocked::Freeze(freeze)) => {
                if let Some(parked) = self.parked_at_freeze.get_mut(&freeze) {
                    parked.remove(&arrival);
                }
            }
            Some(Blocked::At(name)) => {
                if let Some(stance) = self.stance_at(arrival, &name) {
                    self.name_state_mut(&name).unpark(arrival, stance);
                }
            }
        }
    }

    /// Ends a freeze: every waiter that was parked at it is checked again.
    pub(super) fn thaw(&mut self, freeze: FreezeId) {
        if let Some(scope) = self.freezes.remove(&freeze) {
            let semaphores = self.semaphores.keys().filter(|name| scope.covers(name));
            self.touched_semaphores.extend(semaphores.cloned());
        }
        for arrival in self.parked_at_freeze.remove(&freeze).unwrap_or_default() {
            if let Some(waiter) = self.waiters.get_mut(&arrival) {
                waiter.parked = None;
                self.unparked.insert(arrival);
            }
        }
    }
}
