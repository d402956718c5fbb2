//! Random logs with many conflicts: few names, few sessions, and commands that are chosen by what the state holds.
//!
//! The seed decides everything, so a failure is replayed by its seed. Most commands are what an honest client would send.
//! Some are stale, repeated, wrong or hostile, because the state machine must answer those, too.

use fencepost_core::*;

use super::Model;
use super::jobs::job_of;
use super::runner::Entry;

/// SplitMix64: a short generator for which every seed is good.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }

    fn pick_some<'a, T>(&mut self, list: &'a [T]) -> Option<&'a T> {
        if list.is_empty() { None } else { Some(self.pick(list)) }
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("the tests use valid names")
}

pub fn millis(ms: u64) -> Millis {
    Millis::new(ms).expect("the tests use short durations")
}

pub fn ttl(ms: u64) -> Ttl {
    Ttl::new(ms).expect("the tests use valid times to live")
}

pub fn permits(count: u64) -> Permits {
    Permits::new(count as u32).expect("the tests use at least one permit")
}

pub fn job_key(text: &str) -> JobKey {
    JobKey::new(text).expect("the tests use valid keys")
}

pub fn keep(ms: u64) -> Keep {
    Keep::new(ms).expect("the tests use valid times to keep")
}

pub fn job_bytes(bytes: &[u8]) -> JobBytes {
    JobBytes::new(bytes).expect("the tests use few bytes")
}

pub fn secret_of(session: SessionId) -> SecretHash {
    SecretHash([session.0 as u8; 32])
}

pub fn open(session: SessionId, ttl_ms: u64) -> Operation {
    Operation::Open(Open {
        session,
        secret_hash: secret_of(session),
        principal: Principal::new("tester").expect("valid"),
        ttl: ttl(ttl_ms),
        metadata: Metadata::default(),
    })
}

/// A client: its session, its next request number, and its last requests.
#[derive(Clone, Debug)]
struct Client {
    session: SessionId,
    next_number: u64,
    sent: Vec<Request>,
}

/// From this number of waiters on, no more requests queue.
const WAITERS_ENOUGH: usize = 10;

