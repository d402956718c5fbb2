//! One resource in use: who holds it, who waits in its queue, and who of them is parked here.
//!
//! The cost of every lock operation is decided in this file. Holders are counted by mode, so that "does anybody conflict"
//! is one comparison of bit sets; waiters are kept in one ordered set a mode, so that the least arrival that bars a mode is
//! the first of a few sets. Nothing here knows sessions, owners' names or time.

use std::collections::{BTreeMap, BTreeSet};

use crate::mode::{Mode, ModeSet};
use crate::planted;
use crate::words::{Arrival, GrantId, Name};

/// A resource that somebody holds or waits for.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) name: Name,
    pub(crate) holders: Holders,
    /// How many of the holders want to hear when somebody begins to wait.
    pub(crate) listeners: u32,
    /// Invariant: there is a queue exactly if a request waits in it.
    queue: Option<Box<Queue>>,
}

impl Resource {
    pub(crate) fn new(name: Name) -> Resource {
        Resource { name, holders: Holders::None, listeners: 0, queue: None }
    }

    pub(crate) fn is_free(&self) -> bool {
        matches!(self.holders, Holders::None) && self.queue.is_none()
    }

    pub(crate) fn queue(&self) -> Option<&Queue> {
        self.queue.as_deref()
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        self.queue.get_or_insert_default()
    }

    /// Takes a waiter out of the queue.
    pub(crate) fn leave(&mut self, arrival: Arrival, stance: Stance) {
        let queue = self.queue.as_mut().expect("only a queued waiter leaves");
        queue.unpark(arrival, stance);
        let was_queued = match stance {
            Stance::Fresh(mode) => queue.fresh[mode as usize].remove(&arrival),
            Stance::Converting(target) => {
                queue.targets.subtract(target);
                queue.converting.remove(&arrival) == Some(target)
            }
        };
        assert!(was_queued, "arrival {} left the queue of {} without being in it", arrival.0, self.name);
        if queue.len() == 0 {
            self.queue = None;
        }
    }

    /// The parked fresh waiter with the least arrival that nothing here keeps from passing any more. Looks at the first of
    /// each mode only, since who is barred bars nobody's mode but those behind it: the cost is flat in the queue.
    // Rule: single-successor
    pub(crate) fn next_fresh_candidate(&self) -> Option<Arrival> {
        let queue = self.queue()?;
        let firsts = Mode::ALL.into_iter().filter_map(|mode| {
            let first = *queue.parked_fresh[mode as usize].first()?;
            (!self.bars(Stance::Fresh(mode), Some(first), ModeCounts::default())).then_some(first)
        });
        firsts.min()
    }

    /// The parked conversions, by arrival. They are few: whoever means to upgrade takes U, and only one owner can hold U.
    pub(crate) fn parked_conversions(&self) -> impl Iterator<Item = Arrival> + '_ {
        self.queue().into_iter().flat_map(|queue| queue.parked_converting.iter().copied())
    }

    /// Whether something keeps a request from passing here, given what its owner holds here already. `None` as its arrival
    /// is the newest of all.
    // Rule: fifo
    // Rule: conversion
    pub(crate) fn bars(&self, stance: Stance, arrival: Option<Arrival>, own: ModeCounts) -> bool {
        let is_earlier = |other: Arrival| arrival.is_none_or(|arrival| other < arrival);
        if self.holders.modes_besides(own).intersects(stance.mode().conflicts()) {
            return true;
        }
        let Some(queue) = self.queue() else { return false };
        match stance {
            // A waiting conversion counts as an earlier waiter in its target mode, whenever it came.
            Stance::Fresh(mode) => {
                queue.targets.modes().intersects(mode.conflicts())
                    || (queue.bar(mode).is_some_and(is_earlier) && planted::waits_behind_others(mode))
            }
            // Conversions wait for holders only; an earlier one counts among them as U.
            Stance::Converting(target) => {
                !target.compatible(Mode::U)
                    && queue.converting.first_key_value().is_some_and(|(first, _)| is_earlier(*first))
            }
        }
    }
}

