//! The state machine against the model: random logs are applied to both. After each entry all results are compared and
//! every invariant is checked.
//!
//! `FENCEPOST_COMMANDS=N` sets the number of commands, `FENCEPOST_SEED=N` replays one seed. A failing seed prints the
//! shortest failing log that was found.

#![allow(
    clippy::disallowed_methods,
    reason = "runs seeds on threads, as the environment says; the crate itself may not"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::model::Model;
use crate::model::random::{job_bytes, job_key, name, open, permits};
use crate::model::runner::{agree, report, run_seed};
use crate::model::tally::{EXPECTED, EXPECTED_BOUNDS, Tally};
use fencepost_core::*;

const COMMANDS_DEFAULT: u64 = 2_000_000;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// Runs seeds on all cores until enough commands were applied, and returns the counts. Every seed below the last one runs,
/// whichever thread takes it, and the lowest failing seed is reported.
fn run(commands_least: u64, make_states: impl Fn() -> Vec<LockState> + Sync) -> Tally {
    let only = number_from("FENCEPOST_SEED");
    let first = only.unwrap_or(1);
    let (next, commands, failed) = (AtomicU64::new(first), AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let (mut tally, mut seeds) = (Tally::default(), 0);
        while commands.load(SeqCst) < commands_least && !failed.load(SeqCst) {
            let seed = next.fetch_add(1, SeqCst);
            if only.is_some_and(|only| seed > only) {
                break;
            }
            seeds += 1;
            match run_seed(seed, make_states(), &mut tally) {
                Ok(run) => commands.fetch_add(run, SeqCst),
                Err(failure) => {
                    failed.store(true, SeqCst);
                    return (tally, seeds, Some((seed, failure)));
                }
            };
        }
        (tally, seeds, None)
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("`run_seed` catches panics")).collect()
    });

    let (mut tally, mut seeds, mut failures) = (Tally::default(), 0, Vec::new());
    for (reached, run, failure) in results {
        tally.add_all(reached);
        seeds += run;
        failures.extend(failure);
    }
    if let Some((seed, failure)) = failures.into_iter().min_by_key(|(seed, _)| *seed) {
        panic!("{}", report(seed, failure, &make_states));
    }
    println!("{tally}\n{} commands in {seeds} seeds from {first} on", commands.into_inner());
    tally
}

#[test]
fn the_model_alone_keeps_the_invariants() {
    run(100_000, Vec::new);
}

#[test]
fn the_state_machine_agrees_with_the_model() {
    let commands = number_from("FENCEPOST_COMMANDS").unwrap_or(COMMANDS_DEFAULT);
    let tally = run(commands, || vec![LockState::new(1), LockState::new(2)]);
    if number_from("FENCEPOST_SEED").is_none() && commands >= COMMANDS_DEFAULT {
        let missing = tally.missing(EXPECTED);
        assert!(missing.is_empty(), "never reached: {missing:?}");
    }
}

/// A model and a state machine that are brought to the bounds. The invariants are not checked here: that looks at every
/// pair of waiters, and there are a hundred thousand waiters.
struct Bounded {
    model: Model,
    state: LockState,
    tally: Tally,
}

impl Bounded {
    fn with_one_session() -> Bounded {
        let mut bounded = Bounded { model: Model::new(), state: LockState::new(1), tally: Tally::default() };
        bounded.apply(vec![open(SessionId(1), 30_000)]);
        bounded
    }

    /// Changes the records directly, to reach a state that would take too many commands.
    fn change(&mut self, change: impl FnOnce(&mut Model)) {
        change(&mut self.model);
        self.state = LockState::restore(2, self.model.records()).expect("the changed records are a valid state");
    }

    fn apply(&mut self, operations: Vec<Operation>) {
        self.apply_batch(Batch { operations, ..Batch::default() });
    }

    fn apply_batch(&mut self, batch: Batch) {
        let stamp = self.model.now();
        let effects = self.model.apply(stamp, &batch);
        self.tally.count(&effects);
        agree(&mut self.state, &self.model, &effects, stamp, &batch).unwrap_or_else(|why| panic!("{why}"));
    }
}

