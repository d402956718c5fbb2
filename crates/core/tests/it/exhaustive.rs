//! Explores small worlds completely: applies every sensible command to every reachable state, breadth first, until no new
//! state is found or the world's bound is reached.
//!
//! Two states count as the same if they differ only in absolute tokens, arrivals, request numbers and stamps. Each
//! transition is compared with the model and checked like a step of a random run, and each request is also repeated.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::model::Model;
use crate::model::jobs::job_of;
use crate::model::random::{job_bytes, job_key, keep, name, open, secret_of, ttl};
use crate::model::runner::{Entry, Failure, Runner, report};
use fencepost_core::*;

/// A small world: what exists in it, and what its sessions may do.
struct World {
    title: &'static str,
    sessions: u128,
    names: &'static [&'static str],
    modes: &'static [LockMode],
    /// The owners that acquire; `None` is a request that is an owner of its own.
    owners: &'static [Option<&'static str>],
    /// The most that a session holds and waits for.
    things_per_session: usize,
    /// Whether a request may also name all names at once.
    multi_locks: bool,
    terms: fn() -> Terms,
    /// The length of one step of time; `None` if no time passes.
    step_ms: Option<u64>,
    /// The limit of the first name, if it is a semaphore.
    permits: Option<u32>,
    freezes: bool,
    /// The keys of jobs on each name. Without keys no acquire is for a job.
    keys: &'static [&'static str],
    transitions_max: usize,
}

const SESSION_TTL_MS: u64 = 2_000;
const ALL_MODES: &[LockMode] = &[LockMode::Shared, LockMode::Update, LockMode::Exclusive];

const LOCKS: World = World {
    title: "",
    sessions: 2,
    names: &["p", "q"],
    modes: ALL_MODES,
    owners: &[Some("o")],
    things_per_session: 2,
    multi_locks: false,
    terms: Terms::default,
    step_ms: None,
    permits: None,
    freezes: false,
    keys: &[],
    transitions_max: 100_000,
};

#[test]
fn two_named_owners_and_two_names() {
    walk(World { title: "two named owners, two names, all modes, multi-locks", multi_locks: true, ..LOCKS });
}

#[test]
fn three_named_owners_and_two_names() {
    let modes = &[LockMode::Shared, LockMode::Exclusive];
    walk(World {
        title: "three named owners, two names, S and X",
        sessions: 3,
        modes,
        transitions_max: 150_000,
        ..LOCKS
    });
}

#[test]
fn three_unnamed_owners_on_one_name() {
    let owners = &[None];
    walk(World { title: "three sessions without owners, one name", sessions: 3, names: &["p"], owners, ..LOCKS });
}

#[test]
fn a_path_and_its_parent() {
    walk(World { title: "two named owners, a path and its parent, all modes", names: &["/a", "/a/b"], ..LOCKS });
}

#[test]
fn unnamed_requests_on_a_path_and_its_parent() {
    let (names, owners, transitions_max) = (&["/a", "/a/b"][..], &[None][..], 250_000);
    walk(World {
        title: "two sessions without owners, a path and its parent",
        names,
        owners,
        transitions_max,
        ..LOCKS
    });
}

#[test]
fn siblings_below_one_parent_in_multi_locks() {
    let (names, modes) = (&["/a/b", "/a/d"][..], &[LockMode::Shared, LockMode::Exclusive][..]);
    walk(World {
        title: "three named owners, two siblings, multi-locks",
        sessions: 3,
        names,
        modes,
        multi_locks: true,
        ..LOCKS
    });
}

#[test]
fn time_passes_over_sessions_locks_and_rests() {
    let terms = || Terms {
        ttl: Some(ttl(1_000)),
        lock_delay: LockDelay::new(1_000).expect("short"),
        hear_contended: true,
        ..Terms::default()
    };
    let modes = &[LockMode::Shared, LockMode::Exclusive];
    let step_ms = Some(1_000);
    walk(World { title: "expiry, keep-alives and rests on one name", names: &["p"], modes, terms, step_ms, ..LOCKS });
}

