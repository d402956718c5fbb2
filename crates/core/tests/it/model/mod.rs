//! The model: the lock semantics a second time, written to be obviously right. It scans plain lists for every question.
//!
//! The state machine and this model are written independently from the same specification, so that a mistake in one shows
//! as a difference between the two. Nothing here is indexed or cached: the model keeps the records and derives everything
//! else from them each time. It never runs outside of tests.
//!
//! For a deadlock the model returns an empty cycle; `invariants` checks the cycle that the state machine reports.

// Each test program includes this whole module and uses only parts of it. It exports nothing.
#![allow(dead_code, unreachable_pub)]

pub mod asking;
pub mod deadlock;
pub mod ending;
pub mod invariants;
pub mod job_book;
pub mod jobs;
pub mod ledger;
pub mod random;
pub mod runner;
pub mod tally;

use fencepost_core::*;

use jobs::{job_of, job_of_waiter};

/// The whole state of one group, as its records.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub header: Header,
    pub sessions: Vec<SessionRecord>,
    pub answers: Vec<AnswerRecord>,
    pub grants: Vec<GrantRecord>,
    pub rests: Vec<RestRecord>,
    pub jobs: Vec<JobRecord>,
    pub waiters: Vec<WaiterRecord>,
    pub semaphores: Vec<SemaphoreRecord>,
    pub freezes: Vec<FreezeRecord>,
    /// What the current entry has caused so far.
    pub effects: Effects,
    /// For each deadlock of the last entry, who waited for whom. Used to check the reported cycle.
    pub deadlocks: Vec<deadlock::Scene>,
    /// Waiters whose owner lost, released or weakened something, so that they may now wait for more than before.
    pub loosened: Vec<Arrival>,
}

/// The answer to a request that is not carried out: its old answer, or a refusal.
type NotNew = (Outcome, Option<Repeat>);

impl Model {
    pub fn new() -> Model {
        Model::default()
    }

    pub fn from_records(records: Vec<Record>) -> Model {
        let mut model = Model::new();
        for record in records {
            match record {
                Record::Header(header) => model.header = header,
                Record::Session(session) => model.sessions.push(session),
                Record::Answer(answer) => model.answers.push(answer),
                Record::Grant(grant) => model.grants.push(grant),
                Record::Rest(rest) => model.rests.push(rest),
                Record::Job(job) => model.jobs.push(job),
                Record::Waiter(waiter) => model.waiters.push(waiter),
                Record::Semaphore(semaphore) => model.semaphores.push(semaphore),
                Record::Freeze(freeze) => model.freezes.push(freeze),
                #[cfg(feature = "made-up-version")]
                Record::Remark(_) => panic!("the model has no made-up version"),
            }
        }
        model
    }

    /// The state from a backup with these records: no session, and a token counter above all tokens that were ever drawn.
    pub fn from_backup(records: Vec<Record>, token_jump: u64) -> Model {
        let mut model = Model::from_records(records);
        model.header.last_token = (model.header.last_token + token_jump).min(bounds::TOKEN_MAX);
        let mut sessions: Vec<SessionId> = model.sessions.iter().map(|session| session.id).collect();
        sessions.sort();
        for session in sessions {
            model.end_session(session, SessionEnd::Restored);
        }
        model.grant_successors();
        // Rule: restore
        model.header.jobs_refused = true;
        model
    }

    /// The state as records, in canonical order.
    pub fn records(&self) -> Vec<Record> {
        let mut sorted = self.clone();
        sorted.sessions.sort_by_key(|session| session.id);
        sorted.answers.sort_by_key(|answer| answer.number);
        sorted.grants.sort_by_key(|grant| grant.id);
        sorted.rests.sort_by_key(|rest| rest.grant);
        sorted.jobs.sort_by(|a, b| (&a.name, &a.key).cmp(&(&b.name, &b.key)));
        sorted.waiters.sort_by_key(|waiter| waiter.arrival);
        sorted.semaphores.sort_by(|a, b| a.name.cmp(&b.name));
        sorted.freezes.sort_by_key(|freeze| freeze.id);
        let mut records = vec![Record::Header(sorted.header)];
        for session in sorted.sessions {
            let id = session.id;
            records.push(Record::Session(session));
            let own = sorted.answers.iter().filter(|answer| answer.session == id);
            records.extend(own.cloned().map(Record::Answer));
        }
        records.extend(sorted.semaphores.into_iter().map(Record::Semaphore));
        records.extend(sorted.freezes.into_iter().map(Record::Freeze));
        records.extend(sorted.grants.into_iter().map(Record::Grant));
        records.extend(sorted.rests.into_iter().map(Record::Rest));
        records.extend(sorted.jobs.into_iter().map(Record::Job));
        records.extend(sorted.waiters.into_iter().map(Record::Waiter));
        records
    }

