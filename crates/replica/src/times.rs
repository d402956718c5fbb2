//! How long a node's commits and steps take, for operators. It decides nothing and reads no clock: the node passes instants.

#![allow(clippy::disallowed_types, reason = "the node has a clock, and passes what it read")]

use std::collections::VecDeque;
use std::time::Instant;

use fencepost_core::LogPosition;

use crate::histogram::Histogram;
use crate::ports::LogWrite;
use crate::replica::Replica;

/// The times of a node since the process began.
#[derive(Debug, Default)]
pub struct Times {
    commit: Histogram,
    apply: Histogram,
    /// The entries that this node proposed as leader and has not applied, and when it gave them out. Bounded as the replica bounds its
    /// entries in flight.
    proposed: VecDeque<(LogPosition, Instant)>,
}

impl Times {
    /// From the moment when this node, as leader, gave an entry out to disk and peers, to the step that applied it.
    pub fn commit(&self) -> &Histogram {
        &self.commit
    }

    /// Steps of the replica that applied entries. A step also encodes what it sends. It does not wait for disk or network.
    pub fn apply(&self) -> &Histogram {
        &self.apply
    }

    /// The replica gave out a write, at `now`. Notes the entries that it proposed itself.
    pub(crate) fn gave_out(&mut self, write: &LogWrite, replica: &Replica, now: Instant) {
        if replica.leader() != Some(replica.id()) {
            self.proposed.clear();
            return;
        }
        let term = replica.term();
        let own = write.entries.iter().filter(|entry| entry.term == term);
        self.proposed.extend(own.map(|entry| (LogPosition { index: entry.index, term }, now)));
    }

    /// A step that began and ended at these instants has applied entries.
    pub(crate) fn applied(&mut self, replica: &Replica, began: Instant, ended: Instant) {
        self.apply.observe(ended.saturating_duration_since(began));
        let (applied, term) = (replica.applied().index, replica.term());
        while let Some((position, at)) = self.proposed.pop_front_if(|(position, _)| position.index <= applied) {
            // The entry of another term may be lost, and another one may stand in its place.
            if position.term == term {
                self.commit.observe(began.saturating_duration_since(at));
            }
        }
    }
}
