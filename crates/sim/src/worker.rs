//! A worker: a user that acts by chance, with a session of its own.
//!
//! It takes locks of every kind, works at the store that they protect, converts, nests, gives up, elects and releases. It uses the real
//! client machine, and asks the store through errands that the world carries out. It never checks the cluster: the checkers do.

use fencepost_core::{
    Acquire, Action, GrantId, JobKey, Lock, LockDelay, LockMode, Locks, Millis, Name, Nanos, Outcome, OwnerName,
    Permits, SessionId, TakePermits, Terms, Token, Ttl, Value, Wait,
};
use fencepost_session::client::{Answer, Connection, GrantKey, GrantState, LetGo, RequestKey};
use std::time::Duration;

use crate::fact::{Fact, WorldTime};
use crate::observer::Observer;
use crate::random::Random;
use crate::store::{Call, CallKind, Reply, Versions};
use crate::user::{Served, new_session};

/// Number of account names. Few, so that workers compete.
const ACCOUNTS: u64 = 4;
const PATHS: [&str; 6] = ["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/e", "/f/g"];
const SEMAPHORE_LIMIT: u32 = 3;
/// How much longer than the cluster a client waits before it gives up.
const PATIENCE: Duration = Duration::from_secs(4);

/// A grant that a worker holds.
#[derive(Clone, Debug)]
struct Hold {
    grant: GrantId,
    token: Token,
    /// The lock, if the grant is of a single lock.
    lock: Option<Lock>,
    /// The versions that it read at the store.
    read: Option<Versions>,
}

/// What a worker does with its next grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Reads, works, writes.
    Write,
    /// Reads.
    Read,
    /// Reads with an update lock, then upgrades, writes, and perhaps weakens.
    Upgrade,
    /// Only holds it.
    Keep,
    /// Takes a second lock while it holds the first, in any order, as a named owner. May deadlock.
    Nest,
    /// Enters the same lock twice.
    Enter,
    /// Holds it for long, and sets a value.
    Elect,
    /// Tries to release a grant of another session.
    Steal,
}

#[derive(Clone, Debug)]
enum Doing {
    /// Does nothing until then.
    Idle { until: Nanos },
    /// Waits for the answer to a request, at most until `give_up_at`.
    Asked { request: RequestKey, give_up_at: Option<Nanos> },
    /// Waits for the store.
    Called { call: u64 },
    /// Works until then.
    Working { until: Nanos },
    /// Has checked its guard and is about to write. If its process is paused here, it writes when it wakes up.
    AboutToWrite { at: Nanos },
    /// Releases its grants one after the other, and waits for this answer.
    LettingGo { request: RequestKey },
}

/// A user that acts by chance.
#[derive(Debug)]
pub(crate) struct Worker {
    /// Its number within its process.
    pub(crate) id: usize,
    ttl: Ttl,
    session: Option<SessionId>,
    doing: Doing,
    task: Task,
    /// The single lock of its current or last request, and the owner. `None` for several locks or permits.
    wanted: Option<(Lock, Option<OwnerName>)>,
    holds: Vec<Hold>,
    last_grant: GrantId,
    /// Whether it checks its guard before it writes. Some users do not.
    careful: bool,
    calls: u64,
    random: Random,
    pub(crate) served: Served,
}

/// A call that the world makes for a user.
pub(crate) struct Errand {
    /// The user that waits for the answer.
    pub(crate) user: usize,
    /// The user's number for this call.
    pub(crate) call: u64,
    pub(crate) what: ErrandKind,
}

/// Where a call goes.
pub(crate) enum ErrandKind {
    /// To the stores.
    Store(Call),
    /// To the cluster: a read of a job.
    Job(Name, JobKey),
}

