//! Jobs in the model: which keyed acquires are answered *completed*, what begins an attempt, and when a record is gone.
//!
//! Who holds a job, who waits for it and how much room the records take is found by looking through the lists each time.

use fencepost_core::*;

use super::Model;
use super::asking::is_ancestor;
use super::ending::told;

/// The job that terms and locks are for.
fn job_in<'a>(terms: &'a Option<Box<Terms>>, held: &Held) -> Option<(Name, &'a JobTerms)> {
    let job = terms.as_ref()?.job.as_ref()?;
    match held {
        Held::Locks(locks) => Some((locks[0].name.clone(), job)),
        Held::Permits { .. } => None,
    }
}

/// The job that a grant is for.
pub fn job_of(grant: &GrantRecord) -> Option<(Name, &JobTerms)> {
    job_in(&grant.terms, &grant.held)
}

/// The job that a request waits for.
pub fn job_of_waiter(waiter: &WaiterRecord) -> Option<(Name, &JobTerms)> {
    job_in(&waiter.terms, &waiter.wants.held())
}

/// The bytes that a record counts for.
pub fn bytes_of(job: &JobRecord) -> u64 {
    let mut bytes = bounds::JOB_RECORD_BYTES + job.name.as_str().len() + job.key.as_str().len();
    if let Some(checkpoint) = &job.checkpoint {
        bytes += checkpoint.bytes.as_bytes().len();
    }
    if let Some(completion) = &job.completion {
        bytes += completion.result.as_bytes().len();
    }
    if let Some(AttemptRecord { ended: Some(ended), .. }) = &job.last {
        bytes += ended.error.as_bytes().len();
    }
    bytes as u64
}

fn completed(job: &JobRecord) -> Option<Outcome> {
    let completion = job.completion.as_ref()?;
    Some(Outcome::Completed { token: completion.token, succeeded: completion.succeeded })
}

impl Model {
    /// The record of a job. A record whose time is over counts as gone.
    // Rule: keep
    pub fn job(&self, name: &Name, key: &JobKey) -> Option<&JobRecord> {
        let job = self.jobs.iter().find(|job| job.name == *name && job.key == *key)?;
        let over = job.until.is_some_and(|until| until <= self.now());
        (!over).then_some(job)
    }

    /// Removes the record of a job, and returns it unless its time is over.
    fn take_job(&mut self, name: &Name, key: &JobKey) -> Option<JobRecord> {
        let job = self.job(name, key).cloned();
        self.jobs.retain(|job| job.name != *name || job.key != *key);
        job
    }

    /// Changes the record of a job. A job without a record gets one first.
    fn change_job(&mut self, name: &Name, key: &JobKey, change: impl FnOnce(&mut JobRecord)) {
        let before = self.nearly_full(name);
        let mut job = self.take_job(name, key).unwrap_or_else(|| JobRecord {
            name: name.clone(),
            key: key.clone(),
            attempts: 0,
            last: None,
            checkpoint: None,
            completion: None,
            until: None,
        });
        change(&mut job);
        self.jobs.push(job);
        self.announce_fill(name, before);
    }

    fn job_event(&mut self, name: &Name, key: &JobKey, what: JobFact) {
        self.event(Event::Job { name: name.clone(), key: key.clone(), what });
    }

    /// The records that leave with an entry.
    // Rule: keep
    pub fn forget_ended_jobs(&mut self) {
        let now = self.now();
        let mut over: Vec<(LogicalMs, Name, JobKey)> = Vec::new();
        for job in &self.jobs {
            if let Some(until) = job.until.filter(|until| *until <= now) {
                over.push((until, job.name.clone(), job.key.clone()));
            }
        }
        over.sort();
        over.truncate(bounds::JOBS_FORGOTTEN_PER_ENTRY_MAX);
        self.jobs.retain(|job| !over.iter().any(|(_, name, key)| job.name == *name && job.key == *key));
    }

    /// The grant of the client that works on a job now.
    fn job_holder(&self, name: &Name, key: &JobKey) -> Option<GrantId> {
        let holder =
            self.grants.iter().find(|grant| job_of(grant).is_some_and(|(held, job)| held == *name && job.key == *key));
        holder.map(|grant| grant.id)
    }