fn request(number: u64, action: Action) -> Operation {
    let (session, number) = (SessionId(1), RequestNumber(number));
    Operation::Request(Request { session, epoch: Epoch(1), number, seen: Seen::default(), action })
}

fn acquire(names: impl IntoIterator<Item = String>, owner: Option<&str>) -> Action {
    let locks = names.into_iter().map(|text| Lock { name: name(&text), mode: LockMode::Exclusive }).collect();
    let owner = owner.map(|owner| OwnerName::new(owner).expect("valid"));
    Action::Acquire(Acquire { locks, owner, wait: Wait::Forever, terms: Terms::default() })
}

fn acquire_job(text: &str, key: &str) -> Action {
    let Action::Acquire(mut acquire) = acquire([text.to_string()], None) else { unreachable!("it acquires") };
    acquire.terms.job = Some(JobTerms { key: job_key(key), keep: Keep::default() });
    Action::Acquire(acquire)
}

/// Adds records of completed jobs, each with a checkpoint and a result of these bytes.
fn fill_with_jobs(model: &mut Model, text: &str, count: usize, bytes: &JobBytes) {
    let at = LogicalMs(0);
    model.jobs.extend((0..count).map(|number| JobRecord {
        name: name(text),
        key: job_key(&format!("{number:06}")),
        attempts: 0,
        last: None,
        checkpoint: Some(CheckpointRecord { attempt: 0, at, bytes: bytes.clone() }),
        completion: Some(CompletionRecord { at, succeeded: true, result: bytes.clone(), token: None, by: None }),
        until: Some(LogicalMs(1_000_000)),
    }));
}

fn admin(act: Act) -> Operation {
    let by = Principal::new("operator").expect("valid");
    Operation::Admin(Admin { by, reason: Reason::new("").expect("short"), act })
}

fn freeze(id: usize, prefix: Vec<u8>) -> Operation {
    admin(Act::Freeze { freeze: FreezeId(id as u128), scope: Scope::Prefix(prefix.into()) })
}

