//! The book of jobs: what a watcher knows of each job from events, answers and requests, and the invariants of jobs.
//!
//! It takes from the records only when their time is over, because no event tells that a record has gone.

use fencepost_core::*;

use super::Model;
use super::invariants::Step;
use super::jobs::{job_of, job_of_waiter};
use super::ledger::ensure;

/// What the book knows of one job.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    name: Name,
    key: JobKey,
    attempts: u64,
    /// The grant that began the last attempt.
    begun_by: Option<GrantId>,
    /// The bytes of the last acknowledged checkpoint.
    checkpoint: Option<JobBytes>,
    is_completed: bool,
}

/// All jobs that are remembered.
#[derive(Clone, Debug, Default)]
pub struct JobBook {
    entries: Vec<Entry>,
}

impl JobBook {
    /// The book of a state whose earlier events are unknown.
    pub fn of(state: &Model) -> JobBook {
        let live = state.jobs.iter().filter(|job| state.job(&job.name, &job.key).is_some());
        let mut book = JobBook { entries: live.map(entry).collect() };
        book.sort();
        book
    }

    fn sort(&mut self) {
        self.entries.sort_by(|a, b| (&a.name, &a.key).cmp(&(&b.name, &b.key)));
    }

    fn known(&mut self, name: &Name, key: &JobKey) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.name == *name && entry.key == *key)
    }

    fn known_or_new(&mut self, name: &Name, key: &JobKey) -> &mut Entry {
        if self.known(name, key).is_none() {
            let (name, key) = (name.clone(), key.clone());
            let (attempts, begun_by, checkpoint, is_completed) = (0, None, None, false);
            self.entries.push(Entry { name, key, attempts, begun_by, checkpoint, is_completed });
        }
        self.known(name, key).expect("it was just added")
    }

    /// I26, for one entry of the log:
    /// - a job that is kept is completed once, and nothing begins or is granted for it after that;
    /// - attempts have rising numbers without gaps, and each grant begins one at most, while it stands;
    /// - no request waits for a completed job;
    /// - the checkpoint of a record is the last acknowledged one of its key.
    pub fn follow(&mut self, step: &Step<'_>) -> Result<(), String> {
        for job in &step.before.jobs {
            if job.until.is_some_and(|until| until <= step.stamp) {
                self.entries.retain(|entry| entry.name != job.name || entry.key != job.key);
            }
        }
        if step.effects.events.iter().any(may_concern_jobs) {
            self.follow_events(step)?;
        }
        self.sort();
        let records = JobBook::of(step.after);
        ensure!(self.entries == records.entries, "I26: jobs: {:#?}\nevents: {:#?}", records.entries, self.entries);
        for waiter in &step.after.waiters {
            let Some((name, job)) = job_of_waiter(waiter) else { continue };
            let left = self.known(&name, &job.key).is_some_and(|entry| entry.is_completed);
            ensure!(!left, "I26: {waiter:?} waits for a completed job");
        }
        Ok(())
    }

    fn follow_events(&mut self, step: &Step<'_>) -> Result<(), String> {
        let mut refused = step.before.header.jobs_refused;
        let mut standing: Vec<(GrantId, Name, JobKey)> = Vec::new();
        for grant in &step.before.grants {
            standing.extend(job_of(grant).map(|(name, job)| (grant.id, name, job.key.clone())));
        }
        let mut acknowledged = acknowledged_checkpoints(step).into_iter();
        for event in &step.effects.events {
            match event {
                Event::Granted { request, grant, count: 1, .. } => {
                    let Some((name, key)) = job_of_request(step, request) else { continue };
                    ensure!(!refused, "I26: {grant:?} was granted for a job while jobs are refused");
                    let is_completed = self.known(&name, &key).is_some_and(|entry| entry.is_completed);
                    ensure!(!is_completed, "I26: {grant:?} was granted for a completed job");
                    standing.push((*grant, name, key));
                }
                Event::Ended { grant, count_left: 0, .. } => standing.retain(|(other, _, _)| other != grant),
                Event::Job { name, key, what } => {
                    let stands = |id: GrantId| standing.iter().any(|(grant, n, k)| (*grant, n, k) == (id, name, key));
                    let entry = self.known_or_new(name, key);
                    ensure!(!entry.is_completed, "I26: something happened to a completed job: {event:?}");
                    match what {
                        JobFact::Begun { grant, attempt } => {
                            ensure!(stands(*grant), "I26: {grant:?} does not stand for the job that it began");
                            ensure!(*attempt == entry.attempts + 1, "I26: attempt {attempt} after {}", entry.attempts);
                            ensure!(entry.begun_by != Some(*grant), "I26: {grant:?} began two attempts");
                            (entry.attempts, entry.begun_by) = (*attempt, Some(*grant));
                        }
                        JobFact::Checkpointed { grant, attempt } => {
                            let is_last = (entry.attempts, entry.begun_by) == (*attempt, Some(*grant));
                            ensure!(stands(*grant) && is_last, "I26: a checkpoint of another attempt: {event:?}");
                            entry.checkpoint = acknowledged.next();
                        }
                        JobFact::Completed { token: Some(_), .. } => {
                            let standing = entry.begun_by.is_some_and(stands);
                            ensure!(standing, "I26: a job was completed without the grant of its last attempt");
                            entry.is_completed = true;
                        }
                        JobFact::Completed { token: None, .. } => entry.is_completed = true,
                    }
                }
                Event::Administered { act: ActFacts::ForgotJob { name, key }, .. } => {
                    let held = standing.iter().any(|(_, n, k)| (n, k) == (name, key));
                    ensure!(!held, "I26: a job was forgotten while it was held");
                    self.entries.retain(|entry| entry.name != *name || entry.key != *key);
                }
                Event::Administered { act: ActFacts::AllowedJobs, .. } => refused = false,
                _ => {}
            }
        }
        ensure!(acknowledged.next().is_none(), "I26: a checkpoint was acknowledged without an event");
        Ok(())
    }
}

