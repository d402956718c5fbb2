//! The state of one name in the ledger: its holders and its queue.
//!
//! Holders and waiters are counted and ordered by mode, so the check whether a request is blocked costs the same however many there are.
//! A waiter stands in the queue of every name that it needs, but is parked at only one: where it was last found blocked. Only a change
//! of that name can unblock it, so no other waiter has to be checked.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{Arrival, GrantId, Lock, Mode, ModeSet, Name};

/// Number of grants in each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Modes([u32; 6]);

impl Modes {
    pub(super) fn add(&mut self, mode: Mode) {
        self.0[mode as usize] += 1;
    }

    pub(super) fn take(&mut self, mode: Mode) {
        self.0[mode as usize] = self.0[mode as usize].saturating_sub(1);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    /// The merge of all modes; `None` if there is none.
    pub(super) fn merged(&self) -> Option<Mode> {
        self.besides(Modes::default()).iter().reduce(Mode::merge)
    }

    /// The modes that remain without those of `own`.
    fn besides(&self, own: Modes) -> ModeSet {
        let mut others = ModeSet::EMPTY;
        for mode in Mode::ALL {
            if self.0[mode as usize] > own.0[mode as usize] {
                others.insert(mode);
            }
        }
        others
    }
}

/// How a request waits for a name of which its owner does not hold enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stance {
    /// Its owner holds nothing there: it waits in the order of arrival.
    Fresh(Mode),
    /// Its owner holds a weaker mode there: it goes ahead of the queue. The mode is the merged one.
    Converting(Mode),
}

impl Stance {
    pub(super) fn mode(self) -> Mode {
        match self {
            Stance::Fresh(mode) | Stance::Converting(mode) => mode,
        }
    }

    /// The stance of a request that needs `need` where its owner holds `own`; `None` if `own` is enough.
    // Rule: conversion
    pub(super) fn of(need: Mode, own: Modes) -> Option<Stance> {
        match own.merged() {
            None => Some(Stance::Fresh(need)),
            Some(own) if own.covers(need) => None,
            Some(own) => Some(Stance::Converting(own.merge(need))),
        }
    }
}

/// The queues of a request with its stance in each, in name order.
pub(super) type Stands = Vec<(Name, Stance)>;

/// The modes that locks take on each name, with intentions on ancestors.
// Rule: hierarchy
pub(super) fn needs_of(locks: &[Lock]) -> Vec<(Name, Mode)> {
    if let [lock] = locks
        && !lock.name.is_path()
    {
        return vec![(lock.name.clone(), lock.mode.mode())];
    }
    let mut needs: BTreeMap<Name, Mode> = BTreeMap::new();
    for lock in locks {
        let above = lock.name.ancestors().map(|name| (name, lock.mode.intention()));
        for (name, mode) in above.chain([(lock.name.clone(), lock.mode.mode())]) {
            needs.entry(name).and_modify(|merged| *merged = merged.merge(mode)).or_insert(mode);
        }
    }
    needs.into_iter().collect()
}

/// The holders and waiters of one name.
#[derive(Debug, Default)]
pub(super) struct NameState {
    /// Grants, and rests under the id of their ended grant.
    pub(super) holders: BTreeMap<GrantId, Mode>,
    /// Invariant: counts the modes of `holders`.
    held: Modes,
    /// Invariant: `Some` exactly if a request waits here.
    queue: Option<Box<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    fresh: [BTreeSet<Arrival>; 6],
    converting: BTreeMap<Arrival, Mode>,
    /// Invariant: a subset of `fresh`.
    parked_fresh: [BTreeSet<Arrival>; 6],
    /// Invariant: a subset of `converting`.
    parked_converting: BTreeSet<Arrival>,
}

impl NameState {
    pub(super) fn hold(&mut self, grant: GrantId, mode: Mode) {
        if let Some(before) = self.holders.insert(grant, mode) {
            self.held.take(before);
        }
        self.held.add(mode);
    }

