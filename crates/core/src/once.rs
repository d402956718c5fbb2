//! Exactly once: a request that is repeated gets the answer it got before, and is never applied again.
//!
//! A session remembers each answer until its client says that it has seen it, and afterwards only that the number is done
//! with. So the memory is bounded by what is in flight, not by how long the session lives.

use crate::bounds::{self, Bound};
use crate::command::{Request, Seen};
use crate::digest::{Digest, Term};
use crate::outcome::{Outcome, Refusal, Repeat};
use crate::planted;
use crate::record::{AnswerRecord, SessionRecord};
use crate::session::Session;
use crate::state::LockState;
use crate::words::{Arrival, LogicalMs, RequestNumber, SessionId};

/// An answer that its session has not said to have seen.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) number: RequestNumber,
    pub(crate) answered_at: LogicalMs,
    pub(crate) outcome: Outcome,
    /// A cancel has given back the count that this answer granted.
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

/// Who asks: every request is known by these two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) session: SessionId,
    pub(crate) number: RequestNumber,
}

/// What a session knows of a request number.
pub(crate) enum Known {
    New,
    Waiting(Arrival),
    Answered(usize),
    Seen,
}

impl Session {
    /// What is known of a number.
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

    /// Remembers an answer until it is seen.
    pub(crate) fn remember(&mut self, record: AnswerRecord, digest: &mut Digest) {
        let AnswerRecord { session, number, answered_at, outcome, given_back } = record;
        let mut answer = Answer { number, answered_at, outcome, given_back, term: Term::default() };
        answer.digest(session, digest);
        let at = self.answers.partition_point(|other| other.number < number);
        self.answers.insert(at, answer);
    }

    /// Takes note of which answers the client has seen, and forgets those.
    pub(crate) fn acknowledge(&mut self, seen: &Seen, digest: &mut Digest) -> Result<(), Refusal> {
        let Some(news) = self.news(seen)? else { return Ok(()) };
        self.answers.retain(|answer| {
            let forget = news.covers(answer.number);
            if forget {
                digest.take(answer.term);
            }
            !forget
        });
        self.record.seen_mark = news.mark;
        self.record.seen_ranges = news.ranges;
        self.digest_seen(digest);
        Ok(())
    }

    /// What is seen in all if the client is believed, unless it says nothing new.
    fn news(&self, seen: &Seen) -> Result<Option<SeenNumbers>, Refusal> {
        if seen.ranges.iter().any(|(first, last)| *first == 0 || first > last) {
            return Err(Refusal::BadNumber);
        }
        let is_known =
            |(first, last): &(u64, u64)| self.record.seen_ranges.iter().any(|(a, b)| a <= first && last <= b);
        if seen.mark <= self.record.seen_mark && seen.ranges.iter().all(is_known) {
            return Ok(None);
        }
        let news = SeenNumbers::merge(&self.record, seen);
        if let Some((number, _)) = self.waits.iter().find(|(number, _)| news.covers(*number)) {
            return Err(Refusal::SeenWhileWaiting(*number));
        }
        if news.ranges.len() > bounds::SEEN_RANGES_MAX {
            return Err(Refusal::Bound(Bound::SeenRanges));
        }
        Ok(Some(news))
    }
}

/// Request numbers that are done with: all up to the mark, and ranges above it that rise and touch neither each other nor
/// the mark.
struct SeenNumbers {
    mark: u64,
    ranges: Vec<(u64, u64)>,
}

impl SeenNumbers {
    /// What a session has seen, with what a message adds.
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

/// Whether a number is at or below the mark or in one of the ranges, which rise.
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

    /// Whether a request would be done if it came now, for those that must know before anything changes.
    pub(crate) fn would_do(&self, request: &Request) -> bool {
        let Some(session) = self.sessions.get(&request.session) else { return false };
        let Ok(news) = session.news(&request.seen) else { return false };
        let is_seen = |number| news.as_ref().is_some_and(|news| news.covers(number));
        session.check_epoch(request.epoch).is_ok()
            && request.number.0 > 0
            && matches!(session.known(request.number), Known::New)
            && !is_seen(request.number)
            && session.answers.iter().filter(|answer| !is_seen(answer.number)).count() < bounds::UNSEEN_ANSWERS_MAX
    }

    /// Decides whether a request is to be done (`None`) or was answered before.
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

    /// Remembers what a request was told, as of this entry.
    pub(crate) fn remember(&mut self, asker: Asker, outcome: Outcome) {
        let Asker { session, number } = asker;
        let record = AnswerRecord { session, number, answered_at: self.stamp, outcome, given_back: false };
        let session = self.sessions.get_mut(&session).expect("who is answered lives");
        session.remember(record, &mut self.digest);
    }

    /// Whether the grant that an answer gave still stands.
    pub(crate) fn grant_stands(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Granted { grant, .. } | Outcome::Converted { grant, .. } => self.grants.contains_key(grant),
            _ => false,
        }
    }
}
