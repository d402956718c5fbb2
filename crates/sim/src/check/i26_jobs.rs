//! I26: a kept job is completed once, and no attempt at it begins after that.
//!
//! A request waits for no completed job, attempts have rising numbers, and a client that closes its session has sent its reports.
//! The checker follows each job through the log: who holds it, who waits for it, its attempts, its last checkpoint and its completion. No
//! event has the bytes of a checkpoint or a result, so they come from the requests. A read must show exactly this at its position. A user
//! that lost an answer and reads the job must come to the right conclusion.
//!
//! A restored group remembers jobs that no event of the new log reports. What the log has not told since is not compared.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fencepost_core::{
    Act, ActFacts, Action, Admin, AttachedGrant, Event, GrantId, JobBytes, JobFact, JobKey, JobRecord, JobTerms, Keep,
    LogicalMs, Name, Operation, Outcome, Refusal, Renewal, Request, RequestNumber, SessionEnd, SessionId, Token,
    Verdict,
};
use fencepost_session::client::{Answer, RequestKey};

use crate::fact::{Access, AccessKind};

use super::findings::Findings;
use super::i12_once::is_not_performed;
use super::ledger::{Ledger, Map};
use super::step::Step;

/// How many earlier states of a job are remembered, for reads at a node that is behind.
const STATES_MAX: usize = 64;

/// A job: its name and its key.
type Job = (Name, JobKey);

/// What a job is known to be. After a restore it is unknown until the log tells of it.
#[derive(Clone, Debug, PartialEq)]
enum Learnt<T> {
    Unknown,
    Is(T),
}

impl<T> Learnt<T> {
    fn known(&self) -> Option<&T> {
        match self {
            Learnt::Unknown => None,
            Learnt::Is(it) => Some(it),
        }
    }
}

/// What must be remembered of a job.
#[derive(Clone, Debug)]
struct State {
    attempts: Learnt<u64>,
    /// The grant of the last attempt.
    last: Learnt<Option<GrantId>>,
    /// The last checkpoint, with the attempt that stored it.
    checkpoint: Learnt<Option<(u64, JobBytes)>>,
    completion: Learnt<Option<Completion>>,
    /// When its time is over. `None` while it is held, and if there is no record.
    until: Option<LogicalMs>,
}

#[derive(Clone, Debug, PartialEq)]
struct Completion {
    token: Option<Token>,
    succeeded: bool,
    result: JobBytes,
}

impl State {
    /// Of a job that was never begun, or that was forgotten.
    fn none() -> State {
        State {
            attempts: Learnt::Is(0),
            last: Learnt::Is(None),
            checkpoint: Learnt::Is(None),
            completion: Learnt::Is(None),
            until: None,
        }
    }

    fn unknown() -> State {
        State {
            attempts: Learnt::Unknown,
            last: Learnt::Unknown,
            checkpoint: Learnt::Unknown,
            completion: Learnt::Unknown,
            until: None,
        }
    }

    fn completion(&self) -> Option<&Completion> {
        self.completion.known()?.as_ref()
    }
}

/// A grant for a job that stands.
#[derive(Clone, Debug)]
struct Held {
    job: Job,
    keep: Keep,
    /// The attempt that it has begun.
    attempt: Option<u64>,
}

/// The jobs according to the log, and what users concluded about them.
// Rule: job-key, attempt, checkpoint, completion, keep
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// The states of each job with the index from which on each holds, newest last. Invariant: not empty.
    states: Map<Job, VecDeque<(u64, State)>>,
    held: Map<GrantId, Held>,
    waiting: Map<(SessionId, RequestNumber), (Job, Keep)>,
    waiting_for: BTreeMap<Job, BTreeSet<(SessionId, RequestNumber)>>,
    /// The jobs that were completed in this entry.
    completed_now: Vec<Job>,
    is_restored: bool,
    /// Since the restore no administrator has allowed jobs.
    are_refused: bool,
    /// All completions by grants, with what they said. Kept over restores: users may hear of an old one.
    completions: Map<Token, (Job, bool)>,
    /// The grants of which a user concluded that they did not complete their job.
    not_completed: BTreeSet<Token>,
    /// Reports that users asked for and that are not in the log yet.
    reports: Map<SessionId, BTreeSet<RequestNumber>>,
    /// The rows that stand in the store.
    rows: BTreeSet<Job>,
    /// The sessions that write such rows. They do so before they complete a job.
    writers: BTreeSet<SessionId>,
}

