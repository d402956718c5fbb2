//! Exactly once: a repeated request gets its old answer and is not carried out again.
//!
//! A session remembers each answer until its client acknowledges it. After that it remembers only that the number is seen,
//! as a mark and ranges. So memory is bounded by the requests in flight, not by the age of the session.

use crate::bounds::{self, Bound};
use crate::command::{Request, Seen};
use crate::digest::{Digest, Term};
use crate::outcome::{Outcome, Refusal, Repeat};
use crate::planted;
use crate::record::{AnswerRecord, SessionRecord};
use crate::session::Session;
use crate::state::LockState;
use crate::words::{Arrival, LogicalMs, RequestNumber, SessionId};

/// An answer that the client has not acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) number: RequestNumber,
    pub(crate) answered_at: LogicalMs,
    pub(crate) outcome: Outcome,
    /// Whether a cancel has given back the count that this answer granted.
    pub(crate) given_back: bool,
    pub(crate) term: Term,
}

impl Answer {
    pub(crate) fn digest(&mut self, session: SessionId, digest: &mut Digest) {
        let Answer { number, answered_at, outcome, given_back, term } = self;
        digest.put(term, &("answer", session, number, answered_at, outcome, given_back));
    }

    pub(crate) fn record(&self, session: SessionId) -> AnswerRecord {
        AnswerRecord {
            session,
            number: self.number,
            answered_at: self.answered_at,
            outcome: self.outcome.clone(),
            given_back: self.given_back,
        }
    }
}

/// The identity of a request: its session and its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) session: SessionId,
    pub(crate) number: RequestNumber,
}

/// What a session knows about a request number.
pub(crate) enum Known {
    /// Nothing: the request has not arrived before.
    New,
    /// The request waits.
    Waiting(Arrival),
    /// Its answer is remembered, at this index of `answers`.
    Answered(usize),
    /// The client has acknowledged its answer, which is forgotten.
    Seen,
}

impl Session {
    /// What the session knows about a request number.
    pub(crate) fn known(&self, number: RequestNumber) -> Known {
        if covers(self.record.seen_mark, &self.record.seen_ranges, number) {
            Known::Seen
        } else if let Ok(at) = self.answers.binary_search_by_key(&number, |answer| answer.number) {
            Known::Answered(at)
        } else if let Ok(at) = self.waits.binary_search_by_key(&number, |(number, _)| *number) {
            Known::Waiting(self.waits[at].1)
        } else {
            Known::New
        }
    }

    /// Remembers an answer until the client acknowledges it.
    pub(crate) fn remember(&mut self, record: AnswerRecord, digest: &mut Digest) {
        let AnswerRecord { session, number, answered_at, outcome, given_back } = record;
        let mut answer = Answer { number, answered_at, outcome, given_back, term: Term::default() };
        answer.digest(session, digest);
        let at = self.answers.partition_point(|other| other.number < number);
        self.answers.insert(at, answer);
    }

    /// Forgets the answers that the client has seen, and remembers their numbers as seen.
    pub(crate) fn acknowledge(&mut self, seen: &Seen, digest: &mut Digest) -> Result<(), Refusal> {
        let Some(merged) = self.merge_seen(seen)? else { return Ok(()) };
        self.answers.retain(|answer| {
            let forget = merged.covers(answer.number);
            if forget {
                digest.take(answer.term);
            }
            !forget
        });
        self.record.seen_mark = merged.mark;
        self.record.seen_ranges = merged.ranges;
        self.digest_seen(digest);
        Ok(())
    }

    /// The session's seen numbers merged with those of a message; `None` if the message adds nothing.
    fn merge_seen(&self, seen: &Seen) -> Result<Option<SeenNumbers>, Refusal> {
        if seen.ranges.iter().any(|(first, last)| *first == 0 || first > last) {
            return Err(Refusal::BadNumber);
        }
        let is_known =
            |(first, last): &(u64, u64)| self.record.seen_ranges.iter().any(|(a, b)| a <= first && last <= b);
        if seen.mark <= self.record.seen_mark && seen.ranges.iter().all(is_known) {
            return Ok(None);
        }
        let merged = SeenNumbers::merge(&self.record, seen);
        if let Some((number, _)) = self.waits.iter().find(|(number, _)| merged.covers(*number)) {
            return Err(Refusal::SeenWhileWaiting(*number));
        }
        if merged.ranges.len() > bounds::SEEN_RANGES_MAX {
            return Err(Refusal::Bound(Bound::SeenRanges));
        }
        Ok(Some(merged))
    }
}

/// Seen request numbers: all up to the mark, and ranges above it. Invariant: the ranges rise, and touch neither each other
/// nor the mark.
struct SeenNumbers {
    mark: u64,
    ranges: Vec<(u64, u64)>,
}