    // Rule: within-an-entry
    pub fn apply(&mut self, stamp: LogicalMs, batch: &Batch) -> Effects {
        assert!(stamp >= self.header.stamp, "time goes back");
        self.effects = Effects::default();
        self.deadlocks.clear();
        self.header.stamp = stamp;
        self.header.version = batch.raise_to.map_or(self.header.version, |to| to.max(self.header.version));
        if batch.failover_grace {
            self.header.grace_at = Some(stamp);
        }
        self.forget_ended_jobs();
        for (at, renewal) in batch.renewals.iter().enumerate() {
            let outcome = self.renew(renewal);
            self.effects.replies.push(Reply { to: ReplyTo::Renewal(at), outcome, repeat: None });
        }
        self.end_what_is_due();
        // A waiter is not granted in the entry that carries its cancel, so these cancels go before the successors.
        let mut cancels = Vec::new();
        for operation in &batch.operations {
            cancels.push(match operation {
                Operation::Request(request) if self.cancels_a_waiter(request) => Some(self.request(request)),
                _ => None,
            });
        }
        self.grant_successors();
        for (at, (operation, cancelled)) in batch.operations.iter().zip(cancels).enumerate() {
            let (outcome, repeat) = match (cancelled, operation) {
                (Some(answer), _) => answer,
                (None, Operation::Open(open)) => self.open(open),
                (None, Operation::Request(request)) => self.request(request),
                (None, Operation::Admin(admin)) => (self.administer(admin), None),
                #[cfg(feature = "made-up-version")]
                (None, Operation::MadeUp(_)) => panic!("the model has no made-up version"),
            };
            self.effects.replies.push(Reply { to: ReplyTo::Operation(at), outcome, repeat });
            self.grant_successors();
        }
        std::mem::take(&mut self.effects)
    }

    pub fn now(&self) -> LogicalMs {
        self.header.stamp
    }

    pub fn event(&mut self, event: Event) {
        self.effects.events.push(event);
    }

    pub fn push(&mut self, push: Push) {
        self.effects.pushes.push(push);
    }

    pub fn session(&self, id: SessionId) -> Option<&SessionRecord> {
        self.sessions.iter().find(|session| session.id == id)
    }

    pub fn session_mut(&mut self, id: SessionId) -> Option<&mut SessionRecord> {
        self.sessions.iter_mut().find(|session| session.id == id)
    }

    pub fn grant(&self, id: GrantId) -> Option<&GrantRecord> {
        self.grants.iter().find(|grant| grant.id == id)
    }

    pub fn grant_mut(&mut self, id: GrantId) -> Option<&mut GrantRecord> {
        self.grants.iter_mut().find(|grant| grant.id == id)
    }

    pub fn answer(&self, session: SessionId, number: RequestNumber) -> Option<&AnswerRecord> {
        self.answers.iter().find(|answer| answer.session == session && answer.number == number)
    }

    pub fn waiter(&self, session: SessionId, number: RequestNumber) -> Option<&WaiterRecord> {
        self.waiters.iter().find(|waiter| waiter.session == session && waiter.number == number)
    }