impl Jobs {
    /// The cluster was restored. Its store was not.
    // Rule: restore
    pub(super) fn restored(&mut self) {
        let (completions, rows) = (std::mem::take(&mut self.completions), std::mem::take(&mut self.rows));
        *self = Jobs { completions, rows, is_restored: true, are_refused: true, ..Jobs::default() };
    }

    /// What the job is now. A record whose time is over counts as gone.
    fn now(&self, job: &Job, stamp: LogicalMs) -> State {
        match self.states.get(job).and_then(|states| states.back()) {
            Some((_, state)) if state.until.is_none_or(|until| stamp < until) => state.clone(),
            Some(_) => State::none(),
            None if self.is_restored => State::unknown(),
            None => State::none(),
        }
    }

    fn change(&mut self, job: &Job, ledger: &Ledger, change: impl FnOnce(&mut State)) {
        let mut state = self.now(job, ledger.stamp);
        change(&mut state);
        self.set(job, ledger.index, state);
    }

    fn set(&mut self, job: &Job, index: u64, state: State) {
        let states = self.states.entry(job.clone()).or_default();
        // Only the state after the whole entry can be read.
        if states.back().is_some_and(|(last, _)| *last == index) {
            states.pop_back();
        }
        states.push_back((index, state));
        if states.len() > STATES_MAX {
            states.pop_front();
        }
    }

    // ---- The log

    /// Judges the answer to a request, against what is known just before its events.
    pub(super) fn replied(&mut self, ledger: &Ledger, request: &Request, outcome: &Outcome, findings: &mut Findings) {
        if let Action::Release { report: Some(_), .. } = &request.action {
            self.report_arrived(request.session, request.number);
        }
        if is_not_performed(outcome) {
            return;
        }
        let what = |why: &str| format!("{why}, but the answer is {outcome:?}: {request:?}");
        match &request.action {
            Action::Acquire(acquire) => {
                let Some(job) = job_of(&request.action) else { return };
                let state = self.now(&job, ledger.stamp);
                let is_granted = matches!(outcome, Outcome::Granted { .. } | Outcome::Queued { .. });
                findings
                    .ensure(!(self.are_refused && is_granted), "I26", || what("jobs are refused since the restore"));
                if *outcome == Outcome::Refused(Refusal::JobsNotAllowed) {
                    findings.report.jobs_refused += 1;
                    findings.ensure(self.are_refused, "I26", || what("jobs are not refused"));
                }
                if let Outcome::Completed { token, succeeded } = outcome {
                    findings.report.jobs_completed_before += 1;
                    let known = state.completion().map(|it| (it.token, it.succeeded));
                    let is_so = known == Some((*token, *succeeded)) || state.completion == Learnt::Unknown;
                    findings.ensure(is_so, "I26", || what(&format!("the job was completed by {known:?}")));
                } else if state.completion().is_some() && !matches!(outcome, Outcome::Refused(_)) {
                    findings.found("I26", || what(&format!("the job is completed: {state:?}, {:?}", acquire.terms)));
                }
            }
            Action::Release { grant, report: Some(report) } => {
                self.reported(ledger, *grant, report.verdict, outcome, &what, findings)
            }
            Action::Begin { grant } | Action::Checkpoint { grant, .. } => {
                let (Outcome::Begun { attempt } | Outcome::Checkpointed { attempt }) = outcome else { return };
                let held = self.held.get(grant);
                // The event that begins it, if it is not begun, is judged against the number of earlier attempts.
                let is_so = held.is_some_and(|held| held.attempt.is_none_or(|begun| begun == *attempt));
                findings.ensure(is_so, "I26", || what(&format!("the grant has {held:?}")));
            }
            _ => {}
        }
    }