impl SeenNumbers {
    /// The seen numbers of a session, merged with those of a message.
    fn merge(known: &SessionRecord, seen: &Seen) -> SeenNumbers {
        let mut mark = known.seen_mark.max(seen.mark);
        let mut all: Vec<(u64, u64)> = known.seen_ranges.iter().chain(&seen.ranges).copied().collect();
        all.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (first, last) in all {
            if first <= mark.saturating_add(1) {
                mark = mark.max(last);
            } else if let Some(previous) = ranges.last_mut()
                && first <= previous.1.saturating_add(1)
            {
                previous.1 = previous.1.max(last);
            } else {
                ranges.push((first, last));
            }
        }
        SeenNumbers { mark, ranges }
    }

    fn covers(&self, number: RequestNumber) -> bool {
        covers(self.mark, &self.ranges, number)
    }
}

/// Whether a number is at or below the mark or in one of the ranges. The ranges must rise.
fn covers(mark: u64, ranges: &[(u64, u64)], number: RequestNumber) -> bool {
    let at = ranges.partition_point(|(_, last)| *last < number.0);
    number.0 <= mark || ranges.get(at).is_some_and(|(first, _)| *first <= number.0)
}

impl LockState {
    /// Answers a session's request. A repeat gets its old answer; a new request is carried out and its answer remembered.
    // Rule: exactly-once
    pub(crate) fn answer_once(&mut self, request: Request) -> (Outcome, Option<Repeat>) {
        let asker = Asker { session: request.session, number: request.number };
        match self.admit(&request) {
            Err(refusal) => return (Outcome::Refused(refusal), None),
            Ok(Some((outcome, repeat))) => return (outcome, Some(repeat)),
            Ok(None) => {}
        }
        let outcome = self.carry_out(asker, request.action);
        // A queued request is answered when its wait ends. A closed session remembers nothing.
        if !matches!(outcome, Outcome::Queued { .. } | Outcome::Closed) {
            self.remember(asker, outcome.clone());
        }
        (outcome, None)
    }

    /// Whether a request would be carried out if it came now: like `admit`, but without changing anything.
    pub(crate) fn would_carry_out(&self, request: &Request) -> bool {
        let Some(session) = self.sessions.get(&request.session) else { return false };
        let Ok(merged) = session.merge_seen(&request.seen) else { return false };
        let is_seen = |number| merged.as_ref().is_some_and(|merged| merged.covers(number));
        session.check_epoch(request.epoch).is_ok()
            && request.number.0 > 0
            && matches!(session.known(request.number), Known::New)
            && !is_seen(request.number)
            && session.answers.iter().filter(|answer| !is_seen(answer.number)).count() < bounds::UNSEEN_ANSWERS_MAX
    }

    /// Decides whether a request is to be carried out (`None`), or returns its old answer.
    fn admit(&mut self, request: &Request) -> Result<Option<(Outcome, Repeat)>, Refusal> {
        let session = self.sessions.get_mut(&request.session).ok_or(Refusal::NoSession)?;
        session.check_epoch(request.epoch)?;
        if request.number.0 == 0 {
            return Err(Refusal::BadNumber);
        }
        session.acknowledge(&request.seen, &mut self.digest)?;

        let session = &self.sessions[&request.session];
        match planted::as_remembered(session.known(request.number)) {
            Known::Seen => Err(Refusal::AlreadySeen),
            Known::Answered(at) => {
                let Answer { answered_at, outcome, .. } = &session.answers[at];
                let repeat = Repeat { answered_at: *answered_at, stands: self.grant_stands(outcome) };
                Ok(Some((outcome.clone(), repeat)))
            }
            Known::Waiting(arrival) => {
                let waiter = &self.waiters[&arrival].record;
                let queued = Outcome::Queued { arrival, unchecked: waiter.unchecked };
                Ok(Some((queued, Repeat { answered_at: waiter.queued_at, stands: false })))
            }
            Known::New if session.answers.len() >= bounds::UNSEEN_ANSWERS_MAX => {
                Err(Refusal::Bound(Bound::UnseenAnswers))
            }
            Known::New => Ok(None),
        }
    }

    /// Remembers the answer to a request, decided by this entry.
    pub(crate) fn remember(&mut self, asker: Asker, outcome: Outcome) {
        let Asker { session, number } = asker;
        let record = AnswerRecord { session, number, answered_at: self.stamp, outcome, given_back: false };
        let session = self.sessions.get_mut(&session).expect("an answered request has a living session");
        session.remember(record, &mut self.digest);
    }

    /// Whether the grant of an answer still stands. False for an answer without a grant.
    pub(crate) fn grant_stands(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Granted { grant, .. } | Outcome::Converted { grant, .. } => self.grants.contains_key(grant),
            _ => false,
        }
    }
}