    /// The answer to a keyed acquire that may not go on.
    // Rule: job-key, restore
    pub fn answer_for_job(&self, candidate: &WaiterRecord, acquire: &Acquire) -> Option<Outcome> {
        let key = &acquire.terms.job.as_ref()?.key;
        let refused = |refusal| Some(Outcome::Refused(refusal));
        let [lock] = acquire.locks.as_slice() else {
            return refused(Refusal::KeyNeedsExclusive);
        };
        if lock.mode != LockMode::Exclusive {
            return refused(Refusal::KeyNeedsExclusive);
        }
        if let Some(outcome) = self.job(&lock.name, key).and_then(completed) {
            return Some(outcome);
        }
        if self.header.jobs_refused {
            return refused(Refusal::JobsNotAllowed);
        }
        // The owner's lock on the name itself, in any mode, or else an exclusive one on the nearest ancestor.
        let mut own: Vec<(&Lock, GrantId)> = Vec::new();
        for grant in self.grants.iter().filter(|grant| self.is_own(candidate, grant)) {
            if let Held::Locks(locks) = &grant.held {
                own.extend(locks.iter().map(|lock| (lock, grant.id)));
            }
        }
        let itself = own.iter().find(|(held, _)| held.name == lock.name);
        let covers = |held: &Lock| is_ancestor(&held.name, &lock.name) && held.mode == LockMode::Exclusive;
        let above = own.iter().filter(|(held, _)| covers(held)).max_by_key(|(held, _)| held.name.as_str().len());
        if let Some((_, grant)) = itself.or(above) {
            return refused(Refusal::KeyedReentry { name: lock.name.clone(), grant: *grant });
        }
        self.full_bound(&lock.name).map(|bound| Outcome::Refused(Refusal::Bound(bound)))
    }

    /// What counts for the bounds of a name, or for those of the group: records and bytes, with the room that is reserved.
    fn fill(&self, name: Option<&Name>) -> (u64, u64) {
        let counts = |other: &Name| name.is_none_or(|name| other == name);
        let records = self.jobs.iter().filter(|job| counts(&job.name));
        let (mut count, mut bytes) = records.fold((0, 0), |(count, bytes), job| (count + 1, bytes + bytes_of(job)));
        for grant in &self.grants {
            if job_of(grant).is_some_and(|(name, _)| counts(&name)) {
                count += 1;
                bytes += bounds::JOB_ROOM_BYTES as u64;
            }
        }
        (count, bytes)
    }

    /// The bound that one more held job would exceed.
    // Rule: keep
    pub fn full_bound(&self, name: &Name) -> Option<Bound> {
        let room = bounds::JOB_ROOM_BYTES;
        let (of_name, of_name_bytes) = self.fill(Some(name));
        let (all, all_bytes) = self.fill(None);
        if of_name as usize >= bounds::JOBS_PER_NAME_MAX {
            Some(Bound::JobsPerName)
        } else if of_name_bytes as usize + room > bounds::JOB_BYTES_PER_NAME_MAX {
            Some(Bound::JobBytesPerName)
        } else if all as usize >= bounds::JOBS_MAX {
            Some(Bound::Jobs)
        } else if all_bytes as usize + room > bounds::JOB_BYTES_TOTAL_MAX {
            Some(Bound::JobBytesTotal)
        } else {
            None
        }
    }

    /// Whether more than four fifths of a bound are in use, for the name and for the group.
    pub fn nearly_full(&self, name: &Name) -> (bool, bool) {
        let above = |(records, bytes): (u64, u64), records_max: usize, bytes_max: usize| {
            records > records_max as u64 * 4 / 5 || bytes > bytes_max as u64 * 4 / 5
        };
        let of_name = above(self.fill(Some(name)), bounds::JOBS_PER_NAME_MAX, bounds::JOB_BYTES_PER_NAME_MAX);
        (of_name, above(self.fill(None), bounds::JOBS_MAX, bounds::JOB_BYTES_TOTAL_MAX))
    }

    pub fn announce_fill(&mut self, name: &Name, before: (bool, bool)) {
        let now = self.nearly_full(name);
        if now.0 && !before.0 {
            let (records, bytes) = self.fill(Some(name));
            self.event(Event::JobsFill { name: Some(name.clone()), records, bytes });
        }
        if now.1 && !before.1 {
            let (records, bytes) = self.fill(None);
            self.event(Event::JobsFill { name: None, records, bytes });
        }
    }