    // Rule: completion
    fn reported(
        &self,
        ledger: &Ledger,
        id: GrantId,
        verdict: Verdict,
        outcome: &Outcome,
        what: &dyn Fn(&str) -> String,
        findings: &mut Findings,
    ) {
        let completes = verdict != Verdict::Open;
        let stands = self.held.contains_key(&id) && ledger.grants.get(&id).is_some_and(|grant| grant.count == 1);
        match outcome {
            Outcome::Completed { token, .. } => {
                let own = token.is_some_and(|token| {
                    self.completions.get(&token).is_some_and(|(job, _)| {
                        self.now(job, ledger.stamp).completion().is_some_and(|it| it.token == Some(token))
                    })
                });
                findings.report.jobs_completed_again += u64::from(!stands && own);
                findings.ensure(completes && (stands || own), "I26", || what("the grant has not completed a job"));
            }
            Outcome::Released { .. } => {
                findings.ensure(!completes, "I26", || what("the report completes the job"));
            }
            Outcome::Refused(_) => {
                findings.ensure(!stands, "I26", || what("a report of a grant that stands is never refused"));
            }
            _ => {}
        }
        findings.report.late_completions += u64::from(completes && !matches!(outcome, Outcome::Completed { .. }));
    }

    /// A report is in the log.
    fn report_arrived(&mut self, session: SessionId, number: RequestNumber) {
        if let Some(reports) = self.reports.get_mut(&session) {
            reports.remove(&number);
        }
    }

    /// Judges what an attach says about jobs.
    pub(super) fn renewed(&self, renewal: &Renewal, outcome: &Outcome, findings: &mut Findings) {
        let (Renewal::Attach { session, .. }, Outcome::Attached(attached)) = (renewal, outcome) else { return };
        for grant in &attached.grants {
            let said = grant.job.as_ref().map(|job| (&job.key, job.attempt));
            let known = self.held.get(&grant.grant).map(|held| (&held.job.1, held.attempt));
            findings.report.jobs_attached += u64::from(known.is_some());
            findings.ensure(said == known, "I26", || attached_wrongly(*session, grant, known));
        }
        for wait in &attached.waits {
            let known = self.waiting.get(&(*session, wait.number)).map(|((_, key), _)| key);
            findings.ensure(wait.job_key.as_ref() == known, "I26", || {
                format!("{session:?} is attached with {wait:?}, but waits for the job {known:?}")
            });
        }
    }

    /// Checks one event, and follows it.
    pub(super) fn event(&mut self, step: &Step<'_>, findings: &mut Findings) {
        let ledger = step.ledger;
        match step.event {
            Event::Queued { request, .. } => {
                if let Some((job, keep)) = step.operation().and_then(asked_for) {
                    let waiter = (request.session, request.number);
                    self.waiting_for.entry(job.clone()).or_default().insert(waiter);
                    self.waiting.insert(waiter, (job, keep));
                }
            }
            Event::Granted { request, grant, .. } => {
                let waiter = (request.session, request.number);
                let waited = self.stop_waiting(waiter);
                if let Some((job, keep)) = waited.or_else(|| step.operation().and_then(asked_for)) {
                    self.granted(step, job, keep, *grant, findings);
                }
            }
            Event::NotGranted { request, outcome } => {
                let Some((job, _)) = self.stop_waiting((request.session, request.number)) else { return };
                let known = self.now(&job, ledger.stamp).completion().map(|it| (it.token, it.succeeded));
                let told = match outcome {
                    Outcome::Completed { token, succeeded } => Some((*token, *succeeded)),
                    _ => return,
                };
                findings.report.jobs_completed_while_waiting += 1;
                findings.ensure(told == known, "I26", || {
                    format!("a wait for the job {job:?} ended, which is completed by {known:?}: {:?}", step.event)
                });
            }
            Event::Ended { grant, count_left: 0, .. } => {
                if let Some(held) = self.held.remove(grant) {
                    let until = ledger.stamp.after(held.keep.millis());
                    self.change(&held.job, ledger, |state| state.until = Some(until));
                }
            }
            Event::Job { name, key, what } => self.happened(step, (name.clone(), key.clone()), what, findings),
            Event::Administered { act, .. } => self.administered(step, act, findings),
            Event::SessionEnded { session, how } => {
                let left = self.reports.remove(session).unwrap_or_default();
                // Rule: completion
                findings.ensure(*how != SessionEnd::Closed || left.is_empty(), "I26", || {
                    format!("{session:?} is closed, and its client never sent the reports {left:?}")
                });
            }
            _ => {}
        }
    }

