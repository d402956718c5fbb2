//! Jobs: work that is done once for each name and key, however many clients ask to do it.
//!
//! A job is (name, key). The lock on the name says which client works on it now; the job's record says whether it is done.
//! This file decides which keyed acquires are answered *completed*, what counts as an attempt, and when a job is completed.
//! The records are kept in `job_table.rs`.

use crate::acquire::is_election;
use crate::bounds::Bound;
use crate::command::{JobReport, JobTerms, Lock, Verdict};
use crate::event::{ActFacts, Event, JobFact};
use crate::once::Asker;
use crate::outcome::{GrantEnd, Held, Outcome, Refusal};
use crate::planted;
use crate::record::{
    AttemptEnd, AttemptRecord, CheckpointRecord, CompletionRecord, GrantRecord, JobRecord, WaiterRecord, Wants,
};
use crate::state::LockState;
use crate::words::{
    Arrival, GrantId, JobBytes, JobKey, Keep, Name, OwnerName, Principal, Reason, SessionId, Token, ToldReason,
};

impl GrantRecord {
    /// The job that the grant is for: its name, and its terms.
    pub fn job(&self) -> Option<(&Name, &JobTerms)> {
        let job = self.terms.as_ref()?.job.as_ref()?;
        match &self.held {
            Held::Locks(locks) => Some((&locks.first()?.name, job)),
            Held::Permits { .. } => None,
        }
    }
}

impl WaiterRecord {
    /// The job that the request is for: its name, and its terms.
    pub fn job(&self) -> Option<(&Name, &JobTerms)> {
        let job = self.terms.as_ref()?.job.as_ref()?;
        match &self.wants {
            Wants::Locks(locks) => Some((&locks.first()?.name, job)),
            Wants::Conversion { .. } | Wants::Permits { .. } => None,
        }
    }
}

impl JobReport {
    /// Whether it completes the job.
    pub(crate) fn completes(&self) -> bool {
        self.verdict != Verdict::Open
    }
}

impl JobRecord {
    /// The number of the attempt that a grant has begun.
    pub(crate) fn attempt_of(&self, grant: GrantId) -> Option<u64> {
        self.last.as_ref().is_some_and(|last| last.grant == grant).then_some(self.attempts)
    }

    /// The answer to a request for the job, if it is completed.
    pub(crate) fn completed(&self) -> Option<Outcome> {
        let CompletionRecord { token, succeeded, .. } = *self.completion.as_ref()?;
        Some(Outcome::Completed { token, succeeded })
    }
}

impl LockState {
    /// Whether a keyed acquire may go on. `Some` is its answer if the job is completed.
    // Rule: job-key
    pub(crate) fn may_take_job(
        &self,
        session: SessionId,
        owner: &Option<OwnerName>,
        locks: &[Lock],
        key: &JobKey,
    ) -> Result<Option<Outcome>, Refusal> {
        if !is_election(locks) {
            return Err(Refusal::KeyNeedsExclusive);
        }
        let lock = &locks[0];
        if let Some(completed) = self.completed(&lock.name, key) {
            return Ok(Some(completed));
        }
        if self.jobs_refused {
            return Err(Refusal::JobsNotAllowed);
        }
        let owner = owner.as_ref().and_then(|owner| self.sessions[&session].owners.get(owner));
        if let Some((grant, _)) = owner.and_then(|owner| self.own_grant_over(owner, lock)) {
            return Err(Refusal::KeyedReentry { name: lock.name.clone(), grant });
        }
        self.has_room_for_job(&lock.name)?;
        Ok(None)
    }

    /// Refuses one more held job if there is no room for what it may store. A completion never needs more room.
    // Rule: keep
    pub(crate) fn has_room_for_job(&self, name: &Name) -> Result<(), Refusal> {
        self.jobs.full(name).map_or(Ok(()), |bound| Err(Refusal::Bound(bound)))
    }

    /// The answer to a request for a job that is completed.
    fn completed(&self, name: &Name, key: &JobKey) -> Option<Outcome> {
        self.jobs.get(name, key, self.stamp)?.completed()
    }