/// What a user needs to act.
pub(crate) struct Hands<'a> {
    /// Its process.
    pub(crate) client: usize,
    /// In a process of the efficiency tier: the cluster and the group of the last greeting.
    pub(crate) in_memory: Option<(u128, u64)>,
    /// The client machine of its process.
    pub(crate) machine: &'a mut Connection,
    pub(crate) observer: &'a mut Observer,
    /// The world's time, for facts only.
    pub(crate) now: WorldTime,
    /// The time that the process's clock shows.
    pub(crate) local: Nanos,
    /// Calls for the world to make.
    pub(crate) errands: &'a mut Vec<Errand>,
    /// Set by a user whose program ends now: the process sends what the library sends at its end, and starts again.
    pub(crate) leaves: &'a mut bool,
}

impl Hands<'_> {
    /// Reports a fact about a user. Facts of the efficiency tier are wrapped: they are in no log, so the checkers of the log must not
    /// see them.
    pub(crate) fn tell(&mut self, fact: &Fact<'_>) {
        match self.in_memory {
            None => self.observer.fact(self.now, fact),
            Some(group) => self.observer.fact(self.now, &Fact::InMemory { group, fact }),
        }
    }
}

impl Worker {
    /// A new user.
    pub(crate) fn new(id: usize, ttl_ms: u64, mut random: Random, now: Nanos) -> Worker {
        let careful = !random.one_in(4);
        let until = now.after(Duration::from_millis(random.below(2_000)));
        Worker {
            id,
            ttl: Ttl::new(ttl_ms).expect("in bounds"),
            session: None,
            doing: Doing::Idle { until },
            task: Task::Keep,
            wanted: None,
            holds: Vec::new(),
            last_grant: GrantId(0),
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

    /// The process restarted: the user forgets everything.
    pub(crate) fn forget(&mut self, now: Nanos) {
        self.session = None;
        self.holds.clear();
        self.rest(now);
    }

    /// When the user acts next, if nothing happens before.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        match &self.doing {
            Doing::Idle { until } | Doing::Working { until } => Some(*until),
            Doing::AboutToWrite { at } => Some(*at),
            Doing::Asked { give_up_at, .. } => *give_up_at,
            Doing::Called { .. } | Doing::LettingGo { .. } => None,
        }
    }

    fn rest(&mut self, now: Nanos) {
        let ms = if self.random.one_in(5) { self.random.below(10_000) } else { self.random.below(1_500) };
        self.doing = Doing::Idle { until: now.after(Duration::from_millis(ms)) };
    }

    /// Does what is due.
    pub(crate) fn handle_time(&mut self, hands: &mut Hands<'_>) {
        match self.doing {
            Doing::Idle { until } if until <= hands.local => self.begin(hands),
            Doing::Asked { request, give_up_at: Some(at) } if at <= hands.local => {
                // Like a caller that drops the future: no answer will come.
                hands.machine.abandon(request);
                self.let_go(hands);
            }
            Doing::Working { until } if until <= hands.local => self.finish_work(hands),
            Doing::AboutToWrite { at } if at <= hands.local => self.write(hands),
            _ => {}
        }
    }

    /// A request of this worker was answered.
    pub(crate) fn handle_answer(&mut self, request: RequestKey, answer: &Answer, hands: &mut Hands<'_>) {
        hands.tell(&Fact::Told { request, answer });
        match self.doing.clone() {
            Doing::Asked { request: asked, .. } if asked == request => self.answered(answer, hands),
            Doing::LettingGo { request: asked } if asked == request => self.let_go(hands),
            // An answer to a request that the worker abandoned, or made before its process crashed.
            _ => {}
        }
    }

    fn answered(&mut self, answer: &Answer, hands: &mut Hands<'_>) {
        if let Answer::Decided(_) = answer {
            self.served.note(hands.now);
        }
        match answer {
            Answer::Decided(Outcome::Granted { grant, token, .. }) => {
                self.last_grant = *grant;
                let lock = self.wanted.as_ref().map(|(lock, _)| lock.clone());
                self.holds.push(Hold { grant: *grant, token: *token, lock, read: None });
                self.go_on(hands);
            }
            Answer::Decided(Outcome::Converted { token, .. }) => {
                if let Some(hold) = self.holds.last_mut() {
                    hold.token = *token;
                }
                match self.task {
                    Task::Upgrade => self.call(CallKind::Claim, hands),
                    // It has weakened its lock, and is done.
                    _ => self.let_go(hands),
                }
            }
            _ => self.let_go(hands),
        }
    }