/// What a waiting request is to one of the names that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stance {
    /// Its owner holds nothing here: it waits in the order of arrival.
    Fresh(Mode),
    /// Its owner holds something weaker here: it goes ahead of the queue, towards this mode.
    Converting(Mode),
}

impl Stance {
    /// The mode that must be compatible with the holders.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Stance::Fresh(mode) | Stance::Converting(mode) => mode,
        }
    }
}

/// How many grants have each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModeCounts([u32; 6]);

impl ModeCounts {
    pub(crate) fn one(mode: Mode) -> ModeCounts {
        let mut counts = ModeCounts::default();
        counts.add(mode);
        counts
    }

    pub(crate) fn add(&mut self, mode: Mode) {
        self.0[mode as usize] += 1;
    }

    pub(crate) fn subtract(&mut self, mode: Mode) {
        self.0[mode as usize] -= 1;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; 6]
    }

    /// The modes that are counted at all.
    pub(crate) fn modes(&self) -> ModeSet {
        self.modes_beyond(ModeCounts::default())
    }

    /// The modes that are counted more often than in `part`.
    fn modes_beyond(&self, part: ModeCounts) -> ModeSet {
        let mut modes = ModeSet::EMPTY;
        for mode in Mode::ALL {
            if self.0[mode as usize] > part.0[mode as usize] {
                modes.insert(mode);
            }
        }
        modes
    }

    /// All modes that are counted, merged into one.
    pub(crate) fn merged(&self) -> Option<Mode> {
        self.modes().iter().reduce(Mode::merge)
    }
}