#[test]
fn a_semaphore_of_three_permits() {
    let permits = Some(3);
    let owners = &[None];
    walk(World { title: "three sessions and a semaphore", sessions: 3, names: &["s"], owners, permits, ..LOCKS });
}

#[test]
fn a_name_that_freezes_and_thaws() {
    walk(World { title: "two named owners, two names, one freeze", freezes: true, transitions_max: 80_000, ..LOCKS });
}

#[test]
fn jobs_of_two_keys_that_begin_and_are_completed() {
    let (modes, keys) = (&[LockMode::Exclusive][..], &["k", "l"][..]);
    // Half the time for which a record is kept. Every session ends on the way there, unless it opens again.
    let step_ms = Some(bounds::KEEP_MS_MIN / 2);
    walk(World { title: "two named owners and two jobs of one name", names: &["p"], modes, keys, step_ms, ..LOCKS });
}

#[test]
fn two_sessions_and_one_job() {
    let (modes, owners, keys) = (&[LockMode::Exclusive][..], &[None][..], &["k"][..]);
    walk(World { title: "two sessions without owners, one job", names: &["p"], modes, owners, keys, ..LOCKS });
}

struct Node {
    state: LockState,
    model: Model,
    /// The node before it and the entry that led here, to report the way to a failure.
    from: Option<(usize, Entry)>,
}

fn walk(world: World) {
    let mut nodes = vec![Node { state: LockState::new(0), model: Model::new(), from: None }];
    let mut known: BTreeSet<u128> = BTreeSet::new();
    let sessions = (1..=world.sessions).map(|id| open(SessionId(id), SESSION_TTL_MS)).collect();
    let start = Batch { operations: sessions, ..Batch::default() };
    let mut transitions = 0;
    nodes.push(go(&nodes, 0, entry(LogicalMs(0), start), &mut transitions));
    let mut at = 1;
    while at < nodes.len() && transitions < world.transitions_max {
        for entry in world.entries(&nodes[at].model) {
            let next = go(&nodes, at, entry, &mut transitions);
            if known.insert(fingerprint(&next.model)) {
                nodes.push(next);
            }
        }
        at += 1;
    }
    let explored = if at == nodes.len() { "all states explored" } else { "bound reached" };
    println!("{}: {} distinct states, {transitions} transitions, {explored}", world.title, nodes.len() - 1);
}

/// Applies an entry to a node, with every check. Then repeats its requests, which must change nothing.
fn go(nodes: &[Node], at: usize, entry: Entry, transitions: &mut usize) -> Node {
    let mut runner = Runner::from(nodes[at].model.clone(), vec![nodes[at].state.clone()]);
    let result = runner.enter(&entry).and_then(|()| {
        let next = (runner.model.clone(), runner.states[0].clone());
        let again: Vec<Operation> = entry.batch.operations.iter().filter(|o| is_repeatable(o)).cloned().collect();
        if !again.is_empty() {
            runner.step(entry.stamp, &Batch { operations: again, ..Batch::default() })?;
            if fingerprint(&runner.model) != fingerprint(&next.0) {
                return Err("a repeated request changed something".to_string());
            }
            *transitions += 1;
        }
        runner.states[0].verify()?;
        Ok(next)
    });
    *transitions += 1;
    match result {
        Ok((model, state)) => Node { state, model, from: Some((at, entry)) },
        Err(why) => {
            let mut entries = vec![entry];
            let mut from = &nodes[at].from;
            while let Some((at, entry)) = from {
                entries.push(entry.clone());
                from = &nodes[*at].from;
            }
            entries.reverse();
            let failure = Failure { why, entries, commands: 0 };
            panic!("{}", report(0, failure, || vec![LockState::new(0)]));
        }
    }
}