    /// Continues its task after a grant.
    fn go_on(&mut self, hands: &mut Hands<'_>) {
        match (self.task, self.holds.len()) {
            (Task::Write, _) => self.call(CallKind::Claim, hands),
            (Task::Read | Task::Upgrade, _) => self.call(CallKind::Read, hands),
            (Task::Nest | Task::Enter, 1) => self.ask_for_more(hands),
            (Task::Elect, 1) if self.random.percent(50) => {
                let value = Value::new(format!("leader {}", self.served.count).as_bytes()).expect("a short value");
                let grant = self.holds[0].grant;
                self.ask(Action::SetValue { grant, value }, None, hands);
                self.task = Task::Keep;
            }
            _ => self.work(hands),
        }
    }

    fn work(&mut self, hands: &mut Hands<'_>) {
        let ms = match self.task {
            Task::Elect => self.random.between(2_000, 8_000),
            _ if self.random.one_in(10) => self.random.between(500, 4_000),
            _ => self.random.below(300),
        };
        self.doing = Doing::Working { until: hands.local.after(Duration::from_millis(ms)) };
    }

    /// The store answered a call.
    pub(crate) fn handle_store(&mut self, call: u64, reply: Reply, hands: &mut Hands<'_>) {
        if !matches!(self.doing, Doing::Called { call: waited } if waited == call) {
            return;
        }
        let Some(hold) = self.holds.last_mut() else { return self.rest(hands.local) };
        match self.task {
            Task::Upgrade if hold.read.is_none() && reply.accepted => {
                hold.read = Some(reply.versions);
                let (grant, name) = (hold.grant, hold.lock.as_ref().map(|lock| lock.name.clone()));
                if let Some(name) = name {
                    let wait = Wait::UpTo(Millis::new(2_000).expect("in bounds"));
                    self.ask(Action::Convert { grant, name, mode: LockMode::Exclusive, wait }, Some(2_000), hands);
                }
            }
            Task::Write | Task::Upgrade if reply.accepted => {
                hold.read = Some(reply.versions);
                self.work(hands);
            }
            Task::Read => self.work(hands),
            _ => self.let_go(hands),
        }
    }

    fn finish_work(&mut self, hands: &mut Hands<'_>) {
        let Some(hold) = self.holds.last().cloned() else { return self.rest(hands.local) };
        let session = self.session.expect("it holds something");
        let writes = matches!(self.task, Task::Write | Task::Upgrade) && hold.read.is_some();
        if self.careful {
            let key = GrantKey::new(session, hold.grant);
            if let GrantState::Lost(_) = hands.machine.grant_state(key, hands.local) {
                return self.let_go(hands);
            }
            hands.tell(&Fact::Acts { session, grant: hold.grant, token: hold.token });
        }
        if writes {
            // However short the time between the check of the guard and the write is, a process can be paused in it.
            let us = self.random.delay(1, 20_000);
            self.doing = Doing::AboutToWrite { at: hands.local.after(Duration::from_micros(us)) };
        } else if matches!(self.task, Task::Keep) && self.random.one_in(8) && hold.lock.is_some() {
            let lock = hold.lock.expect("just looked");
            let action = Action::Convert { grant: hold.grant, name: lock.name, mode: LockMode::Shared, wait: Wait::No };
            self.ask(action, None, hands);
        } else {
            self.let_go(hands);
        }
    }

    fn write(&mut self, hands: &mut Hands<'_>) {
        let read = self.holds.last().and_then(|hold| hold.read).unwrap_or_default();
        self.call(CallKind::Write(read), hands);
        // The only thing left is to wait for the answer to the write.
        self.task = Task::Keep;
    }

