//! What a session does to its own grants and requests: release, extend, set a value, cancel.
//!
//! Every one of these names a grant id or a request number and checks that it belongs to the session. Ends against the
//! holder's will are elsewhere: by time in `state.rs`, by administrators in `admin.rs`.

use crate::acquire::is_election;
use crate::command::{Action, JobReport, Operation};
use crate::deadlines::Due;
use crate::once::{Asker, Known};
use crate::outcome::{Held, Late, Outcome, Refusal};
use crate::planted;
use crate::state::LockState;
use crate::words::{GrantId, Millis, RequestNumber, Value};

impl LockState {
    /// `Ok` if the session holds the grant, else the answer to its request.
    ///
    /// The state keeps no trace of an ended grant, except in its session's list of losses. So a missing id that was given out
    /// during the session's life and is not in that list counts as released by this session.
    // Rule: owner-only
    pub(crate) fn check_owner(&self, asker: Asker, id: GrantId) -> Result<(), Outcome> {
        let session = &self.sessions[&asker.session].record;
        match self.grants.get(&id) {
            Some(grant) if grant.record.session != session.id && planted::only_its_session_acts() => {
                Err(Outcome::NotOwner)
            }
            Some(_) => Ok(()),
            None if id.0 > self.last_token || id.0 <= session.opened_after_token => Err(Outcome::NotOwner),
            None => Err(match session.lost.binary_search_by_key(&id, |(grant, _)| *grant) {
                Ok(at) => Outcome::Expired(session.lost[at].1.clone()),
                Err(_) => Outcome::AlreadyReleased,
            }),
        }
    }

    pub(crate) fn release(&mut self, asker: Asker, id: GrantId, report: Option<JobReport>) -> Outcome {
        match (self.check_owner(asker, id), report) {
            (Ok(()), None) => Outcome::Released { count_left: self.give_back(id) },
            (Ok(()), Some(report)) => self.report(id, report),
            (Err(answer), Some(report)) if report.completes() => {
                planted::completes_only_its_own(self, id, report);
                self.completed_before(id).unwrap_or(answer)
            }
            (Err(answer), _) => answer,
        }
    }

    /// Moves the end of a grant's `max_hold`.
    // Rule: max-hold
    pub(crate) fn extend(&mut self, asker: Asker, id: GrantId, max_hold: Millis) -> Outcome {
        if let Err(answer) = self.check_owner(asker, id) {
            return answer;
        }
        let grant = self.grants.get_mut(&id).expect("its owner was checked");
        let Some(before) = grant.record.hold_until else { return Outcome::Refused(Refusal::NothingToExtend) };
        let until = self.stamp.after(max_hold);
        grant.record.hold_until = Some(until);
        grant.digest(&mut self.digest);
        self.deadlines.remove(before, Due::Hold(id));
        self.deadlines.insert(until, Due::Hold(id));
        Outcome::Extended { until }
    }

    // Rule: election
    pub(crate) fn set_value(&mut self, asker: Asker, id: GrantId, value: Value) -> Outcome {
        if let Err(answer) = self.check_owner(asker, id) {
            return answer;
        }
        let grant = self.grants.get_mut(&id).expect("its owner was checked");
        let name = match &grant.record.held {
            Held::Permits { .. } => return Outcome::Refused(Refusal::NotALock),
            Held::Locks(locks) if !is_election(locks) => return Outcome::Refused(Refusal::NotAnElection),
            Held::Locks(locks) => locks[0].name.clone(),
        };
        grant.record.terms.get_or_insert_default().value = Some(value.clone());
        grant.digest(&mut self.digest);
        self.effects.announce_value_set(id, name, value);
        Outcome::ValueSet
    }

    /// Carries out the cancels of this entry whose request waits now. They take effect before successors are granted, so that
    /// no request is granted in the entry that carries its cancel. Returns each answer with its place in the batch.
    // Rule: within-an-entry
    pub(crate) fn cancel_waits(&mut self, operations: &[Operation]) -> Vec<(usize, Outcome)> {
        let mut answered = Vec::new();
        for (place, operation) in operations.iter().enumerate() {
            let Operation::Request(request) = operation else { continue };
            let Action::Cancel { request: target, .. } = request.action else { continue };
            let session = self.sessions.get(&request.session);
            let waits = session.is_some_and(|session| matches!(session.known(target), Known::Waiting(_)));
            if waits && self.would_carry_out(request) {
                let (outcome, _) = self.answer_once(request.clone());
                answered.push((place, outcome));
            }
        }
        answered
    }

    /// Ends the wait of a request, or makes its number void if it has not arrived. Log order decides between a cancel and a
    /// grant.
    // Rule: cancel
    pub(crate) fn cancel(&mut self, asker: Asker, target: RequestNumber, release_if_granted: bool) -> Outcome {
        if target == asker.number {
            return Outcome::Refused(Refusal::CancelsItself);
        }
        if target.0 == 0 {
            return Outcome::Refused(Refusal::BadNumber);
        }
        let session = &self.sessions[&asker.session];
        match session.known(target) {
            Known::Seen => Outcome::Refused(Refusal::AlreadySeen),
            Known::Waiting(arrival) => {
                self.end_wait(arrival, Outcome::Cancelled);
                planted::keep_wake_ups(&mut self.freed);
                Outcome::Cancelled
            }
            Known::New => {
                // When the request arrives, it finds this answer and is not carried out.
                self.remember(Asker { number: target, ..asker }, Outcome::Cancelled);
                Outcome::Cancelled
            }
            Known::Answered(at) => {
                let answer = &session.answers[at];
                let stands = self.grant_stands(&answer.outcome);
                match answer.outcome {
                    Outcome::Granted { grant, .. } if release_if_granted && stands && !answer.given_back => {
                        let session = self.sessions.get_mut(&asker.session).expect("a session that cancels is alive");
                        let answer = &mut session.answers[at];
                        answer.given_back = true;
                        answer.digest(asker.session, &mut self.digest);
                        Outcome::CancelReleased { grant, count_left: self.give_back(grant) }
                    }
                    Outcome::Granted { grant, .. } => Outcome::CancelTooLate(Late::Granted { grant, stands }),
                    Outcome::Converted { grant, .. } => Outcome::CancelTooLate(Late::Converted { grant, stands }),
                    Outcome::Cancelled => Outcome::Cancelled,
                    _ => Outcome::CancelTooLate(Late::Ended),
                }
            }
        }
    }
}
