//! A runner: a user that runs jobs, with a session of its own.
//!
//! It asks for a job, begins an attempt, reads the last checkpoint, works in steps with a checkpoint after some of them, does the job's
//! effect at the store, and completes the job or leaves it open. Some runners do not look at their guard, and complete a job that they have
//! lost. If no answer to a completion comes, the runner reads the job and concludes whether it completed it. It never checks the cluster:
//! the checkers do.

use std::time::Duration;

use fencepost_core::{
    Acquire, Action, GrantId, JobBytes, JobKey, JobRecord, JobReport, JobTerms, Keep, Lock, LockDelay, LockMode, Locks,
    Millis, Name, Nanos, Outcome, SessionId, Terms, Token, Ttl, Verdict, Wait,
};
use fencepost_session::client::{Answer, GrantKey, GrantState, LetGo, RequestKey};

use crate::fact::Fact;
use crate::random::Random;
use crate::store::{Call, CallKind, Reply};
use crate::user::{Served, new_session};
use crate::worker::{Errand, ErrandKind, Hands};

/// Number of names. Few, so that runners compete.
const NAMES: usize = 2;
/// Number of keys of a name among which a runner chooses.
const KEYS: u64 = 3;
/// How much longer than the cluster a runner waits before it gives up.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long it waits for a read before it reads again.
const READ_AGAIN: Duration = Duration::from_millis(1_500);
/// How often it sends a completion again under a new number.
const RESENDS_MAX: u32 = 3;

/// A job that the runner holds, or held.
#[derive(Clone, Debug)]
struct Turn {
    name: usize,
    key: u64,
    grant: GrantId,
    token: Token,
    steps_left: u64,
    /// The effect stands in the guarded store.
    is_done: bool,
    verdict: Verdict,
    /// How often the report was sent again under a new number.
    resent: u32,
}

/// Why a runner reads its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// To go on from the last checkpoint.
    Checkpoint,
    /// To learn whether it completed the job.
    Outcome,
}

#[derive(Clone, Debug)]
enum Doing {
    /// Does nothing until then.
    Idle { until: Nanos },
    /// Waits for a job, at most until `give_up_at`.
    Asked { request: RequestKey, name: usize, key: u64, give_up_at: Option<Nanos> },
    /// Waits for the answer to a begin or a checkpoint.
    Told { request: RequestKey },
    /// Waits for a read of its job.
    Reads { call: u64, why: Why, again_at: Nanos },
    /// Works until then.
    Works { until: Nanos },
    /// Waits for the store.
    Called { call: u64 },
    /// Has looked at its guard and is about to report. If its process is paused here, it reports when it wakes up.
    AboutToReport { at: Nanos },
    /// Waits for the answer to its report.
    Reported { request: RequestKey },
    /// Has completed its job, and is about to send the completion again.
    AboutToRepeat { at: Nanos },
    /// Waits for the answer to a report that it need not have sent, or to a plain release.
    Repeated { request: RequestKey },
}

/// A user that runs jobs.
#[derive(Debug)]
pub(crate) struct Runner {
    /// Its number within its process.
    pub(crate) id: usize,
    ttl: Ttl,
    session: Option<SessionId>,
    doing: Doing,
    turn: Option<Turn>,
    /// For each name the first key that may be open, as far as it knows.
    first_open: [u64; NAMES],
    /// Whether it looks at its guard before it works and completes.
    careful: bool,
    calls: u64,
    random: Random,
    pub(crate) served: Served,
}

impl Runner {
    /// A new user.
    pub(crate) fn new(id: usize, ttl_ms: u64, mut random: Random, now: Nanos) -> Runner {
        let careful = random.percent(50);
        let until = now.after(Duration::from_millis(random.below(2_000)));
        Runner {
            id,
            ttl: Ttl::new(ttl_ms).expect("in bounds"),
            session: None,
            doing: Doing::Idle { until },
            turn: None,
            first_open: [0; NAMES],
            careful,
            calls: 0,
            random,
            served: Served::default(),
        }
    }