    /// Whether the grant of an answer still stands.
    pub fn grant_stands(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Granted { grant, .. } | Outcome::Converted { grant, .. } => self.grant(*grant).is_some(),
            _ => false,
        }
    }

    // Rule: session-ttl, attach
    fn renew(&mut self, renewal: &Renewal) -> Outcome {
        let (id, seen) = match renewal {
            Renewal::KeepAlive { session, seen, .. } | Renewal::Attach { session, seen, .. } => (*session, seen),
        };
        let Some(session) = self.session(id) else {
            return Outcome::Refused(Refusal::NoSession);
        };
        match renewal {
            Renewal::KeepAlive { epoch, .. } if *epoch != session.epoch => {
                return Outcome::Refused(Refusal::WrongEpoch { current: session.epoch });
            }
            Renewal::Attach { secret_hash, .. } if *secret_hash != session.secret_hash => {
                return Outcome::Refused(Refusal::WrongSecret);
            }
            _ => {}
        }
        if let Err(refusal) = self.see(id, seen) {
            return Outcome::Refused(refusal);
        }
        let now = self.now();
        let session = self.session_mut(id).expect("found above");
        session.renewed_at = now;
        if matches!(renewal, Renewal::KeepAlive { .. }) {
            return Outcome::Renewed;
        }
        session.epoch.0 += 1;
        let (epoch, lost) = (session.epoch, session.lost.clone());
        let mut grants: Vec<AttachedGrant> = (self.grants.iter().filter(|grant| grant.session == id))
            .map(|g| AttachedGrant {
                grant: g.id,
                token: g.token,
                count: g.count,
                held: g.held.clone(),
                job: self.attached_job(g),
            })
            .collect();
        grants.sort_by_key(|grant| grant.grant);
        let mut waits: Vec<AttachedWait> = (self.waiters.iter().filter(|waiter| waiter.session == id))
            .map(|waiter| AttachedWait {
                number: waiter.number,
                arrival: waiter.arrival,
                job_key: job_of_waiter(waiter).map(|(_, job)| job.key.clone()),
            })
            .collect();
        waits.sort_by_key(|wait| wait.number);
        let mut unseen: Vec<UnseenAnswer> = (self.answers.iter().filter(|answer| answer.session == id))
            .map(|answer| UnseenAnswer {
                number: answer.number,
                answered_at: answer.answered_at,
                outcome: answer.outcome.clone(),
                stands: self.grant_stands(&answer.outcome),
            })
            .collect();
        unseen.sort_by_key(|answer| answer.number);
        Outcome::Attached(Box::new(Attached { epoch, grants, waits, unseen, lost }))
    }

    /// The job of a grant, as an attach reports it.
    fn attached_job(&self, grant: &GrantRecord) -> Option<AttachedJob> {
        let (name, terms) = job_of(grant)?;
        let last = self.job(&name, &terms.key).and_then(|job| Some((job.attempts, job.last.as_ref()?.grant)));
        let attempt = last.filter(|(_, begun_by)| *begun_by == grant.id).map(|(attempts, _)| attempts);
        Some(AttachedJob { key: terms.key.clone(), attempt })
    }

    fn open(&mut self, open: &Open) -> NotNew {
        if let Some(session) = self.session(open.session) {
            if session.secret_hash != open.secret_hash {
                return (Outcome::Refused(Refusal::SessionExists), None);
            }
            let repeat = Repeat { answered_at: session.opened_at, stands: false };
            return (Outcome::Opened { epoch: session.epoch }, Some(repeat));
        }
        let of_principal = self.sessions.iter().filter(|session| session.principal == open.principal).count();
        if of_principal >= bounds::SESSIONS_PER_PRINCIPAL_MAX {
            return (Outcome::Refused(Refusal::Bound(Bound::SessionsPerPrincipal)), None);
        }
        self.sessions.push(SessionRecord {
            id: open.session,
            principal: open.principal.clone(),
            secret_hash: open.secret_hash,
            ttl: open.ttl,
            metadata: open.metadata.clone(),
            opened_at: self.now(),
            opened_after_token: self.header.last_token,
            epoch: Epoch(1),
            renewed_at: self.now(),
            seen_mark: 0,
            seen_ranges: Vec::new(),
            lost: Vec::new(),
        });
        let (principal, metadata) = (open.principal.clone(), open.metadata.clone());
        self.event(Event::SessionOpened { session: open.session, principal, metadata });
        (Outcome::Opened { epoch: Epoch(1) }, None)
    }

    // Rule: exactly-once
    fn request(&mut self, request: &Request) -> (Outcome, Option<Repeat>) {
        if let Err(not_new) = self.admit(request) {
            return not_new;
        }
        let outcome = self.perform(request);
        let now = self.now();
        if !matches!(outcome, Outcome::Queued { .. } | Outcome::Closed) {
            self.record_answer(request.session, request.number, now, outcome.clone());
        }
        (outcome, None)
    }

    fn perform(&mut self, request: &Request) -> Outcome {
        let session = request.session;
        match &request.action {
            Action::Acquire(acquire) => self.acquire(request, acquire),
            Action::TakePermits(take) => self.take_permits(request, take),
            Action::Convert { grant, name, mode, wait } => self.convert(request, *grant, name, *mode, *wait),
            Action::Cancel { request: target, release_if_granted } => {
                self.cancel(session, request.number, *target, *release_if_granted)
            }
            Action::Release { grant, report: None } => self.release(session, *grant),
            Action::Release { grant, report: Some(report) } => self.release_with_report(session, *grant, report),
            Action::Begin { grant } => self.begin(session, *grant),
            Action::Checkpoint { grant, bytes } => self.checkpoint(session, *grant, bytes),
            Action::Extend { grant, max_hold } => self.extend(session, *grant, *max_hold),
            Action::SetValue { grant, value } => self.set_value(session, *grant, value),
            Action::Close => {
                self.end_session(session, SessionEnd::Closed);
                Outcome::Closed
            }
        }
    }

    pub fn record_answer(&mut self, session: SessionId, number: RequestNumber, at: LogicalMs, outcome: Outcome) {
        self.answers.push(AnswerRecord { session, number, answered_at: at, outcome, given_back: false });
    }

    /// `Ok` if a request is new and must be carried out; otherwise its answer.
    fn admit(&mut self, request: &Request) -> Result<(), NotNew> {
        let refused = |refusal| Err((Outcome::Refused(refusal), None));
        let Some(session) = self.session(request.session) else {
            return refused(Refusal::NoSession);
        };
        if request.epoch != session.epoch {
            return refused(Refusal::WrongEpoch { current: session.epoch });
        }
        if request.number.0 == 0 {
            return refused(Refusal::BadNumber);
        }
        if let Err(refusal) = self.see(request.session, &request.seen) {
            return refused(refusal);
        }
        if self.is_seen(request.session, request.number) {
            return refused(Refusal::AlreadySeen);
        }
        if let Some(answer) = self.answer(request.session, request.number) {
            let repeat = Repeat { answered_at: answer.answered_at, stands: self.grant_stands(&answer.outcome) };
            return Err((answer.outcome.clone(), Some(repeat)));
        }
        if let Some(waiter) = self.waiter(request.session, request.number) {
            let queued = Outcome::Queued { arrival: waiter.arrival, unchecked: waiter.unchecked };
            return Err((queued, Some(Repeat { answered_at: waiter.queued_at, stands: false })));
        }
        let unseen = self.answers.iter().filter(|answer| answer.session == request.session).count();
        if unseen >= bounds::UNSEEN_ANSWERS_MAX {
            return refused(Refusal::Bound(Bound::UnseenAnswers));
        }
        Ok(())
    }

    /// Whether this is a cancel of a request that waits now, and would itself be carried out now.
    fn cancels_a_waiter(&self, request: &Request) -> bool {
        let Action::Cancel { request: target, .. } = request.action else {
            return false;
        };
        self.waiter(request.session, target).is_some() && self.clone().admit(request).is_ok()
    }

    pub fn is_seen(&self, session: SessionId, number: RequestNumber) -> bool {
        self.session(session).is_some_and(|session| {
            number.0 <= session.seen_mark
                || session.seen_ranges.iter().any(|(first, last)| (*first..=*last).contains(&number.0))
        })
    }

    /// Forgets the answers that the client has seen, and remembers their numbers as seen.
    fn see(&mut self, id: SessionId, seen: &Seen) -> Result<(), Refusal> {
        if seen.ranges.iter().any(|(first, last)| first > last || *first == 0) {
            return Err(Refusal::BadNumber);
        }
        let covered = |number: u64| number <= seen.mark || seen.ranges.iter().any(|(a, b)| (*a..=*b).contains(&number));
        let waiting = self.waiters.iter().filter(|waiter| waiter.session == id && covered(waiter.number.0));
        if let Some(number) = waiting.map(|waiter| waiter.number).min() {
            return Err(Refusal::SeenWhileWaiting(number));
        }
        let session = self.session_mut(id).expect("the caller has checked that it exists");
        // The mark is treated as a range, from zero, until all ranges are joined.
        let mut ranges = vec![(0, session.seen_mark), (0, seen.mark)];
        ranges.extend(session.seen_ranges.iter().copied());
        ranges.extend(seen.ranges.iter().copied());
        ranges.sort();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        let (_, mark) = joined.remove(0);
        if joined.len() > bounds::SEEN_RANGES_MAX {
            return Err(Refusal::Bound(Bound::SeenRanges));
        }
        session.seen_mark = mark;
        session.seen_ranges = joined;
        let mut answers = std::mem::take(&mut self.answers);
        answers.retain(|answer| answer.session != id || !self.is_seen(id, answer.number));
        self.answers = answers;
        Ok(())
    }
}