/// Whether a repeat is recognized by its request number. Opens and administrative acts are recognized by their ids instead.
fn is_repeatable(operation: &Operation) -> bool {
    matches!(operation, Operation::Request(_))
}

impl World {
    /// Every sensible entry for a state: one command each, or one step of time.
    fn entries(&self, model: &Model) -> Vec<Entry> {
        let mut batches = Vec::new();
        for id in (1..=self.sessions).map(SessionId) {
            match model.session(id) {
                Some(_) => self.of_session(model, id, &mut batches),
                None => batches.push(operation(open(id, SESSION_TTL_MS))),
            }
        }
        if self.freezes {
            let freeze = FreezeId(1);
            let scope = Scope::Name(name(self.names[0]));
            batches.push(admin(Act::Freeze { freeze, scope }));
            batches.push(admin(Act::Thaw { freeze }));
        }
        for key in self.keys.iter().map(|key| job_key(key)) {
            let name = name(self.names[0]);
            batches.push(admin(Act::ForgetJob { name: name.clone(), key: key.clone() }));
            batches.push(admin(Act::CompleteJob { name, key, keep: keep(bounds::KEEP_MS_MIN) }));
        }
        let mut entries: Vec<Entry> = batches.into_iter().map(|batch| entry(model.now(), batch)).collect();
        if let Some(step_ms) = self.step_ms {
            let then = LogicalMs(model.now().0 + step_ms);
            entries.push(entry(then, Batch::default()));
            entries.push(entry(then, Batch { failover_grace: true, ..Batch::default() }));
            entries.extend(model.grants.iter().map(|g| entry(model.now(), admin(Act::Break { grant: g.id }))));
        }
        entries
    }

    fn of_session(&self, model: &Model, id: SessionId, batches: &mut Vec<Batch>) {
        let request = |action, seen| {
            let (epoch, number) = (model.session(id).expect("the session is alive").epoch, next_number(model, id));
            operation(Operation::Request(Request { session: id, epoch, number, seen, action }))
        };
        let own_grants: Vec<&GrantRecord> = model.grants.iter().filter(|grant| grant.session == id).collect();
        let own_waiters: Vec<&WaiterRecord> = model.waiters.iter().filter(|waiter| waiter.session == id).collect();
        // Entering twice tests everything about re-entry; a higher count would make the world infinite.
        let counts = own_grants.iter().map(|grant| grant.count as usize).sum::<usize>();
        if counts + own_waiters.len() < self.things_per_session {
            batches.extend(self.acquires().into_iter().map(|action| request(action, seen_all(model, id))));
        }
        for grant in own_grants {
            batches.push(request(Action::Release { grant: grant.id, report: None }, seen_all(model, id)));
            if job_of(grant).is_some() {
                batches.extend(of_job(grant.id).map(|action| request(action, seen_all(model, id))));
            }
            let Held::Locks(locks) = &grant.held else { continue };
            for lock in locks {
                for mode in self.modes.iter().filter(|mode| **mode != lock.mode) {
                    let (name, wait) = (lock.name.clone(), Wait::Forever);
                    let convert = Action::Convert { grant: grant.id, name, mode: *mode, wait };
                    batches.push(request(convert, seen_all(model, id)));
                }
            }
        }
        for waiter in own_waiters {
            let cancel = Action::Cancel { request: waiter.number, release_if_granted: true };
            batches.push(request(cancel, seen_all(model, id)));
        }
        for answer in model.answers.iter().filter(|answer| answer.session == id) {
            if matches!(answer.outcome, Outcome::Granted { .. }) {
                let cancel = Action::Cancel { request: answer.number, release_if_granted: true };
                batches.push(request(cancel, Seen::default()));
            }
        }
        if self.step_ms.is_some() {
            let epoch = model.session(id).expect("the session is alive").epoch;
            let renewals = vec![Renewal::KeepAlive { session: id, epoch, seen: seen_all(model, id) }];
            batches.push(Batch { renewals, ..Batch::default() });
            let secret_hash = secret_of(id);
            let renewals = vec![Renewal::Attach { session: id, secret_hash, seen: seen_all(model, id) }];
            batches.push(Batch { renewals, ..Batch::default() });
            batches.push(request(Action::Close, seen_all(model, id)));
        }
    }

