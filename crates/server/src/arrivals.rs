//! When the operations arrived that are not answered yet, to measure how long an answer takes.
//!
//! Each tier numbers its tickets in ascending order, and answers operations in that order. So it is enough to keep, for each instant of
//! arrival, the first ticket: no entry for each operation, and nothing to look up by hash.

use std::collections::VecDeque;
use std::time::Duration;

use fencepost_core::{Nanos, Ticket};

/// The arrivals of one tier.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The first ticket of each instant, in ascending order. Invariant: bounded by the operations that wait for an answer, because
    /// every answer drops the instants before its own.
    runs: VecDeque<(Ticket, Nanos)>,
}

impl Arrivals {
    /// An operation that arrived at `at` got this ticket.
    pub(crate) fn note(&mut self, ticket: Ticket, at: Nanos) {
        if self.runs.back().is_none_or(|(_, last)| *last != at) {
            self.runs.push_back((ticket, at));
        }
    }

    /// How long the operation with this ticket took until `now`, when it is answered. `None` if its arrival was not noted.
    pub(crate) fn answered(&mut self, ticket: Ticket, now: Nanos) -> Option<Duration> {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= ticket) {
            self.runs.pop_front();
        }
        let (first, at) = *self.runs.front()?;
        (first <= ticket).then(|| now.since(at))
    }

    /// Forgets everything: the node no longer leads, or leads in another term.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_measured_from_the_message_that_brought_the_operation() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.answered(Ticket(1), Nanos(50)), None, "not noted");
        for (ticket, at) in [(3, 100), (4, 100), (6, 200), (7, 300)] {
            arrivals.note(Ticket(ticket), Nanos(at));
        }
        assert_eq!(arrivals.runs.len(), 3, "one for each instant");
        assert_eq!(arrivals.answered(Ticket(2), Nanos(400)), None, "older than all that were noted");
        assert_eq!(arrivals.answered(Ticket(3), Nanos(400)), Some(Duration::from_nanos(300)));
        assert_eq!(arrivals.answered(Ticket(4), Nanos(400)), Some(Duration::from_nanos(300)));
        assert_eq!(arrivals.answered(Ticket(6), Nanos(450)), Some(Duration::from_nanos(250)));
        assert_eq!(arrivals.runs.len(), 2, "answered instants are dropped");
        arrivals.clear();
        assert_eq!(arrivals.answered(Ticket(7), Nanos(500)), None);
    }
}