fn may_concern_jobs(event: &Event) -> bool {
    match event {
        Event::Granted { .. } | Event::Job { .. } => true,
        Event::Administered { act, .. } => matches!(act, ActFacts::ForgotJob { .. } | ActFacts::AllowedJobs),
        _ => false,
    }
}

fn entry(job: &JobRecord) -> Entry {
    Entry {
        name: job.name.clone(),
        key: job.key.clone(),
        attempts: job.attempts,
        begun_by: job.last.as_ref().map(|last| last.grant),
        checkpoint: job.checkpoint.as_ref().map(|checkpoint| checkpoint.bytes.clone()),
        is_completed: job.completion.is_some(),
    }
}

/// The requests of the entry with their replies, without repeats.
fn new_requests<'a>(step: &'a Step<'_>) -> impl Iterator<Item = (&'a Request, &'a Outcome)> {
    let replies = &step.effects.replies[step.batch.renewals.len()..];
    step.batch.operations.iter().zip(replies).filter_map(|(operation, reply)| match operation {
        Operation::Request(request) if reply.repeat.is_none() => Some((request, &reply.outcome)),
        _ => None,
    })
}

/// The checkpoints that were acknowledged in this entry, in order.
fn acknowledged_checkpoints(step: &Step<'_>) -> Vec<JobBytes> {
    let stored = new_requests(step).filter_map(|(request, outcome)| match (&request.action, outcome) {
        (Action::Checkpoint { bytes, .. }, Outcome::Checkpointed { .. }) => Some(bytes.clone()),
        _ => None,
    });
    stored.collect()
}

/// The job that a granted request asked for: from the waiter before the entry, or from the request in the entry.
fn job_of_request(step: &Step<'_>, facts: &RequestFacts) -> Option<(Name, JobKey)> {
    if let Some(waiter) = step.before.waiter(facts.session, facts.number) {
        return job_of_waiter(waiter).map(|(name, job)| (name, job.key.clone()));
    }
    let acquire = new_requests(step).find_map(|(request, outcome)| match &request.action {
        Action::Acquire(acquire)
            if (request.session, request.number) == (facts.session, facts.number)
                && matches!(outcome, Outcome::Granted { .. } | Outcome::Queued { .. }) =>
        {
            Some(acquire)
        }
        _ => None,
    })?;
    let job = acquire.terms.job.as_ref()?;
    Some((acquire.locks[0].name.clone(), job.key.clone()))
}