    fn call(&mut self, what: CallKind, hands: &mut Hands<'_>) {
        let Some((hold, session)) = self.holds.last().zip(self.session) else { return self.rest(hands.local) };
        let Some(lock) = &hold.lock else { return self.let_go(hands) };
        self.calls += 1;
        let what = Call { name: lock.name.clone(), session, token: hold.token, key: None, what };
        hands.errands.push(Errand { user: self.id, call: self.calls, what: ErrandKind::Store(what) });
        self.doing = Doing::Called { call: self.calls };
    }

    /// Releases its newest grant; when none is left it idles, and perhaps closes its session.
    fn let_go(&mut self, hands: &mut Hands<'_>) {
        let Some(session) = self.session else { return self.rest(hands.local) };
        while let Some(hold) = self.holds.pop() {
            let key = GrantKey::new(session, hold.grant);
            let limit = Some(hands.local.after(PATIENCE));
            match hands.machine.let_go(key, limit, true, hands.local) {
                LetGo::Asked(request) => {
                    let action = Action::Release { grant: hold.grant, report: None };
                    hands.tell(&Fact::Asked { request, action: &action });
                    self.doing = Doing::LettingGo { request };
                    return;
                }
                LetGo::Lost(_) => {}
            }
        }
        if !hands.machine.is_alive(session) {
            self.session = None;
        } else if self.random.one_in(40) {
            hands.machine.close_session(session, Some(hands.local.after(PATIENCE)));
            self.session = None;
        }
        self.rest(hands.local);
    }

    fn ask(&mut self, action: Action, wait_ms: Option<u64>, hands: &mut Hands<'_>) {
        let session = self.session.expect("a worker that asks has a session");
        let limit = hands.local.after(PATIENCE + Duration::from_millis(wait_ms.unwrap_or(0)));
        let request = hands.machine.request(session, action.clone(), Some(limit));
        hands.tell(&Fact::Asked { request, action: &action });
        let impatient = wait_ms.is_some_and(|ms| ms > 0) && self.random.one_in(6);
        let give_up_at = impatient.then(|| hands.local.after(Duration::from_millis(self.random.below(3_000))));
        self.doing = Doing::Asked { request, give_up_at };
    }

    fn account(&mut self) -> Name {
        account(self.random.below(ACCOUNTS))
    }

    /// Chooses a new task, and requests what it needs.
    fn begin(&mut self, hands: &mut Hands<'_>) {
        if self.session.is_none_or(|session| !hands.machine.is_alive(session)) {
            self.open(hands);
        }
        let (wait, wait_ms) = match self.random.below(10) {
            0..=2 => (Wait::No, 0),
            _ => {
                let ms = self.random.between(200, 6_000);
                (Wait::UpTo(Millis::new(ms).expect("in bounds")), ms)
            }
        };
        let mut terms = Terms::default();
        if self.random.one_in(6) {
            terms.ttl = Some(Ttl::new(self.random.between(1_000, 4_000)).expect("in bounds"));
        }
        if self.random.one_in(8) {
            terms.max_hold = Some(Millis::new(self.random.between(200, 2_000)).expect("in bounds"));
        }
        if self.random.one_in(6) {
            terms.lock_delay = LockDelay::new(self.random.below(3_000)).expect("in bounds");
        }
        terms.hear_contended = self.random.one_in(6);
        let owner = OwnerName::new(&format!("owner-{}", self.random.below(2))).expect("a plain name");
        let any_mode = *self.random.pick(&[LockMode::Shared, LockMode::Update, LockMode::Exclusive]);
        let (task, name, mode, owner) = match self.random.below(17) {
            0..=5 => (Task::Write, self.account(), LockMode::Exclusive, None),
            6..=7 => (Task::Read, self.account(), LockMode::Shared, None),
            8..=9 => (Task::Upgrade, self.account(), LockMode::Update, None),
            10 => return self.take_several(wait, wait_ms, terms, hands),
            11 => (Task::Keep, Name::new(self.random.pick::<&str>(&PATHS)).expect("a path"), any_mode, None),
            12 => return self.take_permits(wait, wait_ms, terms, hands),
            13 => {
                terms.value = Some(Value::new(b"candidate").expect("a short value"));
                (Task::Elect, Name::new("leader").expect("a plain name"), LockMode::Exclusive, None)
            }
            14 => return self.steal(hands),
            15 => (Task::Nest, self.account(), LockMode::Exclusive, Some(owner)),
            _ => (Task::Enter, self.account(), LockMode::Exclusive, Some(owner)),
        };
        self.task = match task {
            // Grants of the efficiency tier have no token for the store.
            Task::Write | Task::Read | Task::Upgrade if hands.in_memory.is_some() => Task::Keep,
            task => task,
        };
        self.acquire(Lock { name, mode }, owner, (wait, wait_ms), terms, hands);
    }