    fn stop_waiting(&mut self, waiter: (SessionId, RequestNumber)) -> Option<(Job, Keep)> {
        let (job, keep) = self.waiting.remove(&waiter)?;
        if let Some(waiters) = self.waiting_for.get_mut(&job) {
            waiters.remove(&waiter);
            if waiters.is_empty() {
                self.waiting_for.remove(&job);
            }
        }
        Some((job, keep))
    }

    fn granted(&mut self, step: &Step<'_>, job: Job, keep: Keep, grant: GrantId, findings: &mut Findings) {
        let ledger = step.ledger;
        let state = self.now(&job, ledger.stamp);
        findings.ensure(state.completion().is_none(), "I26", || {
            format!("the job {job:?} is granted though it is completed by {:?}: {:?}", state.completion, step.event)
        });
        findings.ensure(!self.held.contains_key(&grant), "I26", || {
            format!("a grant for the job {job:?} is entered again: {:?}", step.event)
        });
        findings.report.jobs_granted += 1;
        self.change(&job, ledger, |state| {
            state.until = None;
            // Otherwise the answer would have been that it is completed.
            state.completion = Learnt::Is(None);
        });
        self.held.insert(grant, Held { job, keep, attempt: None });
    }

    /// Something happened to a job: only the holder of a grant for it does this, or an administrator.
    fn happened(&mut self, step: &Step<'_>, job: Job, what: &JobFact, findings: &mut Findings) {
        let ledger = step.ledger;
        let found = |why: String| format!("{why}: {:?}, caused by {:?}", step.event, step.operation());
        let asker = match step.operation() {
            Some(Operation::Request(request)) => Some(request),
            _ => None,
        };
        let by_holder = |jobs: &Jobs, grant: &GrantId| {
            let held = jobs.held.get(grant).is_some_and(|held| held.job == job);
            let owner = ledger.grants.get(grant).map(|grant| grant.session);
            held && owner.is_some() && owner == asker.map(|request| request.session)
        };
        let state = self.now(&job, ledger.stamp);
        match what {
            JobFact::Begun { grant, attempt } => {
                findings.report.attempts += 1;
                findings.ensure(by_holder(self, grant), "I26", || {
                    found("an attempt begins that the holder of the job did not ask for".to_owned())
                });
                findings.ensure(state.completion().is_none(), "I26", || {
                    found(format!("an attempt begins at a job that is completed by {:?}", state.completion))
                });
                let before = state.attempts.known().copied();
                findings.ensure(before.is_none_or(|before| before + 1 == *attempt), "I26", || {
                    found(format!("an attempt begins with a wrong number after {before:?} attempts"))
                });
                let held = self.held.get_mut(grant);
                findings.ensure(held.as_ref().is_some_and(|held| held.attempt.is_none()), "I26", || {
                    found(format!("a second attempt begins under one grant {held:?}"))
                });
                if let Some(held) = held {
                    held.attempt = Some(*attempt);
                }
                self.change(&job, ledger, |state| {
                    (state.attempts, state.last) = (Learnt::Is(*attempt), Learnt::Is(Some(*grant)));
                });
            }
            JobFact::Checkpointed { grant, attempt } => {
                findings.report.checkpoints += 1;
                let begun = self.held.get(grant).and_then(|held| held.attempt);
                findings.ensure(by_holder(self, grant) && begun == Some(*attempt), "I26", || {
                    found(format!("a checkpoint is stored that the holder did not ask for in attempt {begun:?}"))
                });
                let Some(Request { action: Action::Checkpoint { bytes, .. }, .. }) = asker else { return };
                self.change(&job, ledger, |state| state.checkpoint = Learnt::Is(Some((*attempt, bytes.clone()))));
            }
            JobFact::Completed { token, succeeded } => {
                findings.report.completions += 1;
                findings.ensure(state.completion().is_none(), "I26", || {
                    found(format!("a job is completed that is completed already by {:?}", state.completion))
                });
                let result = match (token, asker.map(|request| &request.action)) {
                    (None, None) => {
                        let act = ledger.last_act.as_ref().map(|(act, _)| act);
                        let by_act = matches!(act, Some(ActFacts::CompletedJob { name, key }) if (name, key) == (&job.0, &job.1));
                        findings.ensure(by_act, "I26", || found("no administrator completed the job".to_owned()));
                        JobBytes::default()
                    }
                    (Some(token), Some(Action::Release { grant, report: Some(report) })) => {
                        let its = ledger.grants.get(grant).map(|grant| grant.token);
                        let said =
                            (report.verdict == Verdict::Succeeded) == *succeeded && report.verdict != Verdict::Open;
                        findings.ensure(by_holder(self, grant) && its == Some(*token) && said, "I26", || {
                            found(format!("the job is not held by the grant that completes it, with token {its:?}"))
                        });
                        let attempt = self.held.get(grant).and_then(|held| held.attempt);
                        findings.ensure(attempt.is_some(), "I26", || {
                            found("a job is completed without an attempt".to_owned())
                        });
                        report.bytes.clone()
                    }
                    _ => {
                        findings.found("I26", || found("a job is completed, and no request says so".to_owned()));
                        JobBytes::default()
                    }
                };
                if let Some(token) = token {
                    self.completed_by(*token, &job, *succeeded, asker.map(|request| request.session), findings);
                }
                let completion = Completion { token: *token, succeeded: *succeeded, result };
                self.change(&job, ledger, |state| state.completion = Learnt::Is(Some(completion)));
                self.completed_now.push(job);
            }
        }
    }