/// The grants that take something of a resource, rests included. One is the usual case and costs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Holders {
    None,
    One(GrantId, Mode),
    Many(Box<ManyHolders>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ManyHolders {
    by_grant: BTreeMap<GrantId, Mode>,
    /// Invariant: counts `by_grant` by mode.
    counts: ModeCounts,
}

impl Holders {
    pub(crate) fn insert(&mut self, grant: GrantId, mode: Mode) {
        match self {
            Holders::None => *self = Holders::One(grant, mode),
            Holders::One(first, first_mode) => {
                let mut many = ManyHolders::default();
                for (grant, mode) in [(*first, *first_mode), (grant, mode)] {
                    many.by_grant.insert(grant, mode);
                    many.counts.add(mode);
                }
                *self = Holders::Many(Box::new(many));
            }
            Holders::Many(many) => {
                many.by_grant.insert(grant, mode);
                many.counts.add(mode);
            }
        }
    }

    pub(crate) fn remove(&mut self, grant: GrantId) {
        match self {
            Holders::One(only, _) if *only == grant => *self = Holders::None,
            Holders::Many(many) => {
                let mode = many.by_grant.remove(&grant).expect("a grant is removed from a resource that it holds");
                many.counts.subtract(mode);
                if many.by_grant.len() == 1
                    && let Some((grant, mode)) = many.by_grant.pop_first()
                {
                    *self = Holders::One(grant, mode);
                }
            }
            _ => panic!("grant {} is removed from a resource that it does not hold", grant.0),
        }
    }

    pub(crate) fn mode_of(&self, grant: GrantId) -> Option<Mode> {
        match self {
            Holders::One(only, mode) if *only == grant => Some(*mode),
            Holders::Many(many) => many.by_grant.get(&grant).copied(),
            _ => None,
        }
    }

    /// The modes held by anybody, less these grants of one owner.
    pub(crate) fn modes_besides(&self, own: ModeCounts) -> ModeSet {
        match self {
            Holders::One(_, mode) if own.is_empty() => ModeSet::of(&[*mode]),
            Holders::None | Holders::One(..) => ModeSet::EMPTY,
            Holders::Many(many) => many.counts.modes_beyond(own),
        }
    }

    /// How many grants have one of these modes, less these of one owner.
    pub(crate) fn count_besides(&self, own: ModeCounts, modes: ModeSet) -> u32 {
        match self {
            Holders::None => 0,
            Holders::One(_, mode) => u32::from(own.is_empty() && modes.contains(*mode)),
            Holders::Many(many) => modes.iter().map(|mode| many.counts.0[mode as usize] - own.0[mode as usize]).sum(),
        }
    }

    /// All of them, oldest grant first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GrantId, Mode)> + '_ {
        let (one, many) = match self {
            Holders::None => (None, None),
            Holders::One(grant, mode) => (Some((*grant, *mode)), None),
            Holders::Many(many) => (None, Some(many.by_grant.iter().map(|(grant, mode)| (*grant, *mode)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// Those who wait for a resource. A request for several names is in every queue and is parked in at most one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// Those whose owner holds nothing here, by the mode they need, in order of arrival.
    fresh: [BTreeSet<Arrival>; 6],
    /// Those whose owner holds something weaker here, with the mode they go towards.
    converting: BTreeMap<Arrival, Mode>,
    /// Invariant: counts the modes in `converting`.
    targets: ModeCounts,
    /// Invariant: part of `fresh`; each was blocked here when it was last looked at.
    parked_fresh: [BTreeSet<Arrival>; 6],
    /// Invariant: part of `converting`; each was blocked here when it was last looked at.
    parked_converting: BTreeSet<Arrival>,
}

impl Queue {
    pub(crate) fn join(&mut self, arrival: Arrival, stance: Stance) {
        match stance {
            Stance::Fresh(mode) => {
                self.fresh[mode as usize].insert(arrival);
            }
            Stance::Converting(target) => {
                self.converting.insert(arrival, target);
                self.targets.add(target);
            }
        }
    }

    pub(crate) fn park(&mut self, arrival: Arrival, stance: Stance) {
        match stance {
            Stance::Fresh(mode) => self.parked_fresh[mode as usize].insert(arrival),
            Stance::Converting(_) => self.parked_converting.insert(arrival),
        };
    }

    pub(crate) fn unpark(&mut self, arrival: Arrival, stance: Stance) {
        match stance {
            Stance::Fresh(mode) => self.parked_fresh[mode as usize].remove(&arrival),
            Stance::Converting(_) => self.parked_converting.remove(&arrival),
        };
    }

    pub(crate) fn is_parked(&self, arrival: Arrival, stance: Stance) -> bool {
        match stance {
            Stance::Fresh(mode) => self.parked_fresh[mode as usize].contains(&arrival),
            Stance::Converting(_) => self.parked_converting.contains(&arrival),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.fresh.iter().map(BTreeSet::len).sum::<usize>() + self.converting.len()
    }

    /// The waiting conversions, by arrival, with the mode each goes towards.
    pub(crate) fn converting(&self) -> impl Iterator<Item = (Arrival, Mode)> + '_ {
        self.converting.iter().map(|(arrival, target)| (*arrival, *target))
    }

    /// The fresh waiters in any of these modes, by arrival.
    pub(crate) fn fresh_in(&self, modes: ModeSet) -> impl Iterator<Item = Arrival> + '_ {
        let mut sets: Vec<_> = modes.iter().map(|mode| self.fresh[mode as usize].iter().copied().peekable()).collect();
        std::iter::from_fn(move || {
            let next = sets.iter_mut().filter_map(|set| Some((*set.peek()?, set))).min_by_key(|(first, _)| *first)?;
            next.1.next()
        })
    }

    /// The fresh waiters with their modes.
    pub(crate) fn fresh_by_mode(&self) -> impl Iterator<Item = (Mode, Arrival)> + '_ {
        Mode::ALL.into_iter().flat_map(|mode| self.fresh[mode as usize].iter().map(move |arrival| (mode, *arrival)))
    }

    /// The least arrival that bars a fresh waiter of this mode which came after it.
    fn bar(&self, mode: Mode) -> Option<Arrival> {
        mode.conflicts().iter().filter_map(|other| self.fresh[other as usize].first().copied()).min()
    }
}