    fn acquire(
        &mut self,
        lock: Lock,
        owner: Option<OwnerName>,
        (wait, wait_ms): (Wait, u64),
        terms: Terms,
        hands: &mut Hands<'_>,
    ) {
        self.wanted = Some((lock.clone(), owner.clone()));
        let locks = Locks::from_buf([lock]);
        self.ask(Action::Acquire(Acquire { locks, owner, wait, terms }), Some(wait_ms), hands);
    }

    /// The same owner requests the same lock once more, or a second lock.
    fn ask_for_more(&mut self, hands: &mut Hands<'_>) {
        let Some((mut lock, owner)) = self.wanted.clone() else { return self.work(hands) };
        if self.task == Task::Nest {
            lock.name = self.account();
        }
        let wait = Wait::UpTo(Millis::new(3_000).expect("in bounds"));
        self.acquire(lock, owner, (wait, 3_000), Terms::default(), hands);
    }

    /// Requests all accounts but one as a multi-lock, each in a random mode.
    fn take_several(&mut self, wait: Wait, wait_ms: u64, terms: Terms, hands: &mut Hands<'_>) {
        (self.task, self.wanted) = (Task::Keep, None);
        let without = self.random.below(ACCOUNTS);
        let modes = [LockMode::Shared, LockMode::Update, LockMode::Exclusive];
        let names = (0..ACCOUNTS).filter(|at| *at != without).map(account);
        let locks = names.map(|name| Lock { name, mode: *self.random.pick(&modes) }).collect();
        self.ask(Action::Acquire(Acquire { locks, owner: None, wait, terms }), Some(wait_ms), hands);
    }

    /// Tries to release a grant that it does not hold: one with an id slightly above the last one it knows.
    fn steal(&mut self, hands: &mut Hands<'_>) {
        (self.task, self.wanted) = (Task::Steal, None);
        let grant = GrantId(self.last_grant.0 + self.random.between(1, 4));
        self.ask(Action::Release { grant, report: None }, None, hands);
    }

    fn take_permits(&mut self, wait: Wait, wait_ms: u64, terms: Terms, hands: &mut Hands<'_>) {
        (self.task, self.wanted) = (Task::Keep, None);
        let name = Name::new("permits").expect("a plain name");
        let permits = Permits::new(self.random.between(1, 2) as u32).expect("in bounds");
        let limit = Some(Permits::new(SEMAPHORE_LIMIT).expect("in bounds"));
        self.ask(Action::TakePermits(TakePermits { name, permits, limit, wait, terms }), Some(wait_ms), hands);
    }

    fn open(&mut self, hands: &mut Hands<'_>) {
        let ttl = self.ttl;
        let new = new_session(ttl, &mut self.random);
        let id = new.id;
        hands.machine.open_session(new);
        let (client, user) = (hands.client, self.id);
        hands.observer.line_with(hands.now, "client", |telling| {
            format!("user {user} of client {client} opens session {} of {} ms", telling.session(id), ttl.millis().get())
        });
        self.session = Some(id);
    }
}

fn account(at: u64) -> Name {
    Name::new(&format!("account-{at}")).expect("a plain name")
}
