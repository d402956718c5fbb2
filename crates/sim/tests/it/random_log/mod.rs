//! Random logs for the checkers: clients send all kinds of requests to a real lock state, and know what they hold.
//!
//! The clients know the state only from its answers. The seed decides everything.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{
    Acquire, Act, Action, Admin, Batch, Effects, Epoch, Event, FreezeId, GrantEnd, GrantId, Held, JobBytes, JobKey,
    JobReport, JobTerms, Keep, Lock, LockDelay, LockMode, LockState, Locks, LogPosition, LogicalMs, Metadata, Millis,
    Name, Open, Operation, Outcome, OwnerName, Permits, Principal, Push, Reason, Renewal, Request, RequestNumber,
    Scope, SecretHash, Seen, SessionId, TakePermits, Terms, Ttl, Verdict, Wait,
};
use fencepost_sim::fact::LoggedEntry;

/// The size of a random log's world.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) sessions: u64,
    pub(crate) names: u64,
    /// The most operations in one entry.
    pub(crate) operations: u64,
    /// Percentage of unusual commands: administrators, retries, old epochs.
    pub(crate) unusual_percent: u64,
}

/// A lock state and its clients.
pub(crate) struct World {
    random: Random,
    size: Size,
    state: LockState,
    position: LogPosition,
    stamp: u64,
    clients: Vec<Client>,
    names: Vec<Name>,
    freezes: Vec<FreezeId>,
    rests: Vec<GrantId>,
}

struct Client {
    session: SessionId,
    epoch: u64,
    lives: bool,
    next_number: u64,
    held: BTreeMap<GrantId, Held>,
    /// The grants that it has for jobs, also those that have ended: late completions are sent, too.
    jobs: BTreeSet<GrantId>,
    /// Its requests for jobs.
    job_requests: BTreeSet<RequestNumber>,
    waits: Vec<RequestNumber>,
    last: Option<Request>,
}

