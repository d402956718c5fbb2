//! How many sessions, grants and requests ended, and how, for operators. It decides nothing.
//!
//! Only the leader counts, and only entries of its own term. So the counts of all nodes add up to what happened in the cluster, and a
//! node that reads its log again after a restart counts nothing twice.

use std::time::Duration;

use fencepost_core::{Effects, Event, GrantEnd, Outcome, Refusal, SessionEnd};

use crate::histogram::Histogram;

/// What ended since the process began, in one tier.
#[derive(Debug, Default)]
pub struct Tally {
    /// Sessions that ended.
    pub sessions: SessionTally,
    /// Grants that ended.
    pub grants: GrantTally,
    /// Requests for locks and permits that ended.
    pub requests: RequestTally,
    /// How long the requests waited that were granted from a queue, in logical time: it stands still while no node leads.
    pub waits: Histogram,
}

/// Sessions that ended, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionTally {
    /// Their clients closed them.
    pub closed: u64,
    /// They were not renewed within their TTL.
    pub expired: u64,
    /// An administrator evicted them.
    pub evicted: u64,
}

/// Grants that ended, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantTally {
    /// Their holders gave them back, or closed the session.
    pub released: u64,
    /// Their session, or their own TTL, was not renewed.
    pub expired: u64,
    /// They reached their `max_hold`.
    pub max_hold: u64,
    /// An administrator broke them.
    pub broken: u64,
    /// An administrator evicted their session.
    pub evicted: u64,
}

/// Requests for locks and permits that ended, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTally {
    /// Granted, at once or from a queue.
    pub granted: u64,
    /// Not free, and the request did not wait.
    pub busy: u64,
    /// The wait reached its limit.
    pub timed_out: u64,
    /// The client cancelled the wait.
    pub cancelled: u64,
    /// The wait would have closed a cycle of owners, or had closed one.
    pub deadlock: u64,
    /// The job that it was for is completed.
    pub completed: u64,
    /// Refused because of a bound.
    pub bound: u64,
    /// Refused by another rule.
    pub refused: u64,
    /// The session ended during the wait.
    pub session_ended: u64,
}

impl Tally {
    /// Counts what one entry caused.
    pub(crate) fn note(&mut self, effects: &Effects) {
        for waited_ms in &effects.waited_ms {
            self.waits.observe(Duration::from_millis(*waited_ms));
        }
        for reply in &effects.replies {
            // No event tells of a busy answer.
            self.requests.busy += u64::from(matches!(reply.outcome, Outcome::Busy(_)) && reply.repeat.is_none());
        }
        for event in &effects.events {
            match event {
                Event::SessionEnded { how, .. } => self.sessions.note(how),
                Event::Ended { count_left: 0, how, .. } => self.grants.note(how),
                Event::Granted { .. } => self.requests.granted += 1,
                Event::NotGranted { request, outcome } if request.converts.is_none() => self.requests.note(outcome),
                _ => {}
            }
        }
    }
}

impl SessionTally {
    fn note(&mut self, how: &SessionEnd) {
        *match how {
            SessionEnd::Closed => &mut self.closed,
            SessionEnd::Expired => &mut self.expired,
            SessionEnd::Evicted(_) | SessionEnd::Restored => &mut self.evicted,
        } += 1;
    }
}

impl GrantTally {
    fn note(&mut self, how: &GrantEnd) {
        *match how {
            GrantEnd::Released | GrantEnd::Session(SessionEnd::Closed) => &mut self.released,
            GrantEnd::Ttl | GrantEnd::Session(SessionEnd::Expired) => &mut self.expired,
            GrantEnd::MaxHold => &mut self.max_hold,
            GrantEnd::Broken(_) => &mut self.broken,
            GrantEnd::Session(SessionEnd::Evicted(_) | SessionEnd::Restored) => &mut self.evicted,
        } += 1;
    }
}

impl RequestTally {
    fn note(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::TimedOut => &mut self.timed_out,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::Deadlock(_) => &mut self.deadlock,
            Outcome::SessionEnded(_) => &mut self.session_ended,
            Outcome::Completed { .. } => &mut self.completed,
            Outcome::Refused(Refusal::Bound(_)) => &mut self.bound,
            _ => &mut self.refused,
        } += 1;
    }
}