    /// Begins the attempt of a grant.
    // Rule: attempt
    pub(crate) fn begin(&mut self, asker: Asker, id: GrantId) -> Outcome {
        if let Err(answer) = self.check_owner(asker, id) {
            return answer;
        }
        match self.begin_attempt(id) {
            Ok(attempt) => Outcome::Begun { attempt },
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    /// Stores a checkpoint of a grant's job.
    // Rule: checkpoint
    pub(crate) fn checkpoint(&mut self, asker: Asker, id: GrantId, bytes: JobBytes) -> Outcome {
        if let Err(answer) = self.check_owner(asker, id) {
            return answer;
        }
        let attempt = match self.begin_attempt(id) {
            Ok(attempt) => attempt,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let (name, key) = self.job_of(id).expect("the attempt of a job has begun");
        let key_changed = planted::checkpointed_key(&key);
        let at = self.stamp;
        self.change_job(&name, &key_changed, |record| {
            record.checkpoint = Some(CheckpointRecord { attempt, at, bytes })
        });
        self.announce_job(&name, &key, JobFact::Checkpointed { grant: id, attempt });
        Outcome::Checkpointed { attempt }
    }

    /// Ends a grant with a report about its job. The caller has checked its owner.
    // Rule: completion
    pub(crate) fn report(&mut self, id: GrantId, report: JobReport) -> Outcome {
        if self.grants[&id].record.count > 1 {
            return Outcome::Refused(Refusal::CountAboveOne);
        }
        if let Err(refusal) = self.begin_attempt(id) {
            return Outcome::Refused(refusal);
        }
        let (name, key) = self.job_of(id).expect("the attempt of a job has begun");
        if !planted::completion_has_room(self.jobs.fill_of(&name).records) {
            return Outcome::Refused(Refusal::Bound(Bound::JobsPerName));
        }
        let JobReport { verdict, bytes } = report;
        let at = self.stamp;
        if verdict == Verdict::Open {
            let how = GrantEnd::Released;
            self.change_job(&name, &key, |record| {
                let last = record.last.as_mut().expect("the attempt has begun");
                last.ended = Some(AttemptEnd { at, how, error: bytes });
            });
            return Outcome::Released { count_left: self.give_back(id) };
        }
        let token = Some(self.grants[&id].record.token);
        let succeeded = verdict == Verdict::Succeeded;
        self.complete(&name, &key, CompletionRecord { at, succeeded, result: bytes, token, by: None });
        self.end_grant(id, &GrantEnd::Released);
        self.answer_completed(&name, &key);
        Outcome::Completed { token, succeeded }
    }

    /// The answer to a completion of a grant that has ended, if that grant completed its job.
    // Rule: completion
    pub(crate) fn completed_before(&self, id: GrantId) -> Option<Outcome> {
        let (name, key) = self.jobs.completed_by(id)?;
        self.completed(name, key)
    }

    /// Begins the attempt of a grant, unless it has begun. Returns its number.
    fn begin_attempt(&mut self, id: GrantId) -> Result<u64, Refusal> {
        let (name, key) = self.job_of(id).ok_or(Refusal::NoJob)?;
        let begun = self.jobs.get(&name, &key, self.stamp).and_then(|record| record.attempt_of(id));
        if let Some(attempt) = begun {
            return Ok(attempt);
        }
        let GrantRecord { token, session, .. } = self.grants[&id].record;
        let began_at = self.stamp;
        let attempt = self.change_job(&name, &key, |record| {
            record.attempts += 1;
            record.last = Some(AttemptRecord { grant: id, token, session, began_at, ended: None });
            record.attempts
        });
        self.announce_job(&name, &key, JobFact::Begun { grant: id, attempt });
        Ok(attempt)
    }

    /// Records the completion of a job.
    fn complete(&mut self, name: &Name, key: &JobKey, completion: CompletionRecord) {
        let fact = JobFact::Completed { token: completion.token, succeeded: completion.succeeded };
        self.change_job(name, key, |record| record.completion = Some(completion));
        self.announce_job(name, key, fact);
    }

    /// Answers all requests that wait for a completed job, before any successor is granted.
    // Rule: completion
    fn answer_completed(&mut self, name: &Name, key: &JobKey) {
        let Some(outcome) = self.completed(name, key) else { return };
        let waiting: Vec<Arrival> = planted::waiters_of_completed(self.jobs.waiting(name, key));
        for arrival in waiting {
            self.end_wait(arrival, outcome.clone());
        }
    }

    /// Called when a grant for a job begins to stand.
    pub(crate) fn hold_job(&mut self, id: GrantId) {
        let Some((name, key)) = self.job_of(id) else { return };
        let before = self.nearly_full(&name);
        self.jobs.hold(&name, &key, id, self.stamp, &mut self.digest);
        if planted::unbegun_grant_counts() {
            let _ = self.begin_attempt(id);
        }
        self.announce_fill(&name, before);
    }

    /// Called when a grant for a job ends. The attempt that it began ends with it, and the time begins for which the record is
    /// kept.
    // Rule: attempt
    // Rule: keep
    pub(crate) fn unhold_job(&mut self, ended: &GrantRecord, how: &GrantEnd) {
        let Some((name, terms)) = ended.job() else { return };
        self.jobs.unhold(name);
        if self.jobs.get(name, &terms.key, self.stamp).is_none() {
            return;
        }
        let at = self.stamp;
        self.change_job(name, &terms.key, |record| {
            let completed_it = record.completion.as_ref().is_some_and(|completion| completion.token.is_some());
            if let Some(last) = &mut record.last
                && last.grant == ended.id
                && last.ended.is_none()
                && !completed_it
            {
                last.ended = Some(AttemptEnd { at, how: how.clone(), error: JobBytes::default() });
            }
            record.until = Some(at.after(terms.keep.millis()));
        });
    }

    /// An administrator completes a job. Its holder is broken at that position.
    // Rule: job-acts
    pub(crate) fn complete_job(
        &mut self,
        by: &Principal,
        reason: &Reason,
        name: Name,
        key: JobKey,
        keep: Keep,
    ) -> Result<(), Outcome> {
        if self.completed(&name, &key).is_some() {
            return Ok(());
        }
        let holder = self.jobs.held(&name).filter(|(_, held)| *held == key).map(|(grant, _)| *grant);
        if holder.is_none() && self.jobs.get(&name, &key, self.stamp).is_none() {
            self.has_room_for_job(&name).map_err(Outcome::Refused)?;
        }
        self.effects.announce_act(by, reason, ActFacts::CompletedJob { name: name.clone(), key: key.clone() });
        let (at, by, until) = (self.stamp, Some(by.clone()), self.stamp.after(keep.millis()));
        self.complete(
            &name,
            &key,
            CompletionRecord { at, succeeded: true, result: JobBytes::default(), token: None, by },
        );
        match holder {
            Some(grant) => self.end_grant(grant, &GrantEnd::Broken(ToldReason::from(reason))),
            None => self.change_job(&name, &key, |record| record.until = Some(until)),
        }
        self.answer_completed(&name, &key);
        Ok(())
    }

    /// An administrator forgets a job that is not held.
    // Rule: job-acts
    pub(crate) fn forget_job(
        &mut self,
        by: &Principal,
        reason: &Reason,
        name: Name,
        key: JobKey,
    ) -> Result<(), Outcome> {
        if let Some((grant, _)) = self.jobs.held(&name).filter(|(_, held)| *held == key) {
            return Err(Outcome::Refused(Refusal::JobHeld { grant: *grant }));
        }
        self.jobs.get(&name, &key, self.stamp).ok_or(Outcome::NotFound)?;
        self.jobs.remove(&name, &key, &mut self.digest);
        self.effects.announce_act(by, reason, ActFacts::ForgotJob { name, key });
        Ok(())
    }

    /// The name and the key of the job that a grant is for.
    fn job_of(&self, id: GrantId) -> Option<(Name, JobKey)> {
        let (name, terms) = self.grants[&id].record.job()?;
        Some((name.clone(), terms.key.clone()))
    }

    /// Changes the record of a job, and says so if that fills a bound.
    fn change_job<T>(&mut self, name: &Name, key: &JobKey, change: impl FnOnce(&mut JobRecord) -> T) -> T {
        let before = self.nearly_full(name);
        let result = self.jobs.change(name, key, self.stamp, &mut self.digest, change);
        self.announce_fill(name, before);
        result
    }

    fn announce_job(&mut self, name: &Name, key: &JobKey, what: JobFact) {
        self.effects.events.push(Event::Job { name: name.clone(), key: key.clone(), what });
    }

    /// Whether the jobs of a name, and those of the group, take more than four fifths of a bound.
    fn nearly_full(&self, name: &Name) -> [bool; 2] {
        [self.jobs.fill_of(name).is_nearly_full(), self.jobs.fill().is_nearly_full()]
    }

    /// Announces the bounds of which the jobs now take more than four fifths, and did not before.
    fn announce_fill(&mut self, name: &Name, before: [bool; 2]) {
        let now = self.nearly_full(name);
        let fills = [(Some(name.clone()), self.jobs.fill_of(name)), (None, self.jobs.fill())];
        for ((was, is), (name, fill)) in before.into_iter().zip(now).zip(fills) {
            if is && !was {
                self.effects.events.push(Event::JobsFill { name, records: fill.records, bytes: fill.bytes });
            }
        }
    }
}

/// What the planted faults do wrong, and no rule does.
impl LockState {
    /// Completes the job that a grant has begun, although the grant has ended.
    pub(crate) fn complete_without_owner(&mut self, id: GrantId, report: JobReport) {
        let begun = self.jobs.records().find(|job| job.last.as_ref().is_some_and(|last| last.grant == id));
        let Some(JobRecord { name, key, completion: None, .. }) = begun.cloned() else { return };
        let (at, succeeded) = (self.stamp, report.verdict == Verdict::Succeeded);
        let token = Some(Token(id.0));
        self.complete(&name, &key, CompletionRecord { at, succeeded, result: report.bytes, token, by: None });
    }

    /// Forgets how often each job was attempted.
    pub(crate) fn lose_attempts(&mut self) {
        let open: Vec<(Name, JobKey)> = self.jobs.records().map(|job| (job.name.clone(), job.key.clone())).collect();
        for (name, key) in open {
            self.change_job(&name, &key, |record| record.attempts = record.attempts.min(1));
        }
    }
}