impl Client {
    fn new(session: SessionId) -> Client {
        let (held, jobs, job_requests) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Client {
            session,
            epoch: 1,
            lives: false,
            next_number: 1,
            held,
            jobs,
            job_requests,
            waits: Vec::new(),
            last: None,
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

const MODES: [LockMode; 3] = [LockMode::Shared, LockMode::Update, LockMode::Exclusive];

impl World {
    pub(crate) fn new(seed: u64, size: Size) -> World {
        let path = |at: u64| match at % 4 {
            0 => format!("/t{}", at / 8),
            1 => format!("/t{}/r{at}", at / 8),
            _ => format!("n{at}"),
        };
        World {
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            size,
            state: LockState::new(seed),
            position: LogPosition { index: 1, term: 1 },
            stamp: 1,
            clients: (1..=size.sessions).map(|id| Client::new(SessionId(u128::from(id)))).collect(),
            names: (0..size.names).map(|at| Name::new(&path(at)).expect("a valid name")).collect(),
            freezes: Vec::new(),
            rests: Vec::new(),
        }
    }

    /// The next entry, applied.
    pub(crate) fn next_entry(&mut self) -> LoggedEntry {
        let mut batch = Batch { failover_grace: self.random.percent(3), ..Batch::default() };
        let step_ms = if self.random.percent(2) { 20_000 } else { self.random.one_of(&[0, 5, 50, 50, 400]) };
        self.stamp += self.random.below(step_ms + 1);
        if self.random.percent(30)
            && let Some(due) = self.state.next_deadline()
        {
            // Just before a deadline and exactly at it: most mistakes show there.
            let before = self.random.below(2);
            if due.0 < self.stamp + 3_000 {
                self.stamp = self.stamp.max(due.0 - before.min(due.0));
            }
        }
        let renewals = 1 + self.size.sessions / 64;
        for _ in 0..renewals {
            let at = self.random.below(self.size.sessions) as usize;
            batch.renewals.push(self.renewal(at));
        }
        for _ in 0..=self.random.below(self.size.operations) {
            let at = self.random.below(self.size.sessions) as usize;
            batch.operations.push(self.operation(at));
        }
        self.position.index += 1;
        self.position.term += u64::from(batch.failover_grace);
        let stamp = LogicalMs(self.stamp);
        let effects = self.state.apply(stamp, batch.clone());
        self.learn(&batch, &effects);
        LoggedEntry { position: self.position, stamp, wall_clock_ms: None, batch, effects }
    }

    fn is_unusual(&mut self) -> bool {
        self.random.percent(self.size.unusual_percent)
    }

    fn renewal(&mut self, at: usize) -> Renewal {
        let client = &self.clients[at];
        let (session, epoch) = (client.session, client.epoch);
        let first_wait = client.waits.iter().map(|number| number.0).min().unwrap_or(u64::MAX);
        let mark = client.next_number.saturating_sub(3).min(first_wait - 1);
        let seen = Seen { mark, ..Seen::default() };
        if self.is_unusual() {
            let secret_hash = SecretHash([u8::from(self.random.percent(20)); 32]);
            return Renewal::Attach { session, secret_hash, seen };
        }
        let epoch = if self.is_unusual() { epoch.saturating_sub(1) } else { epoch };
        Renewal::KeepAlive { session, epoch: Epoch(epoch), seen }
    }

    fn operation(&mut self, at: usize) -> Operation {
        if !self.clients[at].lives {
            let session = SessionId(self.clients[at].session.0 + u128::from(self.size.sessions));
            self.clients[at] = Client::new(session);
            let ttl = self.random.one_of(&[1_000, 5_000, 30_000]);
            return Operation::Open(Open {
                session,
                secret_hash: SecretHash([0; 32]),
                principal: Principal::new("tester").expect("valid"),
                ttl: Ttl::new(ttl).expect("valid"),
                metadata: Metadata::default(),
            });
        }
        if self.is_unusual() && self.random.percent(40) {
            return self.admin();
        }
        if self.is_unusual()
            && let Some(last) = &self.clients[at].last
        {
            return Operation::Request(last.clone());
        }
        let action = self.action(at);
        let is_stale = self.is_unusual() && self.random.percent(20);
        let client = &mut self.clients[at];
        client.next_number += 1;
        let epoch = Epoch(if is_stale { client.epoch - 1 } else { client.epoch });
        let number = RequestNumber(client.next_number);
        let request = Request { session: client.session, epoch, number, seen: Seen::default(), action };
        if matches!(&request.action, Action::Acquire(acquire) if acquire.terms.job.is_some()) {
            client.job_requests.insert(number);
        }
        client.last = Some(request.clone());
        Operation::Request(request)
    }

    fn grant(&mut self, at: usize) -> Option<GrantId> {
        if let Some(newest) = self.clients[at].jobs.last().copied()
            && self.random.percent(20)
        {
            // It may have ended.
            return Some(newest);
        }
        let at = if self.is_unusual() { self.random.below(self.size.sessions) as usize } else { at };
        let held = &self.clients[at].held;
        let nth = self.random.below(held.len() as u64) as usize;
        held.keys().nth(nth).copied()
    }

    fn action(&mut self, at: usize) -> Action {
        let holds = self.clients[at].held.len() as u64;
        if self.random.percent((holds * 20).min(80))
            && let Some(grant) = self.grant(at)
        {
            return Action::Release { grant, report: self.report(at, grant) };
        }
        match self.random.below(100) {
            0..10 if !self.clients[at].waits.is_empty() => {
                let nth = self.random.below(self.clients[at].waits.len() as u64) as usize;
                Action::Cancel { request: self.clients[at].waits[nth], release_if_granted: true }
            }
            10..22 if holds > 0 => match self.grant(at) {
                Some(grant) => self.change(at, grant),
                None => self.acquire(),
            },
            22..31 => self.take_permits(),
            31..42 => self.acquire_job(),
            42 if self.is_unusual() => Action::Close,
            _ => self.acquire(),
        }
    }

    fn change(&mut self, at: usize, grant: GrantId) -> Action {
        let name = self.clients[at].held.get(&grant).and_then(|held| held.names().next().cloned());
        if self.clients[at].jobs.contains(&grant) && self.random.percent(80) {
            let bytes = self.bytes();
            return if self.random.percent(50) { Action::Begin { grant } } else { Action::Checkpoint { grant, bytes } };
        }
        match (name, self.random.below(6)) {
            (_, 0) => Action::Extend { grant, max_hold: Millis::new(self.random.below(3_000)).expect("short") },
            (Some(name), _) => {
                let wait = if self.random.percent(80) { Wait::Forever } else { Wait::No };
                Action::Convert { grant, name, mode: self.random.one_of(&MODES), wait }
            }
            (None, _) => Action::Release { grant, report: None },
        }
    }

    fn name(&mut self) -> Name {
        // A few names are requested more often.
        let bound = if self.random.percent(40) { self.size.names.min(6) } else { self.size.names };
        self.names[self.random.below(bound) as usize].clone()
    }

    fn acquire(&mut self) -> Action {
        let mut locks = Locks::new();
        for _ in 0..=u64::from(self.random.percent(20)) * 2 {
            let name = self.name();
            if locks.iter().all(|lock: &Lock| lock.name != name) {
                locks.push(Lock { name, mode: self.random.one_of(&MODES) });
            }
        }
        let owner = ["o", "w"][self.random.below(2) as usize];
        let owner = self.random.percent(50).then(|| OwnerName::new(owner).expect("valid"));
        Action::Acquire(Acquire { locks, owner, wait: self.wait(), terms: self.terms() })
    }

    /// Few names, so that jobs are attempted again. One of them is taken with a key alone.
    fn job_name(&mut self) -> Name {
        if self.random.percent(60) {
            return Name::new("j").expect("valid");
        }
        self.names[self.random.below(self.size.names.min(3)) as usize].clone()
    }

    /// One job of a few. The lock of some names is also taken without a key.
    fn acquire_job(&mut self) -> Action {
        let name = self.job_name();
        let key = JobKey::new(&format!("k{}", self.random.below(4))).expect("valid");
        let keep = Keep::new(60_000 + self.random.below(2) * 10_000).expect("valid");
        let terms = Terms { job: Some(JobTerms { key, keep }), ..self.terms() };
        let owner = self.random.percent(20).then(|| OwnerName::new("o").expect("valid"));
        let locks = Locks::from_buf([Lock { name, mode: LockMode::Exclusive }]);
        Action::Acquire(Acquire { locks, owner, wait: self.wait(), terms })
    }

    fn report(&mut self, at: usize, grant: GrantId) -> Option<Box<JobReport>> {
        if !self.clients[at].jobs.contains(&grant) && !self.is_unusual() {
            return None;
        }
        let verdict = self.random.one_of(&[
            Verdict::Succeeded,
            Verdict::Failed,
            Verdict::Open,
            Verdict::Open,
            Verdict::Open,
            Verdict::Open,
        ]);
        self.random.percent(80).then(|| Box::new(JobReport { verdict, bytes: self.bytes() }))
    }

    fn bytes(&mut self) -> JobBytes {
        JobBytes::new(&self.random.below(1_000_000).to_le_bytes()).expect("short")
    }

    fn take_permits(&mut self) -> Action {
        let name = Name::new(["s", "t"][self.random.below(2) as usize]).expect("valid");
        let permits = Permits::new(1 + self.random.below(3) as u32).expect("not zero");
        let limit = Some(Permits::new(4).expect("not zero"));
        Action::TakePermits(TakePermits { name, permits, limit, wait: self.wait(), terms: self.terms() })
    }

    fn wait(&mut self) -> Wait {
        match self.random.below(10) {
            0..2 => Wait::No,
            2..7 => Wait::UpTo(Millis::new(1 + self.random.below(4_000)).expect("short")),
            _ => Wait::Forever,
        }
    }

    fn terms(&mut self) -> Terms {
        let mut terms = Terms::default();
        if self.random.percent(25) {
            terms.ttl = self.random.percent(50).then(|| Ttl::new(1_000 + self.random.below(4_000)).expect("valid"));
            terms.max_hold = self.random.percent(40).then(|| Millis::new(self.random.below(5_000)).expect("short"));
            terms.lock_delay = LockDelay::new(self.random.one_of(&[0, 0, 300, 2_000])).expect("short");
        }
        terms
    }

    fn admin(&mut self) -> Operation {
        let at = self.random.below(self.size.sessions) as usize;
        let act = match self.random.below(10) {
            0 | 1 if self.freezes.len() < 3 => {
                let freeze = FreezeId(u128::from(self.random.below(u64::MAX)));
                self.freezes.push(freeze);
                let name = self.name();
                let scope = match self.random.below(3) {
                    0 => Scope::Prefix(name.as_str().as_bytes()[..2].into()),
                    1 => Scope::Name(Name::new("s").expect("valid")),
                    _ => Scope::Name(name),
                };
                Act::Freeze { freeze, scope }
            }
            2..4 if !self.freezes.is_empty() => {
                Act::Thaw { freeze: self.freezes.swap_remove(self.random.below(self.freezes.len() as u64) as usize) }
            }
            4 => Act::Evict { session: self.clients[at].session },
            5 if !self.rests.is_empty() => Act::WaiveRest { grant: self.rests.swap_remove(0) },
            6 => {
                let limit = Permits::new(3 + self.random.below(3) as u32).ok().filter(|_| self.random.percent(70));
                Act::SetLimit { name: Name::new("t").expect("valid"), limit }
            }
            7 => Act::AllowJobs,
            8 => {
                let (name, key) = (self.job_name(), JobKey::new(&format!("k{}", self.random.below(4))).expect("valid"));
                match self.random.percent(50) {
                    true => Act::CompleteJob { name, key, keep: Keep::new(60_000).expect("valid") },
                    false => Act::ForgetJob { name, key },
                }
            }
            _ => Act::Break { grant: self.grant(at).unwrap_or(GrantId(0)) },
        };
        Operation::Admin(Admin {
            by: Principal::new("root").expect("valid"),
            reason: Reason::new("why not").expect("valid"),
            act,
        })
    }

    /// Lets the clients learn from the effects of an entry.
    fn learn(&mut self, batch: &Batch, effects: &Effects) {
        let base = u128::from(self.size.sessions);
        let place = |session: SessionId| ((session.0 - 1) % base) as usize;
        for (renewal, reply) in batch.renewals.iter().zip(&effects.replies) {
            if let (Renewal::Attach { session, .. }, Outcome::Attached(attached)) = (renewal, &reply.outcome) {
                self.clients[place(*session)].epoch = attached.epoch.0;
            }
        }
        for event in &effects.events {
            match event {
                Event::SessionOpened { session, .. } => {
                    let client = &mut self.clients[place(*session)];
                    client.lives = client.session == *session;
                }
                Event::SessionEnded { session, .. } => {
                    let client = &mut self.clients[place(*session)];
                    client.lives &= client.session != *session;
                }
                Event::Queued { request, .. } => self.clients[place(request.session)].waits.push(request.number),
                Event::Granted { request, grant, .. } => {
                    let client = &mut self.clients[place(request.session)];
                    client.held.insert(*grant, request.wants.clone());
                    if client.job_requests.contains(&request.number) {
                        client.jobs.insert(*grant);
                    }
                }
                Event::Ended { grant, session, count_left: 0, how, rests_until, .. } => {
                    self.clients[place(*session)].held.remove(grant);
                    if rests_until.is_some() && *how != GrantEnd::Released {
                        self.rests.push(*grant);
                    }
                }
                _ => {}
            }
        }
        for push in &effects.pushes {
            if let Push::Ended { session, number, .. } = push {
                self.clients[place(*session)].waits.retain(|other| other != number);
            }
        }
    }
}