    fn acquires(&self) -> Vec<Action> {
        let wait = Wait::Forever;
        if let Some(limit) = self.permits {
            let limit = Some(Permits::new(limit).expect("above zero"));
            let wanted = (1..=3).map(|permits| Permits::new(permits).expect("above zero"));
            let take = |permits| TakePermits { name: name(self.names[0]), permits, limit, wait, terms: (self.terms)() };
            return wanted.map(take).map(Action::TakePermits).collect();
        }
        let mut actions = Vec::new();
        for owner in self.owners {
            let owner = owner.map(|owner| OwnerName::new(owner).expect("valid"));
            let keys =
                self.keys.iter().map(|key| Some(JobTerms { key: job_key(key), keep: keep(bounds::KEEP_MS_MIN) }));
            let jobs: Vec<Option<JobTerms>> = keys.chain([None]).collect();
            let mut acquire_for = |locks: Vec<Lock>, job: Option<JobTerms>| {
                let (locks, owner) = (Locks::from_vec(locks), owner.clone());
                let terms = Terms { job, ..(self.terms)() };
                actions.push(Action::Acquire(Acquire { locks, owner, wait, terms }));
            };
            let mut acquire = |locks: Vec<Lock>| jobs.iter().for_each(|job| acquire_for(locks.clone(), job.clone()));
            for mode in self.modes {
                for text in self.names {
                    acquire(vec![Lock { name: name(text), mode: *mode }]);
                }
                if self.multi_locks {
                    acquire(self.names.iter().map(|text| Lock { name: name(text), mode: *mode }).collect());
                }
            }
        }
        actions
    }
}

/// What the holder of a job may do.
fn of_job(grant: GrantId) -> [Action; 4] {
    let report = |verdict| Some(Box::new(JobReport { verdict, bytes: JobBytes::default() }));
    [
        Action::Begin { grant },
        Action::Checkpoint { grant, bytes: job_bytes(b"step") },
        Action::Release { grant, report: report(Verdict::Succeeded) },
        Action::Release { grant, report: report(Verdict::Open) },
    ]
}

fn entry(stamp: LogicalMs, batch: Batch) -> Entry {
    Entry { restores: false, stamp, batch }
}

fn operation(operation: Operation) -> Batch {
    Batch { operations: vec![operation], ..Batch::default() }
}

fn admin(act: Act) -> Batch {
    let by = Principal::new("operator").expect("valid");
    operation(Operation::Admin(Admin { by, reason: Reason::new("").expect("short"), act }))
}

fn waiting_numbers(model: &Model, id: SessionId) -> Vec<u64> {
    let own = model.waiters.iter().filter(|waiter| waiter.session == id);
    let mut numbers: Vec<u64> = own.map(|waiter| waiter.number.0).collect();
    numbers.sort();
    numbers
}

fn next_number(model: &Model, id: SessionId) -> RequestNumber {
    let session = model.session(id).expect("the session is alive");
    let answered = model.answers.iter().filter(|answer| answer.session == id).map(|answer| answer.number.0);
    let seen = session.seen_ranges.iter().map(|(_, last)| *last).chain([session.seen_mark]);
    let last = answered.chain(seen).chain(waiting_numbers(model, id)).max().expect("the mark is always there");
    RequestNumber(last + 1)
}

/// What a client acknowledges that has seen every answer so far.
fn seen_all(model: &Model, id: SessionId) -> Seen {
    let mut seen = Seen::default();
    let mut first = 1;
    for end in waiting_numbers(model, id).into_iter().chain([next_number(model, id).0]) {
        if first < end {
            seen.ranges.push((first, end - 1));
        }
        first = end + 1;
    }
    seen
}