#[test]
fn state_machine_and_model_refuse_at_the_same_bounds() {
    use bounds::*;
    let plain = |count: usize, from: usize| (from..from + count).map(|at| format!("n{at}"));

    let mut names = Bounded::with_one_session();
    let deep = (0..20).map(|at| format!("/{at}{}", "/x".repeat(PATH_LEVELS_MAX - 1)));
    names.apply(vec![request(1, acquire(plain(MULTI_LOCK_MAX + 1, 0), None)), request(2, acquire(deep, None))]);
    names.apply(vec![freeze(0, vec![b'z'; NAME_BYTES_MAX + 1])]);
    let ranges = (1..=SEEN_RANGES_MAX as u64 + 1).map(|at| (2 * at, 2 * at)).collect();
    let seen = Seen { mark: 0, ranges };
    let renewals = vec![Renewal::KeepAlive { session: SessionId(1), epoch: Epoch(1), seen }];
    names.apply_batch(Batch { renewals, ..Batch::default() });

    let mut locks = Bounded::with_one_session();
    let requests = LOCKS_PER_SESSION_MAX.div_ceil(MULTI_LOCK_MAX);
    let all = (0..requests).map(|at| request(at as u64 + 1, acquire(plain(MULTI_LOCK_MAX, at * MULTI_LOCK_MAX), None)));
    locks.apply(all.collect());

    let mut answers = Bounded::with_one_session();
    let release = Action::Release { grant: GrantId(7), report: None };
    answers.apply((1..=UNSEEN_ANSWERS_MAX as u64 + 1).map(|number| request(number, release.clone())).collect());

    let mut waiters = Bounded::with_one_session();
    let all = (1..=WAITERS_PER_SESSION_MAX as u64 + 2).map(|number| request(number, acquire(["p".to_string()], None)));
    waiters.apply(all.collect());

    let mut queue = Bounded::with_one_session();
    queue.apply(vec![open(SessionId(2), 30_000), request(1, acquire(["p".to_string()], None))]);
    queue.apply(vec![request(2, acquire(["p".to_string()], None))]);
    queue.change(|model| {
        let (session, waiter) = (model.sessions[1].clone(), model.waiters[0].clone());
        model.waiters.clear();
        for at in 0..WAITERS_PER_RESOURCE_MAX as u64 {
            let id = SessionId(10 + u128::from(at) / WAITERS_PER_SESSION_MAX as u128);
            if model.session(id).is_none() {
                model.sessions.push(SessionRecord { id, ..session.clone() });
            }
            let (arrival, number) = (Arrival(at + 1), RequestNumber(at + 1));
            model.waiters.push(WaiterRecord { session: id, arrival, number, ..waiter.clone() });
        }
        model.header.last_arrival = WAITERS_PER_RESOURCE_MAX as u64;
    });
    queue.apply(vec![request(3, acquire(["p".to_string()], None))]);

    let mut entries = Bounded::with_one_session();
    entries.apply(vec![request(1, acquire(["p".to_string()], Some("o")))]);
    entries.change(|model| model.grants[0].count = REENTRIES_MAX - 1);
    entries.apply((2..=3).map(|number| request(number, acquire(["p".to_string()], Some("o")))).collect());

    let mut acts = Bounded::with_one_session();
    acts.apply((0..=FREEZES_MAX).map(|id| freeze(id, vec![b'z'])).collect());
    let limit = |at| admin(Act::SetLimit { name: name(&format!("s{at}")), limit: Some(permits(1)) });
    acts.apply((0..=LIMITS_MAX).map(limit).collect());
    acts.apply((0..=SESSIONS_PER_PRINCIPAL_MAX as u128).map(|id| open(SessionId(id + 2), 30_000)).collect());

    let mut jobs = Bounded::with_one_session();
    jobs.apply(vec![open(SessionId(2), 30_000), request(1, acquire_job("many", "first"))]);
    jobs.change(|model| fill_with_jobs(model, "many", JOBS_PER_NAME_MAX - 2, &JobBytes::default()));
    let of_second = |action| match request(1, action) {
        Operation::Request(request) => Operation::Request(Request { session: SessionId(2), ..request }),
        other => other,
    };
    let completion = JobReport { verdict: Verdict::Succeeded, bytes: JobBytes::default() };
    let completion = Action::Release { grant: GrantId(1), report: Some(Box::new(completion)) };
    jobs.apply(vec![request(2, acquire_job("many", "second")), of_second(acquire_job("many", "third"))]);
    jobs.apply(vec![request(3, completion), request(4, acquire_job("many", "fourth"))]);
    jobs.apply(vec![request(5, Action::Begin { grant: GrantId(2) })]);
    jobs.apply(vec![request(6, Action::Release { grant: GrantId(2), report: None })]);
    jobs.apply(vec![request(7, acquire_job("many", "fourth"))]);

    let mut bytes = Bounded::with_one_session();
    let large = job_bytes(&[b'x'; JOB_BYTES_MAX]);
    bytes.change(|model| fill_with_jobs(model, "many", JOB_BYTES_PER_NAME_MAX / JOB_BYTES_MAX / 2, &large));
    bytes.apply(vec![request(1, acquire_job("many", "first"))]);

    let mut fill = Bounded::with_one_session();
    fill.change(|model| fill_with_jobs(model, "many", JOBS_PER_NAME_MAX / 5 * 4, &JobBytes::default()));
    fill.apply(vec![request(1, acquire_job("many", "first"))]);

    let all = [names, locks, answers, waiters, queue, entries, acts, jobs, bytes, fill];
    let reached = |kind: &str| all.iter().any(|bounded| bounded.tally.missing(&[kind]).is_empty());
    let missing: Vec<&&str> = EXPECTED_BOUNDS.iter().filter(|kind| !reached(kind)).collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
}
