//! I3: an acknowledged grant is in the log at its position, and held until an end event.
//!
//! Every answer that a client hears is the answer in the log for that request at that position. Every end is of a grant that is held,
//! with the same token, owner and locks. Every wait that ends is pushed to its session, as the events say. (That every successful
//! operation has an event is checked in `mod.rs`.)

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

use fencepost_core::{
    Event, GrantEnd, LogPosition, LogicalMs, Operation, Outcome, Push, Renewal, Repeat, RequestNumber, SessionId,
};

use crate::fact::LoggedEntry;

use super::findings::Findings;
use super::step::Step;

/// Answers and entries that are remembered. Older answers are not compared; the report counts them as `heard_too_late`.
const REMEMBERED_MAX: usize = 1_000_000;

/// The grant or rest that an event names is in the ledger, as the event describes it.
pub(super) fn what_ends_is_held(step: &Step<'_>, findings: &mut Findings) {
    let ledger = step.ledger;
    match step.event {
        Event::Ended { grant, token, session, owner, held, count_left, how, .. } => {
            let Some(before) = ledger.grants.get(grant) else {
                return findings.found("I3", || format!("a grant ended that was not held: {:?}", step.event));
            };
            let same = (before.token, before.session, &before.owner, &before.held) == (*token, *session, owner, held);
            findings.ensure(same, "I3", || {
                format!("the ended grant differs from the held grant {before:?}: {:?}", step.event)
            });
            let takes_one = match how {
                GrantEnd::Released => count_left + 1 == before.count,
                _ => *count_left == 0,
            };
            findings.ensure(takes_one, "I3", || {
                format!("a grant with count {} ended with a wrong count left: {:?}", before.count, step.event)
            });
        }
        Event::RestEnded { grant, .. } => {
            let known = ledger.rests.contains_key(grant) || ledger.is_restored;
            findings.ensure(known, "I3", || format!("a rest ended that did not exist: {:?}", step.event));
        }
        Event::Converted { grant, .. } | Event::Contended { grant, .. } | Event::ValueSet { grant, .. } => {
            findings.ensure(ledger.grants.contains_key(grant), "I3", || {
                format!("the event names a grant that is not held: {:?}", step.event)
            });
        }
        _ => {}
    }
}

/// The answers in the log, by position.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    /// A digest of each answer in the log: its index, its request and its outcome.
    answers: HashSet<u64, BuildHasherDefault<DefaultHasher>>,
    /// The index and digest of each answer in log order, to forget the oldest.
    in_order: VecDeque<(u64, u64)>,
    /// The entries, in order.
    entries: VecDeque<(LogPosition, LogicalMs)>,
    /// The waits that ended in this entry, according to the events, in order.
    ended_waits: Vec<(SessionId, RequestNumber, Outcome)>,
}

/// An answer. `Repeat` is set if it repeats an earlier one.
type Answer<'a> = (&'a Outcome, Option<Repeat>);

fn digest(index: u64, session: SessionId, number: Option<RequestNumber>, (outcome, repeat): Answer<'_>) -> u64 {
    let repeat = repeat.map(|repeat| (repeat.answered_at, repeat.stands));
    let mut hasher = DefaultHasher::new();
    (index, session, number, outcome, repeat).hash(&mut hasher);
    hasher.finish()
}

impl Acknowledged {
    pub(super) fn wait_ended(&mut self, session: SessionId, number: RequestNumber, outcome: Outcome) {
        self.ended_waits.push((session, number, outcome));
    }

    /// Remembers the answers of an entry, and checks that its pushes agree with its events.
    pub(super) fn entry(&mut self, entry: &LoggedEntry, findings: &mut Findings) {
        let renewals = entry.batch.renewals.iter().map(|renewal| {
            let (Renewal::KeepAlive { session, .. } | Renewal::Attach { session, .. }) = renewal;
            Some((*session, None))
        });
        let operations = entry.batch.operations.iter().map(|operation| match operation {
            Operation::Open(open) => Some((open.session, None)),
            Operation::Request(request) => Some((request.session, Some(request.number))),
            Operation::Admin(_) => None,
            #[cfg(feature = "made-up-version")]
            Operation::MadeUp(_) => None,
        });
        let index = entry.position.index;
        for (who, reply) in renewals.chain(operations).zip(&entry.effects.replies) {
            if let Some((session, number)) = who {
                self.said(index, digest(index, session, number, (&reply.outcome, reply.repeat)));
            }
        }
        let mut ended = std::mem::take(&mut self.ended_waits).into_iter();
        for push in &entry.effects.pushes {
            if let Push::Ended { session, number, outcome } = push {
                let by_event = ended.next();
                let same = by_event.as_ref().is_some_and(|(s, n, o)| (s, n, o) == (session, number, outcome));
                findings.ensure(same, "I3", || format!("the push {push:?} does not match the event {by_event:?}"));
                self.said(index, digest(index, *session, Some(*number), (outcome, None)));
            }
        }
        for left in ended {
            findings.found("I3", || format!("a wait ended without a push: {left:?}"));
        }
        self.entries.push_back((entry.position, entry.stamp));
        if self.entries.len() > REMEMBERED_MAX {
            self.entries.pop_front();
        }
    }

    fn said(&mut self, index: u64, digest: u64) {
        self.answers.insert(digest);
        self.in_order.push_back((index, digest));
        if self.in_order.len() > REMEMBERED_MAX
            && let Some((_, oldest)) = self.in_order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }

    /// A client heard an answer: the log must have the same answer at that position.
    pub(super) fn heard(
        &self,
        session: SessionId,
        number: Option<RequestNumber>,
        position: LogPosition,
        stamp: LogicalMs,
        answer: Answer<'_>,
        findings: &mut Findings,
    ) {
        let index = position.index;
        let what = || format!("{session:?} {number:?} heard {answer:?} at {position:?}, stamp {}", stamp.0);
        let oldest = |kept: Option<u64>| kept.is_none_or(|oldest| index <= oldest);
        let is_forgotten = (self.entries.len() == REMEMBERED_MAX
            && oldest(self.entries.front().map(|(it, _)| it.index)))
            || (self.in_order.len() == REMEMBERED_MAX && oldest(self.in_order.front().map(|(index, _)| *index)));
        if is_forgotten {
            findings.report.heard_too_late += 1;
            return;
        }
        findings.report.heard += 1;
        let at = self.entries.partition_point(|(it, _)| it.index < index);
        let entry = self.entries.get(at).filter(|(it, _)| *it == position);
        findings.ensure(entry.is_some_and(|(_, of)| *of == stamp), "I3", || {
            format!("the log has no such entry: {}", what())
        });
        let is_in_log = self.answers.contains(&digest(index, session, number, answer));
        findings.ensure(is_in_log, "I3", || format!("the log has no such answer: {}", what()));
    }
}