    /// Called with each new grant. The record of its job has no end while it stands.
    // Rule: keep
    pub fn add_grant(&mut self, grant: GrantRecord) {
        let Some((name, job)) = job_of(&grant) else {
            self.grants.push(grant);
            return;
        };
        let (before, key) = (self.nearly_full(&name), job.key.clone());
        if let Some(mut job) = self.take_job(&name, &key) {
            job.until = None;
            self.jobs.push(job);
        }
        self.grants.push(grant);
        self.announce_fill(&name, before);
    }

    /// Called with each grant that has ended.
    // Rule: attempt, keep
    pub fn end_job(&mut self, grant: &GrantRecord, how: &GrantEnd) {
        let Some((name, terms)) = job_of(grant) else { return };
        let Some(mut job) = self.take_job(&name, &terms.key) else { return };
        let at = self.now();
        let completed_by_grant = job.completion.as_ref().is_some_and(|completion| completion.token.is_some());
        if let Some(last) = job.last.as_mut().filter(|last| last.grant == grant.id && last.ended.is_none())
            && !completed_by_grant
        {
            last.ended = Some(AttemptEnd { at, how: how.clone(), error: JobBytes::default() });
        }
        job.until = Some(at.after(terms.keep.millis()));
        self.jobs.push(job);
    }

    /// Begins the attempt of a grant that stands, unless it has begun.
    // Rule: attempt
    fn begin_attempt(&mut self, id: GrantId) -> Result<(Name, JobKey, u64), Refusal> {
        let grant = self.grant(id).expect("the caller has checked that it stands").clone();
        let (name, key) = job_of(&grant).map(|(name, terms)| (name, terms.key.clone())).ok_or(Refusal::NoJob)?;
        let record = self.job(&name, &key);
        let attempts = record.map_or(0, |job| job.attempts);
        if record.and_then(|job| job.last.as_ref()).is_some_and(|last| last.grant == id) {
            return Ok((name, key, attempts));
        }
        let attempt = attempts + 1;
        let began_at = self.now();
        let (token, session) = (grant.token, grant.session);
        self.change_job(&name, &key, |job| {
            job.attempts = attempt;
            job.last = Some(AttemptRecord { grant: id, token, session, began_at, ended: None });
        });
        self.job_event(&name, &key, JobFact::Begun { grant: id, attempt });
        Ok((name, key, attempt))
    }

    pub fn begin(&mut self, session: SessionId, id: GrantId) -> Outcome {
        if self.grant_of(session, id).is_none() {
            return self.why_not_held(session, id);
        }
        match self.begin_attempt(id) {
            Ok((_, _, attempt)) => Outcome::Begun { attempt },
            Err(refusal) => Outcome::Refused(refusal),
        }
    }

