//! I14: the positions in a watch stream rise strictly, without gaps or repeats. A resumed watch gets what follows, or is told that it is
//! compacted.
//!
//! A watcher's first fact says where it begins. From then on it must receive exactly the events of its prefix, as the log has them.

use std::collections::VecDeque;

use fencepost_core::{LogPosition, Position, PositionedEvent};

use crate::fact::LoggedEntry;

use super::findings::Findings;
use super::ledger::Map;

/// How many events are remembered. A watcher that is further behind is compared only from the oldest remembered event on.
const EVENTS_MAX: usize = 200_000;

/// The events of the log, and the position of each watcher.
// Rule: watch
#[derive(Debug, Default)]
pub(super) struct Watch {
    events: VecDeque<PositionedEvent>,
    /// Invariant: every event after this position is in `events`.
    complete_after: Position,
    watchers: Map<u64, Position>,
}

impl Watch {
    pub(super) fn entry(&mut self, entry: &LoggedEntry) {
        let LoggedEntry { position: LogPosition { index, .. }, stamp, wall_clock_ms, .. } = *entry;
        for (ordinal, event) in (0..).zip(&entry.effects.events) {
            if self.events.len() == EVENTS_MAX
                && let Some(oldest) = self.events.pop_front()
            {
                self.complete_after = oldest.position;
            }
            self.events.push_back(PositionedEvent {
                position: Position { index, ordinal },
                stamp,
                wall_clock_ms,
                event: event.clone(),
            });
        }
    }

    pub(super) fn restored(&mut self) {
        *self = Watch::default();
    }

    /// A watcher received an event: it must be the next one of its prefix, as the log has it.
    pub(super) fn given(&mut self, watcher: u64, prefix: &str, event: &PositionedEvent, findings: &mut Findings) {
        findings.report.watched += 1;
        let position = event.position;
        let what = || format!("watcher {watcher} of {prefix:?} received {event:?}");
        if let Some(last) = self.watchers.get(&watcher).copied() {
            findings.ensure(position > last, "I14", || {
                format!("{}, which is not after the watcher's last event at {last:?}", what())
            });
            let missed = self.between(last, position).find(|event| event.event.matches(prefix));
            findings.ensure(missed.is_none(), "I14", || format!("{}, but missed the earlier event {missed:?}", what()));
        }
        findings.ensure(event.event.matches(prefix), "I14", || format!("{}, which does not match the prefix", what()));
        if position > self.complete_after {
            let at = self.events.partition_point(|other| other.position < position);
            findings.ensure(self.events.get(at) == Some(event), "I14", || {
                format!("{}, which differs from the log", what())
            });
        }
        self.moves_on(watcher, position);
    }

    /// A watcher was told that earlier events are compacted, and where to continue.
    pub(super) fn compacted(&mut self, watcher: u64, oldest: Position, findings: &mut Findings) {
        findings.report.compacted += 1;
        let last = self.watchers.get(&watcher).copied();
        let is_ahead = last.is_none_or(|last| oldest > last);
        findings
            .ensure(is_ahead, "I14", || format!("watcher {watcher} at {last:?} is told to continue after {oldest:?}"));
        self.moves_on(watcher, oldest);
    }

    /// A watcher has seen everything up to this index: it must not have missed an event.
    pub(super) fn through(&mut self, watcher: u64, prefix: &str, index: u64, findings: &mut Findings) {
        let end = Position { index, ordinal: u32::MAX };
        if let Some(last) = self.watchers.get(&watcher).copied() {
            let missed = self.between(last, end).find(|event| event.event.matches(prefix));
            findings.ensure(missed.is_none(), "I14", || {
                format!("watcher {watcher} of {prefix:?} never received {missed:?}")
            });
        }
        self.moves_on(watcher, end);
    }

    fn moves_on(&mut self, watcher: u64, to: Position) {
        let at = self.watchers.entry(watcher).or_insert(to);
        *at = to.max(*at);
    }

    /// The events between two positions, both excluded.
    fn between(&self, after: Position, before: Position) -> impl Iterator<Item = &PositionedEvent> {
        let start = self.events.partition_point(|event| event.position <= after);
        let end = self.events.partition_point(|event| event.position < before);
        self.events.range(start..end.max(start))
    }
}