    /// Its session, if it has one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// The process restarted: the user forgets everything but which jobs are due, which it has from a calendar.
    pub(crate) fn forget(&mut self, now: Nanos) {
        (self.session, self.turn) = (None, None);
        self.rest(now);
    }

    /// When the user acts next, if nothing happens before.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        match &self.doing {
            Doing::Idle { until } | Doing::Works { until } => Some(*until),
            Doing::AboutToReport { at } | Doing::AboutToRepeat { at } => Some(*at),
            Doing::Asked { give_up_at, .. } => *give_up_at,
            Doing::Reads { again_at, .. } => Some(*again_at),
            Doing::Told { .. } | Doing::Called { .. } | Doing::Reported { .. } | Doing::Repeated { .. } => None,
        }
    }

    fn rest(&mut self, now: Nanos) {
        let ms = if self.random.one_in(5) { self.random.below(10_000) } else { self.random.below(1_500) };
        self.doing = Doing::Idle { until: now.after(Duration::from_millis(ms)) };
    }

    /// Does what is due.
    pub(crate) fn handle_time(&mut self, hands: &mut Hands<'_>) {
        match self.doing {
            Doing::Idle { until } if until <= hands.local => self.ask_for_job(hands),
            Doing::Asked { request, give_up_at: Some(at), .. } if at <= hands.local => {
                hands.machine.abandon(request);
                self.rest(hands.local);
            }
            Doing::Reads { why, again_at, .. } if again_at <= hands.local => self.read(why, hands),
            Doing::Works { until } if until <= hands.local => self.next_step(hands),
            Doing::AboutToReport { at } if at <= hands.local => self.report(hands),
            Doing::AboutToRepeat { at } if at <= hands.local => self.report_again(hands),
            _ => {}
        }
    }

    // ---- Asking for a job

    fn ask_for_job(&mut self, hands: &mut Hands<'_>) {
        self.turn = None;
        let session = self.living_session(hands);
        let name = self.random.below(NAMES as u64) as usize;
        let key = self.first_open[name] + self.random.below(KEYS);
        let wait_ms = if self.random.percent(30) { 0 } else { self.random.between(200, 6_000) };
        let wait = if wait_ms == 0 { Wait::No } else { Wait::UpTo(Millis::new(wait_ms).expect("in bounds")) };
        let keep = Keep::new(60_000 + self.random.below(2) * 60_000).expect("in bounds");
        let mut terms = Terms { job: Some(JobTerms { key: job_key(key), keep }), ..Terms::default() };
        if self.random.one_in(6) {
            terms.ttl = Some(Ttl::new(self.random.between(1_000, 4_000)).expect("in bounds"));
        }
        if self.random.one_in(4) {
            terms.max_hold = Some(Millis::new(self.random.between(100, 2_000)).expect("in bounds"));
        }
        if self.random.one_in(10) {
            terms.lock_delay = LockDelay::new(self.random.below(1_500)).expect("in bounds");
        }
        let locks = Locks::from_buf([Lock { name: job_name(name), mode: LockMode::Exclusive }]);
        let action = Action::Acquire(Acquire { locks, owner: None, wait, terms });
        let request = self.ask(session, action, wait_ms, hands);
        let impatient = wait_ms > 0 && self.random.one_in(8);
        let give_up_at = impatient.then(|| hands.local.after(Duration::from_millis(self.random.below(3_000))));
        self.doing = Doing::Asked { request, name, key, give_up_at };
    }

    fn living_session(&mut self, hands: &mut Hands<'_>) -> SessionId {
        if let Some(session) = self.session.filter(|session| hands.machine.is_alive(*session)) {
            return session;
        }
        let new = new_session(self.ttl, &mut self.random);
        let id = new.id;
        hands.machine.open_session(new);
        let (client, user, ttl_ms) = (hands.client, self.id, self.ttl.millis().get());
        hands.observer.line_with(hands.now, "client", |telling| {
            format!("user {user} of client {client} opens session {} of {ttl_ms} ms", telling.session(id))
        });
        self.session = Some(id);
        id
    }

    fn ask(&self, session: SessionId, action: Action, wait_ms: u64, hands: &mut Hands<'_>) -> RequestKey {
        let limit = hands.local.after(PATIENCE + Duration::from_millis(wait_ms));
        let request = hands.machine.request(session, action.clone(), Some(limit));
        hands.tell(&Fact::Asked { request, action: &action });
        request
    }

    // ---- Answers

    /// A request of this runner was answered.
    pub(crate) fn handle_answer(&mut self, request: RequestKey, answer: &Answer, hands: &mut Hands<'_>) {
        hands.tell(&Fact::Told { request, answer });
        if let Answer::Decided(_) = answer {
            self.served.note(hands.now);
        }
        match self.doing {
            Doing::Asked { request: asked, name, key, .. } if asked == request => {
                self.job_answered((name, key), answer, hands);
            }
            Doing::Told { request: told } if told == request => match answer {
                Answer::Decided(Outcome::Begun { .. }) if self.random.percent(40) => self.read(Why::Checkpoint, hands),
                Answer::Decided(Outcome::Begun { .. } | Outcome::Checkpointed { .. }) => self.work(hands),
                _ => self.let_go(hands),
            },
            Doing::Reported { request: reported } if reported == request => self.report_answered(answer, hands),
            Doing::Repeated { request: repeated } if repeated == request => self.rest(hands.local),
            // An answer to a request that it abandoned, or made before its process crashed.
            _ => {}
        }
    }

    fn job_answered(&mut self, (name, key): (usize, u64), answer: &Answer, hands: &mut Hands<'_>) {
        match answer {
            Answer::Decided(Outcome::Granted { grant, token, .. }) => {
                let verdict = match self.random.below(10) {
                    0..=5 => Verdict::Succeeded,
                    6 => Verdict::Failed,
                    _ => Verdict::Open,
                };
                let (steps_left, is_done, resent) = (self.random.below(4), false, 0);
                let (grant, token) = (*grant, *token);
                self.turn = Some(Turn { name, key, grant, token, steps_left, is_done, verdict, resent });
                match self.random.below(12) {
                    0 => self.let_go(hands),
                    1 => self.drop_guard(hands),
                    // A checkpoint or a completion begins the attempt, too.
                    2..=4 => self.work(hands),
                    _ => self.tell(Action::Begin { grant }, hands),
                }
            }
            Answer::Decided(Outcome::Completed { .. }) => {
                // It may leave an earlier job open, which others may find.
                let first = &mut self.first_open[name];
                *first = if key == *first { key + 1 } else { key };
                self.rest(hands.local);
            }
            _ => self.rest(hands.local),
        }
    }

    fn tell(&mut self, action: Action, hands: &mut Hands<'_>) {
        let Some(session) = self.session else { return self.rest(hands.local) };
        let request = self.ask(session, action, 0, hands);
        self.doing = Doing::Told { request };
    }

    // ---- The work

    fn work(&mut self, hands: &mut Hands<'_>) {
        let ms = if self.random.one_in(8) { self.random.between(500, 3_000) } else { self.random.below(250) };
        self.doing = Doing::Works { until: hands.local.after(Duration::from_millis(ms)) };
    }

    /// Whether it goes on: a careful runner looks at its guard.
    fn may_go_on(&self, hands: &mut Hands<'_>) -> bool {
        let Some((turn, session)) = self.turn.as_ref().zip(self.session) else { return false };
        if !self.careful {
            return true;
        }
        let (grant, token) = (turn.grant, turn.token);
        if let GrantState::Lost(_) = hands.machine.grant_state(GrantKey::new(session, grant), hands.local) {
            return false;
        }
        hands.tell(&Fact::Acts { session, grant, token });
        true
    }

    fn next_step(&mut self, hands: &mut Hands<'_>) {
        if !self.may_go_on(hands) {
            return self.let_go(hands);
        }
        let turn = self.turn.as_mut().expect("it goes on with it");
        if turn.steps_left > 0 {
            turn.steps_left -= 1;
            let grant = turn.grant;
            if self.random.percent(70) {
                let bytes = format!("step {} of {:x}", self.random.below(1_000), self.random.number());
                let bytes = JobBytes::new(bytes.as_bytes()).expect("short");
                self.tell(Action::Checkpoint { grant, bytes }, hands);
            } else {
                self.work(hands);
            }
        } else if turn.verdict == Verdict::Succeeded && !turn.is_done {
            self.call_store(hands);
        } else {
            // However short the time between the look at the guard and the report is, a process can be paused in it.
            let us = if self.random.one_in(8) { self.random.below(3_000_000) } else { self.random.delay(1, 20_000) };
            self.doing = Doing::AboutToReport { at: hands.local.after(Duration::from_micros(us)) };
        }
    }

    /// Does the effect of the job at the stores.
    fn call_store(&mut self, hands: &mut Hands<'_>) {
        let Some((turn, session)) = self.turn.as_ref().zip(self.session) else { return self.rest(hands.local) };
        let (name, key) = (job_name(turn.name), Some(job_key(turn.key)));
        let call = Call { name, session, token: turn.token, key, what: CallKind::Once };
        self.calls += 1;
        hands.errands.push(Errand { user: self.id, call: self.calls, what: ErrandKind::Store(call) });
        self.doing = Doing::Called { call: self.calls };
    }

    /// The store answered a call.
    pub(crate) fn handle_store(&mut self, call: u64, reply: Reply, hands: &mut Hands<'_>) {
        if !matches!(self.doing, Doing::Called { call: waited } if waited == call) {
            return;
        }
        match &mut self.turn {
            // The row stands, from now on or from before.
            Some(turn) if reply.accepted => {
                turn.is_done = true;
                self.work(hands);
            }
            _ => self.let_go(hands),
        }
    }

    // ---- Reads

    fn read(&mut self, why: Why, hands: &mut Hands<'_>) {
        let Some(turn) = &self.turn else { return self.rest(hands.local) };
        self.calls += 1;
        let what = ErrandKind::Job(job_name(turn.name), job_key(turn.key));
        hands.errands.push(Errand { user: self.id, call: self.calls, what });
        self.doing = Doing::Reads { call: self.calls, why, again_at: hands.local.after(READ_AGAIN) };
    }

    /// A read of its job was answered.
    pub(crate) fn handle_job(&mut self, call: u64, record: Option<&JobRecord>, hands: &mut Hands<'_>) {
        let why = match self.doing {
            Doing::Reads { call: waited, why, .. } if waited == call => why,
            _ => return,
        };
        self.served.note(hands.now);
        if why == Why::Checkpoint {
            return self.work(hands);
        }
        let own = self.turn.as_ref().map(|turn| turn.token);
        let completed = record.and_then(|record| record.completion.as_ref()).is_some_and(|it| it.token == own);
        let lives = self.session.is_some_and(|session| hands.machine.is_alive(session));
        if completed || !lives {
            // A session that has ended completes nothing any more.
            self.conclude(completed, hands);
            self.rest(hands.local);
        } else {
            self.report_again(hands);
        }
    }

    fn conclude(&self, completed: bool, hands: &mut Hands<'_>) {
        let Some(turn) = self.turn.as_ref().filter(|turn| turn.verdict != Verdict::Open) else { return };
        let (name, key) = (&job_name(turn.name), &job_key(turn.key));
        hands.tell(&Fact::JobConcluded { name, key, token: turn.token, completed });
    }

    // ---- Reports

    fn job_report(&self) -> Option<JobReport> {
        let turn = self.turn.as_ref()?;
        let bytes = match turn.verdict {
            Verdict::Succeeded => format!("done under {}", turn.token.0),
            Verdict::Failed | Verdict::Open => format!("an error under {}", turn.token.0),
        };
        Some(JobReport { verdict: turn.verdict, bytes: JobBytes::new(bytes.as_bytes()).expect("short") })
    }

    fn report(&mut self, hands: &mut Hands<'_>) {
        let Some((report, session)) = self.job_report().zip(self.session) else { return self.rest(hands.local) };
        let grant = self.turn.as_ref().expect("it has a report").grant;
        if !self.careful {
            // It does not look at its guard, so the cluster must refuse it if the grant has ended.
            return self.report_again(hands);
        }
        let action = Action::Release { grant, report: Some(Box::new(report.clone())) };
        match hands.machine.report(GrantKey::new(session, grant), report, hands.local) {
            LetGo::Asked(request) => {
                hands.tell(&Fact::Asked { request, action: &action });
                self.doing = Doing::Reported { request };
                *hands.leaves = self.random.one_in(40);
            }
            LetGo::Lost(_) => self.rest(hands.local),
        }
    }

    /// Sends a report as a request of its own, with a new number, whether it was sent before or not.
    fn report_again(&mut self, hands: &mut Hands<'_>) {
        let Some((report, session)) = self.job_report().zip(self.session) else { return self.rest(hands.local) };
        let turn = self.turn.as_mut().expect("it has a report");
        turn.resent += 1;
        if turn.resent > RESENDS_MAX {
            return self.let_go(hands);
        }
        let action = Action::Release { grant: turn.grant, report: Some(Box::new(report)) };
        // Some runners give up soon, and then do not know what became of it.
        let limit = hands.local.after(Duration::from_millis(self.random.delay(50, 4_000)));
        let request = hands.machine.request(session, action.clone(), Some(limit));
        hands.tell(&Fact::Asked { request, action: &action });
        self.doing = match self.doing {
            Doing::AboutToRepeat { .. } => Doing::Repeated { request },
            _ => Doing::Reported { request },
        };
    }

    fn report_answered(&mut self, answer: &Answer, hands: &mut Hands<'_>) {
        let own = self.turn.as_ref().map(|turn| turn.token);
        match answer {
            Answer::Decided(Outcome::Completed { token, .. }) if *token == own && self.random.one_in(3) => {
                let ms = self.random.below(4_000);
                self.doing = Doing::AboutToRepeat { at: hands.local.after(Duration::from_millis(ms)) };
                self.give_back(false, hands);
            }
            Answer::Decided(_) => self.let_go(hands),
            Answer::SessionEnded { .. } | Answer::Unknown | Answer::Failed(_) => self.read(Why::Outcome, hands),
        }
    }

    // ---- Giving back

    /// Gives the job back without a report, if it is still held, and rests.
    fn let_go(&mut self, hands: &mut Hands<'_>) {
        match self.give_back(true, hands) {
            Some(request) => self.doing = Doing::Repeated { request },
            None => self.rest(hands.local),
        }
        if let Some(session) = self.session.filter(|_| self.random.one_in(40)) {
            hands.machine.close_session(session, Some(hands.local.after(PATIENCE)));
            self.session = None;
            self.rest(hands.local);
        }
    }

    /// Drops its guard and says nothing.
    fn drop_guard(&mut self, hands: &mut Hands<'_>) {
        self.give_back(false, hands);
        self.rest(hands.local);
    }

    fn give_back(&mut self, listened: bool, hands: &mut Hands<'_>) -> Option<RequestKey> {
        let (grant, session) = (self.turn.as_ref()?.grant, self.session?);
        let key = GrantKey::new(session, grant);
        if let GrantState::Lost(_) = hands.machine.grant_state(key, hands.local) {
            return None;
        }
        let limit = Some(hands.local.after(PATIENCE));
        match hands.machine.let_go(key, limit, listened, hands.local) {
            LetGo::Asked(request) => {
                let action = Action::Release { grant, report: None };
                hands.tell(&Fact::Asked { request, action: &action });
                Some(request)
            }
            LetGo::Lost(_) => None,
        }
    }
}

fn job_name(at: usize) -> Name {
    Name::new(&format!("job-{at}")).expect("a plain name")
}

fn job_key(at: u64) -> JobKey {
    JobKey::new(&format!("day-{at}")).expect("a plain key")
}