    fn completed_by(
        &mut self,
        token: Token,
        job: &Job,
        succeeded: bool,
        session: Option<SessionId>,
        findings: &mut Findings,
    ) {
        let before = self.completions.insert(token, (job.clone(), succeeded));
        findings.ensure(before.is_none(), "I26", || format!("{token:?} completes {job:?} after {before:?}"));
        findings.ensure(!self.not_completed.contains(&token), "I26", || {
            format!("a user read that {token:?} did not complete {job:?}, and now it does")
        });
        if succeeded && session.is_some_and(|session| self.writers.contains(&session)) {
            findings.report.job_rows_checked += 1;
            findings.ensure(self.rows.contains(job), "I26", || {
                format!("{job:?} is completed by {token:?}, but its row does not stand in the store")
            });
        }
    }

    // Rule: job-acts
    fn administered(&mut self, step: &Step<'_>, act: &ActFacts, findings: &mut Findings) {
        let ledger = step.ledger;
        match act {
            ActFacts::CompletedJob { name, key } => {
                let job = (name.clone(), key.clone());
                let is_held = self.held.values().any(|held| held.job == job);
                if let (false, Some(Operation::Admin(Admin { act: Act::CompleteJob { keep, .. }, .. }))) =
                    (is_held, step.operation())
                {
                    let until = ledger.stamp.after(keep.millis());
                    self.change(&job, ledger, |state| state.until = Some(until));
                }
            }
            ActFacts::ForgotJob { name, key } => {
                let job = (name.clone(), key.clone());
                let holder = self.held.iter().find(|(_, held)| held.job == job);
                findings.ensure(holder.is_none(), "I26", || format!("a job is forgotten that is held: {holder:?}"));
                self.set(&job, ledger.index, State::none());
            }
            ActFacts::AllowedJobs => self.are_refused = false,
            _ => {}
        }
    }

    /// Checks what must hold after an entry: no request waits for a job that is completed, and no grant for one stands.
    pub(super) fn after(&mut self, findings: &mut Findings) {
        for job in std::mem::take(&mut self.completed_now) {
            let waiters = self.waiting_for.get(&job);
            findings.ensure(waiters.is_none(), "I26", || {
                format!("{job:?} is completed, and these requests still wait for it: {waiters:?}")
            });
            let holder = self.held.iter().find(|(_, held)| held.job == job);
            findings.ensure(holder.is_none(), "I26", || format!("{job:?} is completed and held: {holder:?}"));
        }
    }

    // ---- The users

    pub(super) fn asked(&mut self, request: RequestKey, action: &Action) {
        if let Action::Release { report: Some(_), .. } = action {
            self.reports.entry(request.session).or_default().insert(request.number);
        }
    }

    /// A user was told how a request ended: a completion that it is told of is in the log.
    pub(super) fn told(&mut self, request: RequestKey, answer: &Answer, findings: &mut Findings) {
        match answer {
            Answer::Decided(Outcome::Completed { token: Some(token), succeeded }) => {
                let known = self.completions.get(token);
                findings.ensure(known.is_some_and(|(_, known)| known == succeeded), "I26", || {
                    format!("{request:?} is told {answer:?}, but the log says {known:?} of that token")
                });
            }
            // It was never sent, or is sent until the session has ended.
            Answer::Failed(_) | Answer::SessionEnded { .. } => self.report_arrived(request.session, request.number),
            _ => {}
        }
    }