    pub(super) fn let_go(&mut self, grant: GrantId) {
        if let Some(mode) = self.holders.remove(&grant) {
            self.held.take(mode);
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.holders.is_empty() && self.queue.is_none()
    }

    pub(super) fn waiter_count(&self) -> usize {
        self.queue
            .as_ref()
            .map_or(0, |queue| queue.fresh.iter().map(BTreeSet::len).sum::<usize>() + queue.converting.len())
    }

    pub(super) fn stand(&mut self, arrival: Arrival, stance: Stance) {
        let queue = self.queue.get_or_insert_default();
        match stance {
            Stance::Fresh(mode) => drop(queue.fresh[mode as usize].insert(arrival)),
            Stance::Converting(target) => drop(queue.converting.insert(arrival, target)),
        }
    }

    pub(super) fn leave(&mut self, arrival: Arrival, stance: Stance) {
        self.unpark(arrival, stance);
        let Some(queue) = &mut self.queue else { return };
        match stance {
            Stance::Fresh(mode) => drop(queue.fresh[mode as usize].remove(&arrival)),
            Stance::Converting(_) => drop(queue.converting.remove(&arrival)),
        }
        if self.waiter_count() == 0 {
            self.queue = None;
        }
    }

    pub(super) fn park(&mut self, arrival: Arrival, stance: Stance) {
        let queue = self.queue.get_or_insert_default();
        match stance {
            Stance::Fresh(mode) => queue.parked_fresh[mode as usize].insert(arrival),
            Stance::Converting(_) => queue.parked_converting.insert(arrival),
        };
    }

    pub(super) fn unpark(&mut self, arrival: Arrival, stance: Stance) {
        let Some(queue) = &mut self.queue else { return };
        match stance {
            Stance::Fresh(mode) => queue.parked_fresh[mode as usize].remove(&arrival),
            Stance::Converting(_) => queue.parked_converting.remove(&arrival),
        };
    }

    /// Whether another owner holds this name in a mode that conflicts with the stance.
    // Rule: exclusion
    pub(super) fn is_held_against(&self, stance: Stance, own: Modes) -> bool {
        self.held.besides(own).intersects(stance.mode().conflicts())
    }

    /// A waiter that a request with this arrival must not pass, if any. `None` as the arrival means the newest of all.
    // Rule: fifo
    pub(super) fn ahead_of(&self, stance: Stance, arrival: Option<Arrival>) -> Option<Arrival> {
        let queue = self.queue.as_ref()?;
        let earlier = |other: &Arrival| arrival.is_none_or(|arrival| *other < arrival);
        match stance {
            Stance::Fresh(mode) => {
                let conflicts = mode.conflicts();
                let converting = queue.converting.iter().find(|(_, target)| conflicts.contains(**target));
                let firsts = conflicts.iter().filter_map(|other| queue.fresh[other as usize].first().copied());
                converting.map(|(other, _)| *other).or_else(|| firsts.min().filter(earlier))
            }
            Stance::Converting(target) => {
                let first = queue.converting.keys().next().copied().filter(earlier);
                first.filter(|_| !target.compatible(Mode::U))
            }
        }
    }

    /// All waiters that a request in this queue must not pass.
    pub(super) fn all_ahead_of(&self, stance: Stance, arrival: Arrival) -> Vec<Arrival> {
        let Some(queue) = &self.queue else { return Vec::new() };
        let conflicts = stance.mode().conflicts();
        match stance {
            Stance::Fresh(_) => {
                let converting = queue.converting.iter().filter(|(_, target)| conflicts.contains(**target));
                let fresh = conflicts.iter().flat_map(|mode| queue.fresh[mode as usize].range(..arrival));
                converting.map(|(other, _)| *other).chain(fresh.copied()).collect()
            }
            Stance::Converting(_) if conflicts.contains(Mode::U) => {
                queue.converting.range(..arrival).map(|(other, _)| *other).collect()
            }
            Stance::Converting(_) => Vec::new(),
        }
    }

    /// The parked waiters that may be granted now, as far as this name is concerned. Of each mode only the first is checked: if it is
    /// blocked, so are those behind it. All parked conversions are returned. They are few: a client that wants to upgrade takes mode U, and
    /// U conflicts with itself.
    pub(super) fn may_pass(&self) -> Vec<Arrival> {
        let Some(queue) = &self.queue else { return Vec::new() };
        let fresh = Mode::ALL.into_iter().filter_map(|mode| {
            let first = *queue.parked_fresh[mode as usize].first()?;
            let stance = Stance::Fresh(mode);
            let barred = self.is_held_against(stance, Modes::default()) || self.ahead_of(stance, Some(first)).is_some();
            (!barred).then_some(first)
        });
        fresh.chain(queue.parked_converting.iter().copied()).collect()
    }
}
