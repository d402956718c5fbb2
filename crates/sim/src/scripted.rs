//! A user that carries out the orders of a scenario and notes the results.
//!
//! It decides nothing. When its process crashes it forgets its session and its locks. The notes stay: they are for the scenario's
//! expectations, not for the user.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::{
    Acquire, Action, GrantId, JobBytes, JobKey, JobRecord, JobReport, JobTerms, Keep, Lock, LockMode, Locks, Name,
    Nanos, Outcome, OwnerName, SessionId, Terms, Token, Ttl, Verdict, Wait,
};
use fencepost_session::client::{Answer, GrantKey, GrantState, LetGo, RequestKey};

use crate::fact::Fact;
use crate::random::Random;
use crate::store::{Call, CallKind, Reply, Versions};
use crate::user::new_session;
use crate::worker::{Errand, ErrandKind, Hands};

/// How much longer than the cluster it waits before it gives up.
const PATIENCE: Duration = Duration::from_secs(4);

/// An order of a scenario to a user. A paused process carries it out when it wakes up.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Requests a lock. With `hold_ms` the user releases it that long after the grant.
    Acquire { lock: Name, owner: Option<OwnerName>, job: Option<JobKey>, wait: Wait, hold_ms: Option<u64> },
    /// Stores a checkpoint of the job that it holds under this name.
    Checkpoint { lock: Name, text: JobBytes },
    /// Completes the job that it holds under this name.
    Complete { lock: Name, result: JobBytes },
    /// Reads a job.
    ReadJob { lock: Name, key: JobKey },
    /// Releases a lock.
    Release { lock: Name },
    /// Checks its guard.
    Check { lock: Name },
    /// Calls the store with the token of this lock.
    Go { lock: Name, to: Visit },
    /// Ends its session.
    Close,
}

/// What a user does at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Visit {
    /// Reads.
    Read,
    /// Claims, and reads.
    Claim,
    /// Writes, based on its last read.
    Write,
}

#[derive(Clone, Debug)]
struct Hold {
    grant: GrantId,
    token: Token,
    read: Versions,
    release_at: Option<Nanos>,
}

/// The results of a user's orders.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The answer to its last request for a lock; `None` while the request is pending.
    pub(crate) answer: Option<Answer>,
    /// The state of its guard at the last check, for each lock; `None` if it did not hold the lock.
    pub(crate) guard: BTreeMap<Name, Option<GrantState>>,
    /// The last reply of the store, for each kind of visit.
    pub(crate) store: Vec<(Visit, Reply)>,
    /// The last token, for each lock.
    pub(crate) tokens: BTreeMap<Name, Token>,
    /// How often it was granted a lock.
    pub(crate) served: u64,
    /// The last job that it read.
    pub(crate) job: Option<Box<JobRecord>>,
}

/// A user of a scenario.
#[derive(Debug)]
pub(crate) struct ScriptedUser {
    id: usize,
    /// Its name in the scenario.
    pub(crate) name: String,
    ttl: Ttl,
    session: Option<SessionId>,
    asked: BTreeMap<RequestKey, (Name, Option<u64>)>,
    holds: BTreeMap<Name, Hold>,
    /// The pending calls to the store, by number: for which lock, and what kind of visit.
    calls: BTreeMap<u64, (Name, Visit)>,
    random: Random,
    pub(crate) notes: Notes,
}

impl ScriptedUser {
    /// A user without a session.
    pub(crate) fn new(id: usize, name: String, ttl: Ttl, random: Random) -> ScriptedUser {
        let (asked, holds, calls) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        ScriptedUser { id, name, ttl, session: None, asked, holds, calls, random, notes: Notes::default() }
    }