    /// A user did not hear whether its completion was carried out, read the job, and concluded this.
    // Rule: completion
    pub(super) fn concluded(
        &mut self,
        job: Job,
        token: Token,
        completed: bool,
        stamp: LogicalMs,
        findings: &mut Findings,
    ) {
        findings.report.unknowns_resolved += 1;
        let known = self.completions.get(&token).is_some_and(|(its, _)| *its == job);
        if completed {
            findings.ensure(known, "I26", || {
                format!("a user concluded that {token:?} has completed {job:?}, but the log does not say so")
            });
        } else {
            let stands = self.now(&job, stamp).completion().is_some_and(|it| it.token == Some(token));
            findings.ensure(!stands, "I26", || {
                format!("a user concluded that {token:?} has not completed {job:?}, but it has")
            });
            self.not_completed.insert(token);
        }
    }

    /// A read shows what the log says at its position.
    // Rule: checkpoint
    pub(super) fn read(
        &self,
        index: u64,
        stamp: LogicalMs,
        (name, key): (&Name, &JobKey),
        record: Option<&JobRecord>,
        findings: &mut Findings,
    ) {
        let job = (name.clone(), key.clone());
        let states = self.states.get(&job);
        let state = states.and_then(|states| states.iter().rev().find(|(from, _)| *from <= index));
        let state = match state {
            Some((_, state)) if state.until.is_none_or(|until| stamp < until) => state.clone(),
            Some(_) => State::none(),
            // Its state at that index is not remembered any more.
            None if states.is_some_and(|states| states.len() == STATES_MAX) => return,
            None if self.is_restored => State::unknown(),
            None => State::none(),
        };
        findings.report.job_reads += 1;
        let attempts = record.map_or(0, |record| record.attempts);
        let last = record.and_then(|record| record.last.as_ref()).map(|last| last.grant);
        let checkpoint = record.and_then(|record| record.checkpoint.clone()).map(|it| (it.attempt, it.bytes));
        let completion = record.and_then(|record| record.completion.clone());
        let completion =
            completion.map(|it| Completion { token: it.token, succeeded: it.succeeded, result: it.result });
        findings.report.checkpoints_read += u64::from(checkpoint.is_some() && state.checkpoint != Learnt::Unknown);
        let shown = [
            state.attempts.known().is_none_or(|known| *known == attempts),
            state.last.known().is_none_or(|known| *known == last),
            state.checkpoint.known().is_none_or(|known| *known == checkpoint),
            state.completion.known().is_none_or(|known| *known == completion),
        ];
        findings.ensure(shown == [true; 4], "I26", || {
            format!("a read of {job:?} at {index} shows {record:?}, but the log says {state:?}")
        });
    }

    /// The work of a job wrote its row at the store.
    pub(super) fn accessed(&mut self, access: &Access, findings: &mut Findings) {
        let (AccessKind::Once { is_new }, Some(key)) = (access.what, &access.key) else { return };
        self.writers.insert(access.session);
        if !access.accepted {
            return;
        }
        let first = self.rows.insert((access.name.clone(), key.clone()));
        findings.report.job_rows += u64::from(is_new);
        findings.ensure(first == is_new, "I26", || format!("a row stands twice, or is lost: {access:?}"));
    }
}

fn attached_wrongly(session: SessionId, grant: &AttachedGrant, known: Option<(&JobKey, Option<u64>)>) -> String {
    format!("{session:?} is attached with {grant:?}, but its job and its attempt are {known:?}")
}

/// The job that an acquire is for.
fn job_of(action: &Action) -> Option<Job> {
    let Action::Acquire(acquire) = action else { return None };
    let JobTerms { key, .. } = acquire.terms.job.as_ref()?;
    Some((acquire.locks.first()?.name.clone(), key.clone()))
}

/// The job that an operation asks for, and how long it is kept.
fn asked_for(operation: &Operation) -> Option<(Job, Keep)> {
    let Operation::Request(Request { action, .. }) = operation else { return None };
    let Action::Acquire(acquire) = action else { return None };
    Some((job_of(action)?, acquire.terms.job.as_ref()?.keep))
}