/// The world of one seed: its names, its clients, and how they behave.
#[derive(Clone, Debug)]
pub struct World {
    random: Random,
    clients: Vec<Client>,
    names: Vec<Name>,
    semaphores: Vec<Name>,
    owners: Vec<OwnerName>,
    /// How often clients misbehave, in percent of the most that `mischief` allows.
    mischief_percent: u64,
    forever_percent: u64,
    named_percent: u64,
    keep_alive_percent: u64,
    admin_percent: u64,
    terms_percent: u64,
    permits_percent: u64,
    multi_percent: u64,
    /// How often an acquire is for a job.
    job_percent: u64,
    keys: Vec<JobKey>,
    /// The largest ordinary step of time between two entries.
    step_ms: u64,
    operations_max: u64,
    /// Whether enough requests wait, so that no other queues: longer queues cost time and test nothing new.
    crowded: bool,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let names = *random.pick(&[
            &["p"][..],
            &["p", "q"],
            &["p", "q", "r"],
            &["/a", "/a/b"],
            &["/a", "/a/b", "/a/b/c", "/a/d"],
            &["/a/b", "/a/d", "/a"],
            &["/a", "/a/b", "/a/b/c", "/a/d", "p", "q"],
            &["/a", "/a/b", "/a-b", "/e/f", "p"],
        ]);
        let owners = *random.pick(&[&["o"][..], &["o", "w"], &["o", "w", "z"]]);
        let clients = random.below(4) + 3;
        World {
            clients: (0..clients).map(|at| Client::new(u128::from(at) + 1)).collect(),
            names: names.iter().map(|text| name(text)).collect(),
            semaphores: vec![name("s"), name("t")],
            owners: owners.iter().map(|text| OwnerName::new(text).expect("valid")).collect(),
            mischief_percent: *random.pick(&[0, 30, 100]),
            forever_percent: *random.pick(&[10, 30, 80]),
            named_percent: *random.pick(&[0, 40, 70, 100]),
            keep_alive_percent: *random.pick(&[8, 25, 60]),
            admin_percent: *random.pick(&[0, 4, 4, 15]),
            terms_percent: *random.pick(&[0, 25, 60]),
            permits_percent: *random.pick(&[0, 10, 30]),
            multi_percent: *random.pick(&[5, 20, 50]),
            job_percent: *random.pick(&[0, 0, 20, 60]),
            keys: random.pick(&[&["k"][..], &["k", "l"], &["k", "l", "m"]]).iter().map(|text| job_key(text)).collect(),
            step_ms: *random.pick(&[50, 300, 300, 2_000]),
            operations_max: *random.pick(&[1, 3, 6]),
            crowded: false,
            random,
        }
    }

    /// The next entry, chosen by the state.
    pub fn next_entry(&mut self, model: &Model) -> Entry {
        let stamp = LogicalMs(model.now().0 + self.time_step(model));
        self.crowded = model.waiters.len() >= WAITERS_ENOUGH;
        let mut batch = Batch { failover_grace: self.random.percent(2), ..Batch::default() };
        for at in 0..self.clients.len() {
            if self.random.percent(self.keep_alive_percent) {
                batch.renewals.push(self.renewal(model, at));
            }
        }
        for _ in 0..=self.random.below(self.operations_max + 1) {
            let at = self.random.below(self.clients.len() as u64) as usize;
            batch.operations.push(self.operation(model, at));
        }
        if self.random.percent(3) {
            batch.operations.clear();
        }
        let restores = self.random.below(1_000) < 3;
        Entry { restores, stamp, batch }
    }

    fn time_step(&mut self, model: &Model) -> u64 {
        let to_deadline = model.next_deadline().map_or(0, |due| due.0.saturating_sub(model.now().0));
        match self.random.below(100) {
            0..30 => 0,
            30..80 => self.random.below(self.step_ms),
            80..86 => to_deadline,
            86..92 => to_deadline.saturating_sub(1),
            92..99 => self.random.below(3_000),
            // Every session ends on the way there.
            99 if self.random.percent(25) => self.time_to_the_end_of_a_job(model),
            _ => self.random.below(40_000),
        }
    }

    /// The time until the record of a job ends, or one millisecond less.
    fn time_to_the_end_of_a_job(&mut self, model: &Model) -> u64 {
        let ends = model.jobs.iter().filter_map(|job| job.until).filter(|until| *until > model.now());
        let first = ends.min().map_or(0, |until| until.0 - model.now().0);
        first.saturating_sub(self.random.below(2))
    }

    fn renewal(&mut self, model: &Model, at: usize) -> Renewal {
        let session = if self.mischief(1) { SessionId(999) } else { self.clients[at].session };
        let seen = self.seen(model, at);
        if self.random.percent(4) {
            let wrong = self.mischief(30);
            let secret_hash = if wrong { SecretHash([0; 32]) } else { secret_of(session) };
            return Renewal::Attach { session, secret_hash, seen };
        }
        Renewal::KeepAlive { session, epoch: self.epoch(model, at), seen }
    }

    fn epoch(&mut self, model: &Model, at: usize) -> Epoch {
        let current = model.session(self.clients[at].session).map_or(1, |session| session.epoch.0);
        if self.mischief(4) {
            return Epoch(if self.random.percent(50) { current + 1 } else { current - 1 });
        }
        Epoch(current)
    }

    /// Whether a client misbehaves now. `percent` is the chance in a world of full mischief.
    fn mischief(&mut self, percent: u64) -> bool {
        self.random.percent(self.mischief_percent) && self.random.percent(percent)
    }

    /// What a client says it has seen. Mostly what an honest client has seen: all answers but the last few.
    fn seen(&mut self, model: &Model, at: usize) -> Seen {
        let (session, next) = (self.clients[at].session, self.clients[at].next_number);
        let mut waiting: Vec<u64> =
            model.waiters.iter().filter(|waiter| waiter.session == session).map(|waiter| waiter.number.0).collect();
        waiting.sort();
        let mut seen = Seen::default();
        let wrong = if self.mischief(5) { self.random.below(7) } else { self.random.below(193) + 7 };
        match wrong {
            0 => seen.mark = next + self.random.below(4),
            1 => seen.mark = waiting.first().copied().unwrap_or(next),
            2 => seen.ranges.push((self.random.below(3), 1)),
            3 => seen.ranges.push((next + 2, next + self.random.below(4))),
            4 => seen.ranges.extend([(next.max(2) - 1, next), (1, 2)]),
            5 if self.random.percent(3) => seen.mark = u64::MAX,
            6 if self.random.percent(3) => seen.ranges.push((next + 7, u64::MAX)),
            7..80 => {}
            _ => {
                // The newest number may be that of the present message.
                let last = next.saturating_sub(2 + self.random.below(5));
                seen.mark = waiting.first().map_or(last, |first| last.min(first - 1));
                let ends = waiting.iter().skip(1).map(|number| number - 1).chain([last]);
                for (first, end) in waiting.iter().map(|number| number + 1).zip(ends) {
                    let first = first + self.random.below(2);
                    if first <= end.min(last) && self.random.percent(70) {
                        seen.ranges.push((first, end.min(last)));
                    }
                }
            }
        }
        seen
    }

    fn operation(&mut self, model: &Model, at: usize) -> Operation {
        if self.random.percent(self.admin_percent) {
            return self.admin(model);
        }
        if model.header.jobs_refused && self.random.percent(5) {
            return self.act(Act::AllowJobs);
        }
        if self.random.percent(4)
            && let Some(done) = self.random.pick_some(&completed_jobs(model))
        {
            // A completed job gets the same answer again and again. A job that is forgotten runs again.
            return self.act(Act::ForgetJob { name: done.name.clone(), key: done.key.clone() });
        }
        let lives = model.session(self.clients[at].session).is_some();
        if self.random.percent(if lives { 1 } else { 85 }) {
            return self.open(at, lives);
        }
        if self.random.percent(5)
            && let Some(request) = self.repeat(model, at)
        {
            return Operation::Request(request);
        }
        let number = self.number(at);
        let request = Request {
            session: if self.mischief(2) { SessionId(998) } else { self.clients[at].session },
            epoch: self.epoch(model, at),
            number,
            seen: self.seen(model, at),
            action: self.action(model, at, number),
        };
        let sent = &mut self.clients[at].sent;
        sent.push(request.clone());
        if sent.len() > 12 {
            sent.remove(0);
        }
        Operation::Request(request)
    }

    fn number(&mut self, at: usize) -> RequestNumber {
        if self.mischief(6) {
            return RequestNumber(self.random.below(self.clients[at].next_number + 1));
        }
        let client = &mut self.clients[at];
        if self.random.percent(3) {
            client.next_number += 1;
        }
        client.next_number += 1;
        RequestNumber(client.next_number - 1)
    }

    fn repeat(&mut self, model: &Model, at: usize) -> Option<Request> {
        let mut request = self.random.pick_some(&self.clients[at].sent)?.clone();
        if self.random.percent(60) {
            request.epoch = self.epoch(model, at);
            request.seen = Seen::default();
        }
        if self.random.percent(25) {
            request.action = self.action(model, at, request.number);
        }
        Some(request)
    }

    fn open(&mut self, at: usize, lives: bool) -> Operation {
        let ttl_ms = *self.random.pick(&[1_000, 3_000, 10_000, 30_000, 30_000]);
        if !lives {
            // A new session of the same client, sometimes with the id of the ended one.
            let old = self.clients[at].session.0;
            self.clients[at] = Client::new(if self.random.percent(15) { old } else { old + 16 });
        }
        let mut operation = open(self.clients[at].session, ttl_ms);
        if let Operation::Open(open) = &mut operation
            && self.random.percent(if lives { 40 } else { 2 })
        {
            open.secret_hash = SecretHash([7; 32]);
        }
        operation
    }

    fn lock_name(&mut self) -> Name {
        if self.random.percent(1) { self.random.pick(&self.semaphores) } else { self.random.pick(&self.names) }.clone()
    }

    fn semaphore_name(&mut self) -> Name {
        if self.random.percent(3) { self.random.pick(&self.names) } else { self.random.pick(&self.semaphores) }.clone()
    }

    fn mode(&mut self) -> LockMode {
        *self.random.pick(&[
            LockMode::Shared,
            LockMode::Shared,
            LockMode::Update,
            LockMode::Exclusive,
            LockMode::Exclusive,
        ])
    }

    fn wait(&mut self) -> Wait {
        if self.crowded {
            return Wait::No;
        }
        if self.random.percent(self.forever_percent) {
            return Wait::Forever;
        }
        match self.random.below(100) {
            0..40 => Wait::No,
            40..43 => Wait::UpTo(Millis::ZERO),
            _ => Wait::UpTo(millis(self.random.below(5_000) + 1)),
        }
    }

    fn value(&mut self) -> Value {
        Value::new(&[self.random.below(4) as u8]).expect("short")
    }

    fn terms(&mut self) -> Terms {
        let mut terms = Terms::default();
        if !self.random.percent(self.terms_percent) {
            return terms;
        }
        if self.random.percent(40) {
            terms.ttl = Some(ttl(*self.random.pick(&[1_000, 2_000, 4_000, 10_000])));
        }
        if self.random.percent(40) {
            terms.max_hold = Some(millis(*self.random.pick(&[0, 300, 1_000, 3_000, 10_000])));
        }
        if self.random.percent(40) {
            terms.lock_delay = LockDelay::new(*self.random.pick(&[0, 1, 500, 2_000, 10_000])).expect("short");
        }
        terms.hear_contended = self.random.percent(40);
        if self.random.percent(10) {
            terms.metadata = Metadata::new(b"for people").expect("short");
        }
        if self.random.percent(15) {
            terms.value = Some(self.value());
        }
        terms
    }

    /// A grant, mostly one that the session holds.
    fn grant(&mut self, model: &Model, at: usize) -> GrantId {
        let session = self.clients[at].session;
        let own: Vec<GrantId> = model.grants.iter().filter(|g| g.session == session).map(|g| g.id).collect();
        let any: Vec<GrantId> = model.grants.iter().map(|grant| grant.id).collect();
        match self.random.below(20) {
            0 if self.random.percent(50) => GrantId(self.random.below(model.header.last_token + 3)),
            1 if self.random.percent(50) && !any.is_empty() => *self.random.pick(&any),
            2 if self.random.percent(50) => {
                let lost = model.session(session).map(|session| session.lost.clone()).unwrap_or_default();
                self.random.pick_some(&lost).map_or(GrantId(1), |(grant, _)| *grant)
            }
            _ if !own.is_empty() => *self.random.pick(&own),
            _ => GrantId(model.header.last_token.saturating_sub(self.random.below(6))),
        }
    }

    fn action(&mut self, model: &Model, at: usize, number: RequestNumber) -> Action {
        let holds = model.grants.iter().filter(|grant| grant.session == self.clients[at].session).count() as u64;
        let act = self.random.below(100);
        // Without a grant there is nothing to convert or release, so these are tried only sometimes.
        let act = if holds == 0 && self.random.percent(80) { act % 52 } else { act };
        if self.job_percent > 0
            && let Some(action) = self.job_action(model, at)
        {
            return action;
        }
        if self.random.percent(20)
            && let Some(grant) = self.grant_of_an_owner_that_waits(model, at)
        {
            return Action::Release { grant, report: None };
        }
        match act {
            // The more a session holds, the more often it releases, so that some names are held and some are free.
            _ if self.random.percent(if self.crowded { holds.min(1) * 50 } else { holds.min(4) * 13 }) => {
                Action::Release { grant: self.grant(model, at), report: None }
            }
            _ if self.random.percent(self.permits_percent) => self.take_permits(),
            _ if self.crowded && self.random.percent(40) => self.cancel(model, at, number),
            0..52 => self.acquire(),
            52..72 => self.convert(model, at),
            72..82 => self.cancel(model, at, number),
            82..88 => Action::Release { grant: self.grant(model, at), report: None },
            88..92 => {
                Action::Extend { grant: self.grant(model, at), max_hold: millis(*self.random.pick(&[0, 500, 5_000])) }
            }
            92..96 => Action::SetValue { grant: self.grant(model, at), value: self.value() },
            96 => Action::Close,
            _ => self.acquire(),
        }
    }

    fn acquire(&mut self) -> Action {
        let job = self.random.percent(self.job_percent).then(|| self.job_terms());
        let mut locks = Locks::new();
        let alone = job.is_some() && self.random.percent(97);
        let count = if !alone && self.random.percent(self.multi_percent) { 2 + self.random.below(2) } else { 1 };
        for _ in 0..count {
            let mode = if alone && self.random.percent(97) { LockMode::Exclusive } else { self.mode() };
            let lock = Lock { name: self.lock_name(), mode };
            if !locks.iter().any(|other| other.name == lock.name) || self.random.percent(5) {
                locks.push(lock);
            }
        }
        if self.random.below(300) == 0 {
            locks.clear();
        }
        let owner = self.random.percent(self.named_percent).then(|| self.random.pick(&self.owners).clone());
        Action::Acquire(Acquire { locks, owner, wait: self.wait(), terms: Terms { job, ..self.terms() } })
    }

    /// A grant of an owner that waits for something else. To release it can close a cycle.
    fn grant_of_an_owner_that_waits(&mut self, model: &Model, at: usize) -> Option<GrantId> {
        let session = self.clients[at].session;
        let own = model.grants.iter().filter(|grant| grant.session == session && grant.owner.is_some());
        let waiting: Vec<GrantId> =
            own.filter(|grant| model.waiting_request_of_owner(grant).is_some()).map(|grant| grant.id).collect();
        self.random.pick_some(&waiting).copied()
    }

    fn job_terms(&mut self) -> JobTerms {
        let keep_ms = *self.random.pick(&[bounds::KEEP_MS_MIN, bounds::KEEP_MS_MIN, 61_000, bounds::KEEP_MS_DEFAULT]);
        JobTerms { key: self.random.pick(&self.keys).clone(), keep: keep(keep_ms) }
    }

    /// What a client does about a job that it holds, or held.
    fn job_action(&mut self, model: &Model, at: usize) -> Option<Action> {
        let session = self.clients[at].session;
        let keyed = |grant: &&GrantRecord| grant.session == session && job_of(grant).is_some();
        let own: Vec<GrantId> = model.grants.iter().filter(keyed).map(|grant| grant.id).collect();
        if !self.random.percent(if own.is_empty() { 4 } else { 40 }) {
            return None;
        }
        let begun: Vec<GrantId> = model.jobs.iter().filter_map(|job| Some(job.last.as_ref()?.grant)).collect();
        let grant = match self.random.below(10) {
            0 => self.grant(model, at),
            1 if !begun.is_empty() => *self.random.pick(&begun),
            _ if !own.is_empty() => *self.random.pick(&own),
            _ => *self.random.pick_some(&begun)?,
        };
        let bytes = job_bytes(&vec![b'x'; self.random.below(5) as usize]);
        Some(match self.random.below(20) {
            0..5 => Action::Begin { grant },
            5..10 => Action::Checkpoint { grant, bytes },
            10..13 => Action::Release { grant, report: None },
            _ => {
                let verdict =
                    *self.random.pick(&[Verdict::Succeeded, Verdict::Succeeded, Verdict::Failed, Verdict::Open]);
                Action::Release { grant, report: Some(Box::new(JobReport { verdict, bytes })) }
            }
        })
    }

    fn take_permits(&mut self) -> Action {
        let limit = match self.random.below(20) {
            0 => None,
            1 => Some(permits(self.random.below(4) + 1)),
            2..8 => None,
            _ => Some(permits(3)),
        };
        let wanted = permits(*self.random.pick(&[1, 1, 1, 2, 2, 3, 4]));
        let (wait, mut terms) = (self.wait(), self.terms());
        if self.random.percent(self.job_percent) && self.random.percent(5) {
            terms.job = Some(self.job_terms());
        }
        Action::TakePermits(TakePermits { name: self.semaphore_name(), permits: wanted, limit, wait, terms })
    }

    fn convert(&mut self, model: &Model, at: usize) -> Action {
        let grant = self.grant(model, at);
        let held: Vec<Name> = model.grant(grant).map(|g| g.held.names().cloned().collect()).unwrap_or_default();
        let name = match self.random.pick_some(&held) {
            Some(held) => held.clone(),
            None => self.lock_name(),
        };
        let name = if self.random.percent(3) { self.lock_name() } else { name };
        Action::Convert { grant, name, mode: self.mode(), wait: self.wait() }
    }

    fn cancel(&mut self, model: &Model, at: usize, number: RequestNumber) -> Action {
        let (session, next) = (self.clients[at].session, self.clients[at].next_number);
        let waiting: Vec<_> = model.waiters.iter().filter(|w| w.session == session).map(|w| w.number).collect();
        let answered: Vec<_> = model.answers.iter().filter(|a| a.session == session).map(|a| a.number).collect();
        let request = match self.random.below(20) {
            0 => number,
            1 => RequestNumber(self.random.below(next + 1)),
            2..5 => RequestNumber(next + self.random.below(3)),
            5..13 if !waiting.is_empty() => *self.random.pick(&waiting),
            _ if !answered.is_empty() => *self.random.pick(&answered),
            _ => RequestNumber(next.saturating_sub(1)),
        };
        Action::Cancel { request, release_if_granted: self.random.percent(50) }
    }

    fn admin(&mut self, model: &Model) -> Operation {
        let grants: Vec<GrantId> = model.grants.iter().map(|grant| grant.id).collect();
        let rests: Vec<GrantId> = model.rests.iter().map(|rest| rest.grant).collect();
        let freezes: Vec<FreezeId> = model.freezes.iter().map(|freeze| freeze.id).collect();
        let some_grant = GrantId(self.random.below(model.header.last_token + 2));
        let some_freeze = FreezeId(u128::from(self.random.below(6)));
        if self.job_percent > 0 && self.random.percent(30) {
            let act = self.act_on_a_job();
            return self.act(act);
        }
        let act = match self.random.below(100) {
            0..15 => Act::Break { grant: *self.random.pick_some(&grants).unwrap_or(&some_grant) },
            15..20 => Act::Evict { session: self.random.pick(&self.clients).session },
            20..40 => Act::WaiveRest { grant: *self.random.pick_some(&rests).unwrap_or(&some_grant) },
            40..55 => Act::Freeze { freeze: some_freeze, scope: self.scope() },
            55..80 => Act::Thaw { freeze: *self.random.pick_some(&freezes).unwrap_or(&some_freeze) },
            _ => {
                let limit = self.random.percent(60).then(|| permits(*self.random.pick(&[1, 2, 3, 3, 5])));
                Act::SetLimit { name: self.semaphore_name(), limit }
            }
        };
        self.act(act)
    }

    fn act_on_a_job(&mut self) -> Act {
        let (name, key) = (self.lock_name(), self.random.pick(&self.keys).clone());
        match self.random.below(20) {
            0..4 => Act::CompleteJob { name, key, keep: keep(bounds::KEEP_MS_MIN) },
            4..18 => Act::ForgetJob { name, key },
            _ => Act::AllowJobs,
        }
    }

    fn act(&mut self, act: Act) -> Operation {
        let by = Principal::new("operator").expect("valid");
        // Clients are told the beginning of a long reason, on one line.
        let long = "€".repeat(50);
        let reason = *self.random.pick(&["", "tests", "two\nlines", &long]);
        Operation::Admin(Admin { by, reason: Reason::new(reason).expect("short"), act })
    }

    fn scope(&mut self) -> Scope {
        match self.random.below(10) {
            0..5 => Scope::Name(self.lock_name()),
            5..7 => Scope::Name(self.semaphore_name()),
            7 => Scope::Prefix(b"/a"[..].into()),
            8 => Scope::Prefix(b"/a/"[..].into()),
            _ => Scope::Prefix(if self.random.percent(20) { &b""[..] } else { &b"p"[..] }.into()),
        }
    }
}

fn completed_jobs(model: &Model) -> Vec<&JobRecord> {
    model.jobs.iter().filter(|job| job.completion.is_some()).collect()
}

impl Client {
    fn new(session: u128) -> Client {
        Client { session: SessionId(session), next_number: 1, sent: Vec::new() }
    }
}
