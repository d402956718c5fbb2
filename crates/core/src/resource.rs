//! One resource in use: its holders, its queue, and which of its waiters are parked here.
//!
//! These structures decide what a lock operation costs. Holders are counted by mode, so that a check for conflicts is one
//! comparison of bit sets. Waiters are in one ordered set per mode, so that the earliest waiter that conflicts with a mode
//! is the first of at most six sets. Nothing here knows sessions, owner names or time.

use std::collections::{BTreeMap, BTreeSet};

use crate::mode::{Mode, ModeSet};
use crate::planted;
use crate::words::{Arrival, GrantId, Name};

/// A resource that is held or waited for.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) name: Name,
    pub(crate) holders: Holders,
    /// The number of holders that want to be told when a conflicting request begins to wait.
    pub(crate) listeners: u32,
    /// Invariant: `Some` exactly while a request waits.
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

    /// Removes a waiter from the queue.
    pub(crate) fn leave(&mut self, arrival: Arrival, stance: Stance) {
        let queue = self.queue.as_mut().expect("a waiter leaves a queue that it is in");
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

    /// The earliest parked fresh waiter that is no longer blocked here. Looks only at the first parked waiter of each mode:
    /// if that one is blocked, so are the later ones of the same mode. So the cost does not grow with the queue.
    // Rule: single-successor
    pub(crate) fn next_fresh_candidate(&self) -> Option<Arrival> {
        let queue = self.queue()?;
        let firsts = Mode::ALL.into_iter().filter_map(|mode| {
            let first = *queue.parked_fresh[mode as usize].first()?;
            (!self.blocks(Stance::Fresh(mode), Some(first), ModeCounts::default())).then_some(first)
        });
        firsts.min()
    }

    /// The parked conversions, by arrival. They are few: a holder that will upgrade takes U, and only one owner can hold U.
    pub(crate) fn parked_conversions(&self) -> impl Iterator<Item = Arrival> + '_ {
        self.queue().into_iter().flat_map(|queue| queue.parked_converting.iter().copied())
    }

    /// Whether a request is blocked here by a holder or by a waiter ahead of it, given what its own owner holds here. An
    /// arrival of `None` means a new request, later than all waiters.
    // Rule: fifo
    // Rule: conversion
    pub(crate) fn blocks(&self, stance: Stance, arrival: Option<Arrival>, own: ModeCounts) -> bool {
        let is_earlier = |other: Arrival| arrival.is_none_or(|arrival| other < arrival);
        if self.holders.modes_besides(own).intersects(stance.mode().conflicts()) {
            return true;
        }
        let Some(queue) = self.queue() else { return false };
        match stance {
            // A waiting conversion counts as an earlier waiter in its target mode, whatever its arrival.
            Stance::Fresh(mode) => {
                queue.targets.modes().intersects(mode.conflicts())
                    || (queue.earliest_conflict(mode).is_some_and(is_earlier) && planted::waits_behind_others(mode))
            }
            // A conversion waits for holders only. An earlier conversion counts as a holder of U.
            Stance::Converting(target) => {
                !target.compatible(Mode::U)
                    && queue.converting.first_key_value().is_some_and(|(first, _)| is_earlier(*first))
            }
        }
    }
}

/// How a request waits for one of the names that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stance {
    /// Its owner holds nothing here: the request waits in the order of arrival, for this mode.
    Fresh(Mode),
    /// Its owner already holds a weaker mode here: the request goes ahead of the queue. This is the mode that the owner
    /// would hold in the end.
    Converting(Mode),
}

impl Stance {
    /// The mode that must be compatible with the other holders.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Stance::Fresh(mode) | Stance::Converting(mode) => mode,
        }
    }
}

/// The number of grants in each mode.
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

    /// The modes with a count above zero.
    pub(crate) fn modes(&self) -> ModeSet {
        self.modes_beyond(ModeCounts::default())
    }

    /// The modes with a higher count than in `part`.
    fn modes_beyond(&self, part: ModeCounts) -> ModeSet {
        let mut modes = ModeSet::EMPTY;
        for mode in Mode::ALL {
            if self.0[mode as usize] > part.0[mode as usize] {
                modes.insert(mode);
            }
        }
        modes
    }

    /// All modes with a count above zero, merged into one.
    pub(crate) fn merged(&self) -> Option<Mode> {
        self.modes().iter().reduce(Mode::merge)
    }
}