/// A hash of the parts of a state that decide what can happen next. Left out are:
/// - the absolute values of tokens, arrivals, request numbers and stamps;
/// - the order of grants, which only changes the order of effects;
/// - answers, which matter only to a repeat, and every request is repeated directly after it.
fn fingerprint(model: &Model) -> u128 {
    // Stamps older than this count as equal: no deadline here depends on them.
    const LONG_AGO_MS: u64 = 10_000;
    let relative = |stamp: LogicalMs| LogicalMs((stamp.0 + LONG_AGO_MS).saturating_sub(model.now().0));
    let mut normal = model.clone();
    normal.header = Header { grace_at: model.header.grace_at.map(relative).filter(|at| at.0 > 0), ..Header::default() };
    normal.sessions.sort_by_key(|session| session.id);
    for session in &mut normal.sessions {
        session.opened_at = LogicalMs(0);
        session.opened_after_token = 0;
        session.epoch = Epoch(1);
        session.renewed_at = relative(session.renewed_at);
        session.seen_mark = 0;
        session.seen_ranges.clear();
        session.lost.clear();
    }
    for grant in &mut normal.grants {
        (grant.id, grant.token) = (GrantId(0), Token(0));
        grant.granted_at = relative(grant.granted_at);
        grant.hold_until = grant.hold_until.map(relative);
    }
    for rest in &mut normal.rests {
        (rest.grant, rest.token) = (GrantId(0), Token(0));
        (rest.since, rest.until) = (relative(rest.since), relative(rest.until));
    }
    for job in &mut normal.jobs {
        // No rule depends on how often a job was attempted, only on whether it was.
        job.attempts = job.attempts.min(2);
        if let Some(last) = &mut job.last {
            // What counts is whether the grant that began it still stands.
            let stands = model.grant(last.grant).is_some();
            (last.grant, last.token, last.session) = (GrantId(u64::from(stands)), Token(0), SessionId(0));
            (last.began_at, last.ended) = (LogicalMs(0), None);
        }
        job.checkpoint =
            job.checkpoint.take().map(|checkpoint| CheckpointRecord { attempt: 0, at: LogicalMs(0), ..checkpoint });
        if let Some(completion) = &mut job.completion {
            (completion.at, completion.token) = (LogicalMs(0), completion.token.map(|_| Token(0)));
        }
        job.until = job.until.map(relative);
    }
    normal.jobs.retain(|job| model.job(&job.name, &job.key).is_some());
    normal.jobs.sort_by(|a, b| (&a.name, &a.key).cmp(&(&b.name, &b.key)));
    for (place, waiter) in (1..).zip(&mut normal.waiters) {
        (waiter.arrival, waiter.number) = (Arrival(place), RequestNumber(place));
        (waiter.queued_at, waiter.until) = (relative(waiter.queued_at), waiter.until.map(relative));
        if let Wants::Conversion { grant: id, .. } = &mut waiter.wants {
            let at = model.grants.iter().position(|grant| grant.id == *id).expect("a waiting upgrade has its grant");
            *id = GrantId(hash_of(0, &normal.grants[at]) as u64);
        }
    }
    normal.grants.sort_by_key(|grant| hash_of(0, grant));
    normal.rests.sort_by_key(|rest| hash_of(0, rest));
    for freeze in &mut normal.freezes {
        freeze.since = LogicalMs(0);
    }
    let Model { header, sessions, grants, rests, jobs, waiters, semaphores, freezes, .. } = &normal;
    let parts = (header, sessions, grants, rests, jobs, waiters, semaphores, freezes);
    hash_of(0, &parts) << 64 | hash_of(1, &parts)
}

fn hash_of(salt: u8, parts: &impl Hash) -> u128 {
    let mut hasher = DefaultHasher::new();
    salt.hash(&mut hasher);
    parts.hash(&mut hasher);
    u128::from(hasher.finish())
}
