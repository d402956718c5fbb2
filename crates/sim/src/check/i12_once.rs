//! I12: each request number of a session has one effect, and a retry gets the same answer.
//!
//! The checker remembers the first answer to each request, and compares every repeat with it.

use std::collections::BTreeMap;

use fencepost_core::{
    Action, Arrival, Bound, LogicalMs, Outcome, Refusal, Repeat, Reply, Request, RequestNumber, SessionId,
};

use super::findings::Findings;
use super::ledger::Map;

/// How many answers of one session are remembered. The lowest numbers are forgotten first. More than a session may have unseen.
const ANSWERS_MAX: usize = 4_096;

/// The first answer to each request.
// Rule: exactly-once
#[derive(Debug, Default)]
pub(super) struct Once {
    sessions: Map<SessionId, BTreeMap<RequestNumber, Told>>,
}

/// The answers to one request.
#[derive(Debug, Default)]
struct Told {
    queued: Option<(Arrival, LogicalMs)>,
    answer: Option<(Outcome, LogicalMs)>,
    /// A cancel gets this answer whether it was performed or not, so a later performance is not a second one.
    is_unsure: bool,
}

/// Whether the request was refused without being performed.
pub(super) fn is_not_performed(outcome: &Outcome) -> bool {
    let Outcome::Refused(refusal) = outcome else { return false };
    match refusal {
        Refusal::NoSession
        | Refusal::WrongEpoch { .. }
        | Refusal::AlreadySeen
        | Refusal::SeenWhileWaiting(_)
        | Refusal::BadNumber => true,
        Refusal::Bound(bound) => matches!(bound, Bound::SeenRanges | Bound::UnseenAnswers),
        _ => false,
    }
}

impl Once {
    /// Forgets an ended session: its request numbers may be used again.
    pub(super) fn session_ended(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    pub(super) fn restored(&mut self) {
        self.sessions.clear();
    }

    /// Whether a request was answered.
    pub(super) fn knows(&self, session: SessionId, number: RequestNumber) -> bool {
        self.sessions.get(&session).is_some_and(|answers| answers.contains_key(&number))
    }

    fn told(&mut self, session: SessionId, number: RequestNumber) -> &mut Told {
        let answers = self.sessions.entry(session).or_default();
        if answers.len() > ANSWERS_MAX {
            answers.pop_first();
        }
        answers.entry(number).or_default()
    }

    /// Checks the answer to a request. Returns whether it was performed now, for the first time.
    pub(super) fn replied(
        &mut self,
        request: &Request,
        reply: &Reply,
        stamp: LogicalMs,
        findings: &mut Findings,
    ) -> bool {
        if let Some(repeat) = &reply.repeat {
            self.repeated(request, &reply.outcome, repeat, findings);
            return false;
        }
        let is_cancel = matches!(request.action, Action::Cancel { .. });
        let is_unsure =
            is_cancel && matches!(reply.outcome, Outcome::Refused(Refusal::AlreadySeen | Refusal::BadNumber));
        if is_not_performed(&reply.outcome) && !is_unsure {
            return false;
        }
        let told = self.told(request.session, request.number);
        let is_first = told.queued.is_none() && (told.answer.is_none() || told.is_unsure);
        if is_unsure && !is_first {
            return false;
        }
        findings.ensure(is_first, "I12", || {
            format!("a request was performed twice, now with {:?}, before with {told:?}: {request:?}", reply.outcome)
        });
        match reply.outcome {
            Outcome::Queued { arrival, .. } => told.queued = Some((arrival, stamp)),
            _ => told.answer = Some((reply.outcome.clone(), stamp)),
        }
        told.is_unsure = is_unsure;
        // A cancel that comes before its request uses up the request's number.
        // Rule: cancel
        if let Action::Cancel { request: target, .. } = request.action
            && reply.outcome == Outcome::Cancelled
        {
            let target = self.told(request.session, target);
            if target.queued.is_none() && target.answer.is_none() {
                target.answer = Some((Outcome::Cancelled, stamp));
            }
        }
        is_first
    }

    fn repeated(&mut self, request: &Request, outcome: &Outcome, repeat: &Repeat, findings: &mut Findings) {
        findings.report.repeats += 1;
        let answers = self.sessions.get(&request.session);
        let Some(told) = answers.and_then(|answers| answers.get(&request.number)) else {
            let is_forgotten = answers.is_some_and(|answers| answers.len() >= ANSWERS_MAX);
            return findings.ensure(is_forgotten, "I12", || {
                format!("the answer {outcome:?} repeats an answer that was never given: {request:?}")
            });
        };
        let same = match (outcome, &told.answer) {
            (Outcome::Queued { arrival, .. }, None) => told.queued == Some((*arrival, repeat.answered_at)),
            (outcome, Some((first, at))) => outcome == first && *at == repeat.answered_at,
            _ => false,
        };
        findings.ensure(same, "I12", || {
            format!("the repeated answer {outcome:?}, {repeat:?} differs from the first answer {told:?}: {request:?}")
        });
    }

    /// A wait ended with this outcome.
    pub(super) fn wait_ended(
        &mut self,
        session: SessionId,
        number: RequestNumber,
        outcome: Outcome,
        stamp: LogicalMs,
        findings: &mut Findings,
    ) {
        let told = self.told(session, number);
        findings.ensure(told.answer.is_none(), "I12", || {
            format!("the wait {number:?} of {session:?} ends with {outcome:?}, but was answered before: {told:?}")
        });
        told.answer = Some((outcome, stamp));
    }
}
