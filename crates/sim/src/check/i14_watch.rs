//! I14: watch streams rise strictly, without gap or repeat; resuming gives what follows, or says compacted.
//!
//! A watcher's first fact says where it begins. From then on it is given exactly the events of its prefix, as the log has them.

use std::collections::VecDeque;

use fencepost_core::{Position, PositionedEvent};

use crate::fact::LoggedEntry;

use super::findings::Findings;
use super::ledger::Map;

/// Events that are kept to compare with. A watcher that is further behind is compared from where they begin.
const EVENTS_MAX: usize = 200_000;

/// The events of the log, and how far each watcher has come.
// Rule: watch
#[derive(Debug, Default)]
pub(super) struct Watch {
    events: VecDeque<PositionedEvent>,
    /// Every event after this position is in `events`.
    complete_after: Position,
    watchers: Map<u64, Position>,
}

impl Watch {
    pub(super) fn entry(&mut self, entry: &LoggedEntry) {
        let (index, stamp) = (entry.position.index, entry.stamp);
        for (ordinal, event) in (0..).zip(&entry.effects.events) {
            if self.events.len() == EVENTS_MAX
                && let Some(oldest) = self.events.pop_front()
            {
                self.complete_after = oldest.position;
            }
            self.events.push_back(PositionedEvent {
                position: Position { index, ordinal },
                stamp,
                event: event.clone(),
            });
        }
    }

    pub(super) fn restored(&mut self) {
        *self = Watch::default();
    }

    /// A watcher was given an event: the next one of its prefix, as the log has it.
    pub(super) fn given(&mut self, watcher: u64, prefix: &str, event: &PositionedEvent, findings: &mut Findings) {
        findings.report.watched += 1;
        let position = event.position;
        let what = || format!("watcher {watcher} of {prefix:?} was given {event:?}");
        if let Some(last) = self.watchers.get(&watcher).copied() {
            findings.ensure(position > last, "I14", || format!("not after {last:?}: {}", what()));
            let missed = self.between(last, position).find(|event| event.event.matches(prefix));
            findings.ensure(missed.is_none(), "I14", || format!("without {missed:?} before it: {}", what()));
        }
        findings.ensure(event.event.matches(prefix), "I14", || format!("not of its prefix: {}", what()));
        if position > self.complete_after {
            let at = self.events.partition_point(|other| other.position < position);
            findings.ensure(self.events.get(at) == Some(event), "I14", || format!("not what the log says: {}", what()));
        }
        self.moves_on(watcher, position);
    }

    /// A watcher was told where to go on, because what comes before is compacted.
    pub(super) fn compacted(&mut self, watcher: u64, oldest: Position, findings: &mut Findings) {
        findings.report.compacted += 1;
        let last = self.watchers.get(&watcher).copied();
        let is_ahead = last.is_none_or(|last| oldest > last);
        findings.ensure(is_ahead, "I14", || format!("watcher {watcher} at {last:?} is told to go on after {oldest:?}"));
        self.moves_on(watcher, oldest);
    }

    /// A watcher has seen everything up to this index.
    pub(super) fn through(&mut self, watcher: u64, prefix: &str, index: u64, findings: &mut Findings) {
        let end = Position { index, ordinal: u32::MAX };
        if let Some(last) = self.watchers.get(&watcher).copied() {
            let missed = self.between(last, end).find(|event| event.event.matches(prefix));
            findings.ensure(missed.is_none(), "I14", || {
                format!("watcher {watcher} of {prefix:?} was never given {missed:?}")
            });
        }
        self.moves_on(watcher, end);
    }

    fn moves_on(&mut self, watcher: u64, to: Position) {
        let at = self.watchers.entry(watcher).or_insert(to);
        *at = to.max(*at);
    }

    /// The events after the one position and before the other.
    fn between(&self, after: Position, before: Position) -> impl Iterator<Item = &PositionedEvent> {
        let start = self.events.partition_point(|event| event.position <= after);
        let end = self.events.partition_point(|event| event.position < before);
        self.events.range(start..end.max(start))
    }
}