    // Rule: checkpoint
    pub fn checkpoint(&mut self, session: SessionId, id: GrantId, bytes: &JobBytes) -> Outcome {
        if self.grant_of(session, id).is_none() {
            return self.why_not_held(session, id);
        }
        let (name, key, attempt) = match self.begin_attempt(id) {
            Ok(begun) => begun,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let checkpoint = CheckpointRecord { attempt, at: self.now(), bytes: bytes.clone() };
        self.change_job(&name, &key, |job| job.checkpoint = Some(checkpoint));
        self.job_event(&name, &key, JobFact::Checkpointed { grant: id, attempt });
        Outcome::Checkpointed { attempt }
    }

    /// A release that says how the attempt went.
    // Rule: completion
    pub fn release_with_report(&mut self, session: SessionId, id: GrantId, report: &JobReport) -> Outcome {
        let Some(grant) = self.grant_of(session, id).cloned() else {
            return self.answer_to_late_report(session, id, report);
        };
        if grant.count > 1 {
            return Outcome::Refused(Refusal::CountAboveOne);
        }
        let (name, key, _) = match self.begin_attempt(id) {
            Ok(begun) => begun,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        let (at, how) = (self.now(), GrantEnd::Released);
        if report.verdict == Verdict::Open {
            let ended = AttemptEnd { at, how: how.clone(), error: report.bytes.clone() };
            self.change_job(&name, &key, |job| job.last.as_mut().expect("it has begun").ended = Some(ended));
            self.end_grant(id, how);
            return Outcome::Released { count_left: 0 };
        }
        let succeeded = report.verdict == Verdict::Succeeded;
        let (token, result) = (Some(grant.token), report.bytes.clone());
        self.complete(&name, &key, CompletionRecord { at, succeeded, result, token, by: None });
        self.end_grant(id, how);
        self.answer_waiters_of_job(&name, &key);
        Outcome::Completed { token, succeeded }
    }

    /// The answer to a report of a grant that the session does not hold: a completion that was recorded is answered as it was.
    fn answer_to_late_report(&self, session: SessionId, id: GrantId, report: &JobReport) -> Outcome {
        let by_this_grant = |job: &&JobRecord| {
            job.last.as_ref().is_some_and(|last| last.grant == id)
                && job.completion.as_ref().is_some_and(|completion| completion.token.is_some())
        };
        let recorded = self.jobs.iter().find(by_this_grant).and_then(|job| self.job(&job.name, &job.key));
        match recorded.and_then(completed) {
            Some(outcome) if report.verdict != Verdict::Open => outcome,
            _ => self.why_not_held(session, id),
        }
    }

    fn complete(&mut self, name: &Name, key: &JobKey, completion: CompletionRecord) {
        let what = JobFact::Completed { token: completion.token, succeeded: completion.succeeded };
        self.change_job(name, key, |job| job.completion = Some(completion));
        self.job_event(name, key, what);
    }

    /// Answers every request that waits for a completed job, in order of arrival.
    // Rule: completion
    fn answer_waiters_of_job(&mut self, name: &Name, key: &JobKey) {
        let outcome = self.job(name, key).and_then(completed).expect("it was just completed");
        let waits = self
            .waiters
            .iter()
            .filter(|waiter| job_of_waiter(waiter).is_some_and(|(wanted, job)| wanted == *name && job.key == *key));
        let mut waits: Vec<Arrival> = waits.map(|waiter| waiter.arrival).collect();
        waits.sort();
        for arrival in waits {
            self.end_wait(arrival, outcome.clone());
        }
    }

    // Rule: job-acts
    pub fn complete_job(&mut self, admin: &Admin, name: &Name, key: &JobKey, keep: Keep) -> Outcome {
        let job = self.job(name, key);
        if job.is_some_and(|job| job.completion.is_some()) {
            return Outcome::Done;
        }
        let holder = self.job_holder(name, key);
        if holder.is_none()
            && job.is_none()
            && let Some(bound) = self.full_bound(name)
        {
            return Outcome::Refused(Refusal::Bound(bound));
        }
        self.announce(admin, ActFacts::CompletedJob { name: name.clone(), key: key.clone() });
        let (at, by) = (self.now(), Some(admin.by.clone()));
        let completion = CompletionRecord { at, succeeded: true, result: JobBytes::default(), token: None, by };
        self.complete(name, key, completion);
        match holder {
            Some(grant) => self.end_grant(grant, GrantEnd::Broken(told(&admin.reason))),
            None => self.change_job(name, key, |job| job.until = Some(at.after(keep.millis()))),
        }
        self.answer_waiters_of_job(name, key);
        Outcome::Done
    }

    // Rule: job-acts
    pub fn forget_job(&mut self, admin: &Admin, name: &Name, key: &JobKey) -> Outcome {
        if let Some(grant) = self.job_holder(name, key) {
            return Outcome::Refused(Refusal::JobHeld { grant });
        }
        if self.job(name, key).is_none() {
            return Outcome::NotFound;
        }
        self.take_job(name, key);
        self.announce(admin, ActFacts::ForgotJob { name: name.clone(), key: key.clone() });
        Outcome::Done
    }

    // Rule: restore
    pub fn allow_jobs(&mut self, admin: &Admin) -> Outcome {
        if self.header.jobs_refused {
            self.header.jobs_refused = false;
            self.announce(admin, ActFacts::AllowedJobs);
        }
        Outcome::Done
    }

    /// Why a waiter whose turn has come is refused: there is no room for its job.
    // Rule: keep
    pub fn no_room_for_job_of(&mut self, waiter: &WaiterRecord) -> Option<Refusal> {
        let (name, _) = job_of_waiter(waiter)?;
        self.full_bound(&name).map(Refusal::Bound)
    }
}