    /// Its session, if it has one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.session
    }

    /// The process restarted: the user forgets its session and its locks.
    pub(crate) fn forget(&mut self) {
        self.session = None;
        self.asked.clear();
        self.holds.clear();
    }

    /// When the user next has to release a lock.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.holds.values().filter_map(|hold| hold.release_at).min()
    }

    /// Releases the locks whose hold time is over.
    pub(crate) fn handle_time(&mut self, hands: &mut Hands<'_>) {
        let due = self.holds.iter().filter(|(_, hold)| hold.release_at.is_some_and(|at| at <= hands.local));
        for lock in due.map(|(lock, _)| lock.clone()).collect::<Vec<_>>() {
            self.release(&lock, hands);
        }
    }

    /// Carries out an order.
    pub(crate) fn handle_order(&mut self, order: Order, hands: &mut Hands<'_>) {
        match order {
            Order::Acquire { lock, owner, job, wait, hold_ms } => {
                let terms = Terms { job: job.map(|key| JobTerms { key, keep: Keep::default() }), ..Terms::default() };
                let locks = Locks::from_buf([Lock { name: lock.clone(), mode: LockMode::Exclusive }]);
                let action = Action::Acquire(Acquire { locks, owner, wait, terms });
                let limit = match wait {
                    Wait::No => Some(hands.local.after(PATIENCE)),
                    Wait::UpTo(ms) => Some(hands.local.after(PATIENCE + Duration::from_millis(ms.get()))),
                    Wait::Forever => None,
                };
                let session = self.living_session(hands);
                let request = hands.machine.request(session, action.clone(), limit);
                hands.tell(&Fact::Asked { request, action: &action });
                self.notes.answer = None;
                self.asked.insert(request, (lock, hold_ms));
            }
            Order::Release { lock } => self.release(&lock, hands),
            Order::Checkpoint { lock, text } => {
                let Some((hold, session)) = self.holds.get(&lock).zip(self.session) else { return };
                let action = Action::Checkpoint { grant: hold.grant, bytes: text };
                let request = hands.machine.request(session, action.clone(), Some(hands.local.after(PATIENCE)));
                hands.tell(&Fact::Asked { request, action: &action });
            }
            Order::Complete { lock, result } => self.complete(&lock, result, hands),
            Order::ReadJob { lock, key } => {
                self.notes.job = None;
                let call = self.random.number();
                hands.errands.push(Errand { user: self.id, call, what: ErrandKind::Job(lock, key) });
            }
            Order::Check { lock } => self.check(lock, hands),
            Order::Go { lock, to } => self.go(lock, to, hands),
            Order::Close => {
                if let Some(session) = self.session {
                    hands.machine.close_session(session, Some(hands.local.after(PATIENCE)));
                }
            }
        }
    }

    /// A request of this user was answered.
    pub(crate) fn handle_answer(&mut self, request: RequestKey, answer: &Answer, hands: &mut Hands<'_>) {
        hands.tell(&Fact::Told { request, answer });
        let Some((lock, hold_ms)) = self.asked.remove(&request) else { return };
        self.notes.answer = Some(answer.clone());
        if let Answer::Decided(Outcome::Granted { grant, token, .. }) = answer {
            let release_at = hold_ms.map(|ms| hands.local.after(Duration::from_millis(ms)));
            self.notes.served += 1;
            self.notes.tokens.insert(lock.clone(), *token);
            self.holds.insert(lock, Hold { grant: *grant, token: *token, read: Versions::default(), release_at });
        }
    }

    /// The store answered a call.
    pub(crate) fn handle_store(&mut self, call: u64, reply: Reply) {
        let Some((lock, visit)) = self.calls.remove(&call) else { return };
        self.notes.store.retain(|(noted, _)| *noted != visit);
        self.notes.store.push((visit, reply));
        if let Some(hold) = self.holds.get_mut(&lock).filter(|_| visit != Visit::Write) {
            hold.read = reply.versions;
        }
    }

    /// The cluster answered a read of a job.
    pub(crate) fn handle_job(&mut self, _: u64, record: Option<&JobRecord>) {
        self.notes.job = record.cloned().map(Box::new);
    }

    /// The current session if it is alive, or a new one.
    fn living_session(&mut self, hands: &mut Hands<'_>) -> SessionId {
        if let Some(session) = self.session.filter(|session| hands.machine.is_alive(*session)) {
            return session;
        }
        let new = new_session(self.ttl, &mut self.random);
        let id = new.id;
        hands.observer.introduce(id, &self.name);
        hands.machine.open_session(new);
        self.session = Some(id);
        id
    }

    fn release(&mut self, lock: &Name, hands: &mut Hands<'_>) {
        let Some((hold, session)) = self.holds.remove(lock).zip(self.session) else { return };
        let limit = Some(hands.local.after(PATIENCE));
        match hands.machine.let_go(GrantKey::new(session, hold.grant), limit, true, hands.local) {
            LetGo::Asked(request) => {
                let action = Action::Release { grant: hold.grant, report: None };
                hands.tell(&Fact::Asked { request, action: &action });
            }
            LetGo::Lost(lost) => {
                hands.observer.line(hands.now, &self.name, || format!("has nothing to release on {lock}: {lost}"));
            }
        }
    }

    fn complete(&mut self, lock: &Name, result: JobBytes, hands: &mut Hands<'_>) {
        let Some((hold, session)) = self.holds.remove(lock).zip(self.session) else { return };
        let report = JobReport { verdict: Verdict::Succeeded, bytes: result };
        let action = Action::Release { grant: hold.grant, report: Some(Box::new(report.clone())) };
        match hands.machine.report(GrantKey::new(session, hold.grant), report, hands.local) {
            LetGo::Asked(request) => {
                hands.tell(&Fact::Asked { request, action: &action });
                self.notes.answer = None;
                self.asked.insert(request, (lock.clone(), None));
            }
            LetGo::Lost(lost) => {
                hands.observer.line(hands.now, &self.name, || format!("has no job to complete on {lock}: {lost}"));
            }
        }
    }

    fn check(&mut self, lock: Name, hands: &mut Hands<'_>) {
        let held = self.holds.get(&lock).zip(self.session);
        let state = held.map(|(hold, session)| {
            let state = hands.machine.grant_state(GrantKey::new(session, hold.grant), hands.local);
            if let GrantState::Lost(lost) = &state {
                let line = || format!("looks at its guard of {lock}: LOST, {lost}");
                hands.observer.line(hands.now, &self.name, line);
            } else {
                let (grant, token) = (hold.grant, hold.token);
                hands.tell(&Fact::Acts { session, grant, token });
            }
            state
        });
        self.notes.guard.insert(lock, state);
    }

    fn go(&mut self, lock: Name, to: Visit, hands: &mut Hands<'_>) {
        let Some((hold, session)) = self.holds.get(&lock).zip(self.session) else { return };
        let what = match to {
            Visit::Read => CallKind::Read,
            Visit::Claim => CallKind::Claim,
            Visit::Write => CallKind::Write(hold.read),
        };
        // Random rather than a count of the pending calls: a late answer must find the call that it belongs to.
        let call = self.random.number();
        let what = Call { name: lock.clone(), session, token: hold.token, key: None, what };
        hands.errands.push(Errand { user: self.id, call, what: ErrandKind::Store(what) });
        self.calls.insert(call, (lock, to));
    }
}