/// The grants and rests on a resource. One, the usual case, needs no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Holders {
    None,
    One(GrantId, Mode),
    Many(Box<ManyHolders>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ManyHolders {
    by_grant: BTreeMap<GrantId, Mode>,
    /// Invariant: the number of grants in `by_grant`, by mode.
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
                let mode = many.by_grant.remove(&grant).expect("a grant is removed only from a resource that it holds");
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

    /// The modes of all grants except those counted in `own`, which belong to one owner.
    pub(crate) fn modes_besides(&self, own: ModeCounts) -> ModeSet {
        match self {
            Holders::One(_, mode) if own.is_empty() => ModeSet::of(&[*mode]),
            Holders::None | Holders::One(..) => ModeSet::EMPTY,
            Holders::Many(many) => many.counts.modes_beyond(own),
        }
    }

    /// The number of grants in one of these modes, without those counted in `own`.
    pub(crate) fn count_besides(&self, own: ModeCounts, modes: ModeSet) -> u32 {
        match self {
            Holders::None => 0,
            Holders::One(_, mode) => u32::from(own.is_empty() && modes.contains(*mode)),
            Holders::Many(many) => modes.iter().map(|mode| many.counts.0[mode as usize] - own.0[mode as usize]).sum(),
        }
    }

    /// All grants and rests with their modes, oldest grant first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (GrantId, Mode)> + '_ {
        let (one, many) = match self {
            Holders::None => (None, None),
            Holders::One(grant, mode) => (Some((*grant, *mode)), None),
            Holders::Many(many) => (None, Some(many.by_grant.iter().map(|(grant, mode)| (*grant, *mode)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// The requests that wait for a resource. A request for several names is in the queue of each, and is parked in at most one
/// of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// Waiters whose owner holds nothing here, by the mode that they need, in order of arrival.
    fresh: [BTreeSet<Arrival>; 6],
    /// Waiters whose owner holds a weaker mode here, with the mode that the owner would hold in the end.
    converting: BTreeMap<Arrival, Mode>,
    /// Invariant: the number of waiters in `converting`, by mode.
    targets: ModeCounts,
    /// Invariant: a subset of `fresh`. Each was blocked here when it was last looked at.
    parked_fresh: [BTreeSet<Arrival>; 6],
    /// Invariant: a subset of `converting`. Each was blocked here when it was last looked at.
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

    /// The waiting conversions, by arrival, each with the mode that its owner would hold in the end.
    pub(crate) fn converting(&self) -> impl Iterator<Item = (Arrival, Mode)> + '_ {
        self.converting.iter().map(|(arrival, target)| (*arrival, *target))
    }

    /// The fresh waiters in one of these modes, by arrival.
    pub(crate) fn fresh_in(&self, modes: ModeSet) -> impl Iterator<Item = Arrival> + '_ {
        let mut sets: Vec<_> = modes.iter().map(|mode| self.fresh[mode as usize].iter().copied().peekable()).collect();
        std::iter::from_fn(move || {
            let next = sets.iter_mut().filter_map(|set| Some((*set.peek()?, set))).min_by_key(|(first, _)| *first)?;
            next.1.next()
        })
    }

    /// The fresh waiters with their modes, by mode and then by arrival.
    pub(crate) fn fresh_by_mode(&self) -> impl Iterator<Item = (Mode, Arrival)> + '_ {
        Mode::ALL.into_iter().flat_map(|mode| self.fresh[mode as usize].iter().map(move |arrival| (mode, *arrival)))
    }

    /// The earliest fresh waiter that conflicts with this mode.
    fn earliest_conflict(&self, mode: Mode) -> Option<Arrival> {
        mode.conflicts().iter().filter_map(|other| self.fresh[other as usize].first().copied()).min()
    }
}
