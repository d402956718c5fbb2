//! Reaches every bound that `apply` enforces: the last command within the bound passes, the next is refused with the bound.
//!
//! The bounds of words (the length of a name, the shortest TTL) are tested where words are built, and the size of a message
//! where messages are read. Large bounds are reached in batches, or by restoring changed records where requests would be
//! too slow.

use fencepost_core::{
    Acquire, Act, Action, Admin, Batch, Bound, CheckpointRecord, CompletionRecord, Epoch, Event, FreezeId, GrantEnd,
    GrantId, JobBytes, JobKey, JobRecord, JobReport, JobTerms, Keep, Lock, LockMode, LockState, Locks, LogicalMs,
    Metadata, Name, Open, Operation, Outcome, OwnerName, Permits, Principal, Push, Reason, Record, Refusal, Renewal,
    Request, RequestNumber, Scope, SecretHash, Seen, SessionId, TakePermits, Terms, ToldReason, Ttl, Verdict, Wait,
    bounds,
};

/// A state to which entries are applied, all at the same stamp.
struct Group {
    state: LockState,
}

impl Group {
    fn new() -> Group {
        Group { state: LockState::new(1) }
    }

    fn with_sessions(count: u128) -> Group {
        let mut group = Group::new();
        let opened = group.enter((1..=count).map(|id| open(id, "app")));
        assert!(opened.iter().all(|outcome| matches!(outcome, Outcome::Opened { .. })));
        group
    }

    fn enter(&mut self, operations: impl IntoIterator<Item = Operation>) -> Vec<Outcome> {
        let batch = Batch { operations: operations.into_iter().collect(), ..Batch::default() };
        let effects = self.state.apply(LogicalMs(0), batch);
        effects.replies.into_iter().map(|reply| reply.outcome).collect()
    }

    fn one(&mut self, operation: Operation) -> Outcome {
        self.enter([operation]).remove(0)
    }

    /// Applies operations in entries of a thousand. All must be granted.
    fn all_granted(&mut self, operations: impl IntoIterator<Item = Operation>) {
        let outcomes = self.in_batches(operations);
        let other = outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Granted { .. }));
        assert_eq!(other, None);
    }

    /// Applies operations in entries of a thousand. All must be queued.
    fn all_queued(&mut self, operations: impl IntoIterator<Item = Operation>) {
        let outcomes = self.in_batches(operations);
        let other = outcomes.iter().find(|outcome| !matches!(outcome, Outcome::Queued { .. }));
        assert_eq!(other, None);
    }

    fn in_batches(&mut self, operations: impl IntoIterator<Item = Operation>) -> Vec<Outcome> {
        let operations: Vec<_> = operations.into_iter().collect();
        operations.chunks(1_000).flat_map(|chunk| self.enter(chunk.to_vec())).collect()
    }
}

#[track_caller]
fn assert_refused(outcome: Outcome, bound: Bound) {
    assert_eq!(outcome, Outcome::Refused(Refusal::Bound(bound)));
    let text = Refusal::Bound(bound).to_string();
    assert!(text.contains(&bound.limit().to_string()), "'{text}' does not name the number {}", bound.limit());
}

#[track_caller]
fn assert_granted(outcome: Outcome) -> GrantId {
    let Outcome::Granted { grant, .. } = outcome else { panic!("not granted: {outcome:?}") };
    grant
}

fn name(text: &str) -> Name {
    Name::new(text).expect("the tests use valid names")
}

fn open(id: u128, principal: &str) -> Operation {
    Operation::Open(Open {
        session: SessionId(id),
        secret_hash: SecretHash([7; 32]),
        principal: Principal::new(principal).expect("the tests use valid principals"),
        ttl: Ttl::new(bounds::SESSION_TTL_MS_DEFAULT).expect("the default is a valid TTL"),
        metadata: Metadata::default(),
    })
}

/// A request whose client has seen every answer before it.
fn request(session: u128, number: u64, action: Action) -> Operation {
    request_seeing(session, number, Seen { mark: number - 1, ..Seen::default() }, action)
}

/// A request whose client acknowledges just this.
fn request_seeing(session: u128, number: u64, seen: Seen, action: Action) -> Operation {
    let (session, number) = (SessionId(session), RequestNumber(number));
    Operation::Request(Request { session, epoch: Epoch(1), number, seen, action })
}

/// A request whose client acknowledges nothing.
fn waiting(session: u128, number: u64, action: Action) -> Operation {
    request_seeing(session, number, Seen::default(), action)
}

fn locks<'a>(names: impl IntoIterator<Item = &'a str>, mode: LockMode) -> Locks {
    names.into_iter().map(|text| Lock { name: name(text), mode }).collect()
}

fn acquire(locks: Locks, owner: Option<&str>, wait: Wait) -> Action {
    let owner = owner.map(|text| OwnerName::new(text).expect("the tests use valid owners"));
    Action::Acquire(Acquire { locks, owner, wait, terms: Terms::default() })
}

fn exclusive(text: &str, wait: Wait) -> Action {
    acquire(locks([text], LockMode::Exclusive), None, wait)
}

fn shared(text: &str) -> Action {
    acquire(locks([text], LockMode::Shared), None, Wait::No)
}

fn admin(act: Act) -> Operation {
    let by = Principal::new("admin").expect("the tests use valid principals");
    Operation::Admin(Admin { by, reason: Reason::new("test").expect("short"), act })
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

fn exclusives(names: &[String]) -> Action {
    acquire(locks(names.iter().map(String::as_str), LockMode::Exclusive), None, Wait::No)
}

#[test]
fn a_multi_lock_names_1_to_64_resources() {
    let mut group = Group::with_sessions(1);
    assert_granted(group.one(request(1, 1, exclusives(&numbered("r", bounds::MULTI_LOCK_MAX)))));
    assert_refused(group.one(request(1, 2, exclusives(&numbered("s", bounds::MULTI_LOCK_MAX + 1)))), Bound::MultiLock);
    assert_refused(group.one(request(1, 3, exclusives(&[]))), Bound::MultiLock);
}

#[test]
fn a_request_touches_at_most_256_names() {
    let mut group = Group::with_sessions(1);
    let deep = |top: usize| format!("/top{top}{}", "/below".repeat(bounds::PATH_LEVELS_MAX - 1));
    let mut names: Vec<_> = (0..bounds::FOOTPRINT_NAMES_MAX / bounds::PATH_LEVELS_MAX).map(deep).collect();
    assert_granted(group.one(request(1, 1, exclusives(&names))));
    names.push("one-more".to_string());
    assert_refused(group.one(request(1, 2, exclusives(&names))), Bound::FootprintNames);
}

#[test]
fn a_session_holds_and_waits_for_at_most_10_000_resources() {
    let mut group = Group::with_sessions(2);
    assert_granted(group.one(request(2, 1, exclusive("taken", Wait::No))));
    let names = numbered("r", bounds::LOCKS_PER_SESSION_MAX - 2);
    let chunks = names.chunks(bounds::MULTI_LOCK_MAX);
    let last = chunks.len() as u64;
    group.all_granted(chunks.zip(1..).map(|(names, number)| request(1, number, exclusives(names))));
    let permits = |number| {
        let (pool, one) = (name("pool"), Permits::new(1).expect("one is not zero"));
        let take = TakePermits { name: pool, permits: one, limit: Some(one), wait: Wait::No, terms: Terms::default() };
        request(1, number, Action::TakePermits(take))
    };
    // A waiting request counts like a held lock, and a grant of permits counts one.
    let wait = group.one(request(1, last + 1, exclusive("taken", Wait::Forever)));
    assert!(matches!(wait, Outcome::Queued { .. }), "{wait:?}");
    let seen = Seen { mark: last, ..Seen::default() };
    let Operation::Request(take) = permits(last + 2) else { unreachable!("`permits` makes a request") };
    assert_granted(group.one(Operation::Request(Request { seen: seen.clone(), ..take })));
    let one_more = request_seeing(1, last + 3, seen.clone(), exclusive("one-more", Wait::No));
    assert_refused(group.one(one_more), Bound::LocksPerSession);
    // A cancel makes room.
    let cancel = Action::Cancel { request: RequestNumber(last + 1), release_if_granted: false };
    assert_eq!(group.one(request_seeing(1, last + 4, seen.clone(), cancel)), Outcome::Cancelled);
    assert_granted(group.one(request_seeing(1, last + 5, seen, exclusive("one-more", Wait::No))));
}

#[test]
fn at_most_1_000_requests_of_a_session_wait() {
    let mut group = Group::with_sessions(2);
    assert_granted(group.one(request(2, 1, exclusive("r", Wait::No))));
    let last = bounds::WAITERS_PER_SESSION_MAX as u64;
    group.all_queued((1..=last).map(|number| waiting(1, number, exclusive("r", Wait::Forever))));
    assert_refused(group.one(waiting(1, last + 1, exclusive("r", Wait::Forever))), Bound::WaitersPerSession);
    // A request that does not wait is still answered, and another session may wait.
    let busy = group.one(waiting(1, last + 2, exclusive("r", Wait::No)));
    assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
    group.all_queued([request(2, 2, exclusive("r", Wait::Forever))]);
}

#[test]
fn at_most_100_000_requests_wait_for_one_resource() {
    let sessions = (bounds::WAITERS_PER_RESOURCE_MAX / bounds::WAITERS_PER_SESSION_MAX) as u128;
    let mut group = Group::with_sessions(sessions + 1);
    assert_granted(group.one(request(sessions + 1, 1, exclusive("/busy", Wait::No))));
    for session in 1..=sessions {
        let numbers = 1..=bounds::WAITERS_PER_SESSION_MAX as u64;
        group.all_queued(numbers.map(|number| waiting(session, number, exclusive("/busy/below", Wait::Forever))));
    }
    assert_eq!(group.state.counts().waiters, bounds::WAITERS_PER_RESOURCE_MAX);
    // Ancestors are resources, too: this request would wait in the queue of /busy.
    let one_more = request(sessions + 1, 2, exclusive("/busy/other", Wait::Forever));
    assert_refused(group.one(one_more), Bound::WaitersPerResource);
    assert_granted(group.one(request(sessions + 1, 3, exclusive("elsewhere", Wait::No))));
}

#[test]
fn a_principal_has_at_most_10_000_sessions() {
    let count = bounds::SESSIONS_PER_PRINCIPAL_MAX as u128;
    let mut group = Group::with_sessions(count);
    assert_refused(group.one(open(count + 1, "app")), Bound::SessionsPerPrincipal);
    // A repeated open is not a new session, and another principal has its own ten thousand.
    assert_eq!(group.one(open(1, "app")), Outcome::Opened { epoch: Epoch(1) });
    assert_eq!(group.one(open(count + 2, "other")), Outcome::Opened { epoch: Epoch(1) });
    assert_eq!(group.one(request(1, 1, Action::Close)), Outcome::Closed);
    assert_eq!(group.one(open(count + 1, "app")), Outcome::Opened { epoch: Epoch(1) });
}

#[test]
fn a_session_has_at_most_1_024_unseen_answers() {
    let mut group = Group::with_sessions(2);
    assert_granted(group.one(request(2, 1, exclusive("r", Wait::No))));
    // The first request waits. Its answer is kept even beyond the bound, because it was promised when it was queued.
    group.all_queued([waiting(1, 1, exclusive("r", Wait::Forever))]);
    let last = bounds::UNSEEN_ANSWERS_MAX as u64 + 1;
    group.all_granted((2..=last).map(|number| waiting(1, number, shared("s"))));
    assert_refused(group.one(waiting(1, last + 1, shared("s"))), Bound::UnseenAnswers);
    let grant = GrantId(1);
    assert_eq!(group.one(request(2, 2, Action::Release { grant, report: None })), Outcome::Released { count_left: 0 });
    let repeat = group.one(waiting(1, 1, exclusive("r", Wait::Forever)));
    assert_granted(repeat);
    // Acknowledged answers make room, also for the number that was refused.
    let seen = Seen { mark: 2, ..Seen::default() };
    assert_granted(group.one(request_seeing(1, last + 1, seen, shared("s"))));
}

#[test]
fn a_session_has_at_most_2_048_ranges_of_seen_numbers() {
    let mut group = Group::with_sessions(1);
    let mut keep_alive = |ranges: usize| {
        let ranges = (1..=ranges as u64).map(|range| (2 * range, 2 * range)).collect();
        let seen = Seen { mark: 0, ranges };
        let renewals = vec![Renewal::KeepAlive { session: SessionId(1), epoch: Epoch(1), seen }];
        let batch = Batch { renewals, ..Batch::default() };
        group.state.apply(LogicalMs(0), batch).replies.remove(0).outcome
    };
    assert_eq!(keep_alive(bounds::SEEN_RANGES_MAX), Outcome::Renewed);
    assert_refused(keep_alive(bounds::SEEN_RANGES_MAX + 1), Bound::SeenRanges);
    assert_eq!(keep_alive(bounds::SEEN_RANGES_MAX), Outcome::Renewed);
}

#[test]
fn a_grant_is_entered_at_most_a_million_times() {
    let mut group = Group::with_sessions(1);
    let enter = || acquire(locks(["r"], LockMode::Exclusive), Some("task"), Wait::No);
    assert_granted(group.one(request(1, 1, enter())));
    let nearly = group.state.records().map(|record| match record {
        Record::Grant(mut grant) => {
            grant.count = bounds::REENTRIES_MAX - 1;
            Record::Grant(grant)
        }
        other => other,
    });
    let restored = LockState::restore(1, nearly.collect::<Vec<_>>()).expect("the changed records are a valid state");
    let mut group = Group { state: restored };
    assert_granted(group.one(request(1, 2, enter())));
    assert_refused(group.one(request(1, 3, enter())), Bound::Reentries);
}

#[test]
fn there_are_at_most_1_000_freezes_and_a_prefix_is_no_longer_than_a_name() {
    let mut group = Group::new();
    let freeze = |id: u128, prefix: &str| {
        admin(Act::Freeze { freeze: FreezeId(id), scope: Scope::Prefix(prefix.as_bytes().into()) })
    };
    assert_refused(group.one(freeze(1, &"p".repeat(bounds::NAME_BYTES_MAX + 1))), Bound::NameBytes);
    assert_eq!(group.one(freeze(1, &"p".repeat(bounds::NAME_BYTES_MAX))), Outcome::Done);
    let last = bounds::FREEZES_MAX as u128;
    assert!(group.enter((2..=last).map(|id| freeze(id, "x"))).iter().all(|outcome| *outcome == Outcome::Done));
    assert_refused(group.one(freeze(last + 1, "x")), Bound::Freezes);
    assert_eq!(group.one(freeze(last, "x")), Outcome::Done, "a repeat is not a new freeze");
    assert_eq!(group.one(admin(Act::Thaw { freeze: FreezeId(1) })), Outcome::Done);
    assert_eq!(group.one(freeze(last + 1, "x")), Outcome::Done);
}

#[test]
fn there_are_at_most_10_000_limits() {
    let mut group = Group::new();
    let limit = |text: &str, permits: u32| admin(Act::SetLimit { name: name(text), limit: Permits::new(permits).ok() });
    let names = numbered("pool", bounds::LIMITS_MAX);
    let set = group.enter(names.iter().map(|name| limit(name, 3)));
    assert!(set.iter().all(|outcome| *outcome == Outcome::Done));
    assert_refused(group.one(limit("one-more", 3)), Bound::Limits);
    assert_eq!(group.one(limit("pool0", 4)), Outcome::Done, "a change is not a new limit");
    assert_eq!(group.one(limit("pool0", 0)), Outcome::Done, "zero permits mean no limit in this test");
    assert_eq!(group.one(limit("one-more", 3)), Outcome::Done);
}

#[test]
fn a_session_remembers_its_newest_1_024_losses() {
    let mut group = Group::with_sessions(1);
    let count = bounds::LOST_GRANTS_REMEMBERED_MAX as u64 + 1;
    group.all_granted((1..=count).map(|number| request(1, number, shared("r"))));
    group.enter((1..=count).map(|grant| admin(Act::Break { grant: GrantId(grant) })));
    let mut release =
        |number: u64, grant| group.one(request(1, number, Action::Release { grant: GrantId(grant), report: None }));
    assert_eq!(release(count + 1, 1), Outcome::AlreadyReleased, "the oldest is forgotten");
    let broken = || Outcome::Expired(GrantEnd::Broken(ToldReason::new("test").expect("short")));
    assert_eq!(release(count + 2, 2), broken());
    assert_eq!(release(count + 3, count), broken());
}

#[test]
fn a_busy_answer_names_16_holders_and_counts_all() {
    let mut group = Group::with_sessions(2);
    group.all_granted((1..=20).map(|number| request(1, number, shared("r"))));
    let Outcome::Busy(busy) = group.one(request(2, 1, exclusive("r", Wait::No))) else { panic!("it is held") };
    assert_eq!((busy.holders.len(), busy.holder_count), (bounds::BUSY_HOLDERS_SHOWN_MAX, 20));
}

/// An owner that another request waits for asks for what `readers` hold shared. Whether it waits unchecked: the search has
/// one edge for each reader.
fn waits_unchecked(readers: usize) -> bool {
    let mut group = Group::with_sessions(4);
    let owned = |text, wait| acquire(locks([text], LockMode::Exclusive), Some("task"), wait);
    assert_granted(group.one(request(1, 1, owned("mine", Wait::No))));
    group.all_queued([request(2, 1, exclusive("mine", Wait::Forever))]);
    let (some, others) = (1..=readers as u64 / 2, 1..=(readers - readers / 2) as u64);
    group.all_granted(some.map(|number| request(3, number, shared("read"))));
    group.all_granted(others.map(|number| request(4, number, shared("read"))));
    match group.one(request(1, 2, owned("read", Wait::Forever))) {
        Outcome::Queued { unchecked, .. } => unchecked,
        other => panic!("it must wait for the readers: {other:?}"),
    }
}

#[test]
fn a_deadlock_search_gives_up_after_10_000_steps() {
    assert!(!waits_unchecked(bounds::DEADLOCK_STEPS_MAX));
    assert!(waits_unchecked(bounds::DEADLOCK_STEPS_MAX + 1));
}

/// Two sessions wait for each other; `readers` hold the same lock as one of them. Whether the deadlock is suspected.
fn is_suspected(readers: usize) -> bool {
    let mut group = Group::with_sessions(4);
    assert_granted(group.one(request(1, 1, shared("read"))));
    assert_granted(group.one(request(2, 1, exclusive("mine", Wait::No))));
    group.all_granted((1..=readers as u64).map(|number| request(3, number, shared("read"))));
    group.all_queued([request(2, 2, exclusive("read", Wait::Forever))]);
    let locks = locks(["mine"], LockMode::Exclusive);
    let before = group.state.suspect(SessionId(1), None, &locks).is_some();
    group.all_queued([request(1, 2, exclusive("mine", Wait::Forever))]);
    assert_eq!(
        group.state.explain(&name("mine"), 1).suspected.is_some(),
        before,
        "the same before the wait and while it waits"
    );
    before
}

#[test]
fn a_search_for_a_suspected_deadlock_gives_up_after_1_000_steps() {
    // One step leads from the first wait to the other session. The wait of that session has `readers` and one more edges.
    assert!(is_suspected(bounds::SUSPECTED_STEPS_MAX - 2));
    assert!(!is_suspected(bounds::SUSPECTED_STEPS_MAX - 1));
}

#[test]
fn a_page_looks_at_no_more_than_10_000_rows() {
    let mut group = Group::with_sessions(2);
    let count = bounds::PAGE_ROWS_MAX as u64;
    group.all_granted((1..=count).map(|number| request(1, number, shared("many"))));
    let wanted = assert_granted(group.one(request(2, 1, shared("wanted"))));
    let first = group.state.list_grants("wanted", None, 10);
    assert_eq!((first.rows.len(), first.next), (0, Some(GrantId(count))), "an empty page is not the last one");
    let second = group.state.list_grants("wanted", first.next, 10);
    assert_eq!(second.rows.iter().map(|row| row.record.id).collect::<Vec<_>>(), [wanted]);
    assert_eq!(second.next, None);
}

#[test]
fn tokens_stay_below_2_to_the_53rd() {
    let group = Group::with_sessions(1);
    let records: Vec<_> = group.state.records().collect();
    assert!(LockState::restore_backup(1, records.clone(), bounds::RESTORE_TOKEN_JUMP).is_ok());
    assert!(LockState::restore_backup(1, records.clone(), bounds::TOKEN_MAX + 1).is_err());
    assert!(LockState::restore_backup(1, records, u64::MAX).is_err());
}

fn job_key(text: &str) -> JobKey {
    JobKey::new(text).expect("the tests use valid keys")
}

/// An acquire for a job.
fn for_job(text: &str, key: &str, wait: Wait) -> Action {
    let job = Some(JobTerms { key: job_key(key), keep: Keep::default() });
    let locks = locks([text], LockMode::Exclusive);
    Action::Acquire(Acquire { locks, owner: None, wait, terms: Terms { job, ..Terms::default() } })
}

fn report(grant: GrantId, verdict: Verdict, bytes: &[u8]) -> Action {
    let bytes = JobBytes::new(bytes).expect("the tests use few bytes");
    Action::Release { grant, report: Some(Box::new(JobReport { verdict, bytes })) }
}

/// The record of a job that an administrator completed.
fn completed_job(text: &str, key: &str, until: LogicalMs) -> JobRecord {
    let by = Some(Principal::new("admin").expect("the tests use valid principals"));
    let result = JobBytes::default();
    JobRecord {
        name: name(text),
        key: job_key(key),
        attempts: 0,
        last: None,
        checkpoint: None,
        completion: Some(CompletionRecord { at: LogicalMs(0), succeeded: true, result, token: None, by }),
        until: Some(until),
    }
}

const LATER: LogicalMs = LogicalMs(1_000_000);

/// A group with sessions, and with these records of jobs.
fn with_jobs(sessions: u128, jobs: impl IntoIterator<Item = JobRecord>) -> Group {
    let jobs = jobs.into_iter().map(Record::Job);
    let records: Vec<Record> = Group::with_sessions(sessions).state.records().chain(jobs).collect();
    Group { state: LockState::restore(1, records).expect("the records are a valid state") }
}

fn many_jobs(text: &str, count: usize) -> Vec<JobRecord> {
    (0..count).map(|at| completed_job(text, &format!("{at:07}"), LATER)).collect()
}

/// The bounds that the events of one operation say are filled: of which name, and with how many records.
fn fills(group: &mut Group, operation: Operation) -> Vec<(Option<String>, u64)> {
    let effects = group.state.apply(LogicalMs(0), Batch { operations: vec![operation], ..Batch::default() });
    let fill = |event: Event| match event {
        Event::JobsFill { name, records, .. } => Some((name.map(|name| name.as_str().to_string()), records)),
        _ => None,
    };
    effects.events.into_iter().filter_map(fill).collect()
}

#[test]
fn a_name_has_at_most_100_000_jobs_and_a_completion_always_has_room() {
    let mut group = with_jobs(5, many_jobs("many", bounds::JOBS_PER_NAME_MAX - 2));
    let first = assert_granted(group.one(request(1, 1, for_job("many", "first", Wait::No))));
    // A request that waits reserves no room, so all of these may begin to wait.
    for session in 2..=4 {
        let key = format!("next {session}");
        group.all_queued([waiting(session, 1, for_job("many", &key, Wait::Forever))]);
    }
    let completed = |token| Outcome::Completed { token: Some(token), succeeded: true };
    let token = fencepost_core::Token(first.0);
    assert_eq!(group.one(request(1, 2, report(first, Verdict::Succeeded, b"ok"))), completed(token));
    // The next one is granted the last room. While it is held, its room is reserved, and it is completed although there is no
    // other. Then the waiter whose turn comes finds none, and neither does the one behind it.
    let next = GrantId(first.0 + 1);
    let completion = request(2, 2, report(next, Verdict::Failed, &[b'x'; bounds::JOB_BYTES_MAX]));
    let batch = Batch { operations: vec![completion], ..Batch::default() };
    let effects = group.state.apply(LogicalMs(0), batch);
    let token = Some(fencepost_core::Token(next.0));
    assert_eq!(effects.replies[0].outcome, Outcome::Completed { token, succeeded: false });
    let ended = effects.pushes.into_iter().map(|push| match push {
        Push::Ended { session, outcome, .. } => (session, outcome),
        other => panic!("not the end of a wait: {other:?}"),
    });
    let refused = || Outcome::Refused(Refusal::Bound(Bound::JobsPerName));
    assert_eq!(ended.collect::<Vec<_>>(), [(SessionId(3), refused()), (SessionId(4), refused())]);
    assert_eq!(group.state.counts().jobs, bounds::JOBS_PER_NAME_MAX as u64);

    assert_refused(group.one(request(5, 1, for_job("many", "one more", Wait::Forever))), Bound::JobsPerName);
    let skip = |key: &str| Act::CompleteJob { name: name("many"), key: job_key(key), keep: Keep::default() };
    assert_refused(group.one(admin(skip("one more"))), Bound::JobsPerName);
    // A job that is done is still answered, and other names and locks without a key have room.
    assert!(matches!(group.one(request(5, 2, for_job("many", "0000000", Wait::No))), Outcome::Completed { .. }));
    assert_granted(group.one(request(5, 3, for_job("other", "one more", Wait::No))));
    let without_key = assert_granted(group.one(request(5, 4, exclusive("many", Wait::No))));
    group.one(request(5, 5, Action::Release { grant: without_key, report: None }));
    // What is forgotten makes room.
    let forget = Act::ForgetJob { name: name("many"), key: job_key("0000000") };
    assert_eq!(group.one(admin(forget)), Outcome::Done);
    assert_granted(group.one(request(5, 6, for_job("many", "one more", Wait::No))));
    assert_eq!(group.state.verify(), Ok(()));
}

#[test]
fn jobs_say_when_they_fill_four_fifths_of_a_bound() {
    let mut group = with_jobs(1, many_jobs("many", bounds::JOBS_PER_NAME_MAX / 5 * 4 - 1));
    let full = bounds::JOBS_PER_NAME_MAX as u64 / 5 * 4;
    let begun = |number, grant| request(1, number, Action::Begin { grant: GrantId(grant) });
    // The held job counts once for what it may store, and once more when it has a record.
    assert_eq!(fills(&mut group, request(1, 1, for_job("many", "first", Wait::No))), []);
    assert_eq!(fills(&mut group, begun(2, 1)), [(Some("many".to_string()), full + 1)]);
    assert_eq!(fills(&mut group, request(1, 3, report(GrantId(1), Verdict::Open, b""))), []);
    assert_eq!(
        fills(&mut group, request(1, 4, for_job("many", "second", Wait::No))),
        [(Some("many".to_string()), full + 1)]
    );
    assert_eq!(fills(&mut group, begun(5, 2)), []);
}

/// A job whose record has as many bytes as a job that was not begun by a client can have.
fn large_job(text: &str, at: usize, bytes: &JobBytes) -> JobRecord {
    let mut job = completed_job(text, &format!("{at:07}"), LATER);
    job.checkpoint = Some(CheckpointRecord { attempt: 1, at: LogicalMs(0), bytes: bytes.clone() });
    job.completion.as_mut().expect("it is completed").result = bytes.clone();
    job
}

#[test]
fn the_jobs_of_a_name_take_at_most_64_mib() {
    let bytes = JobBytes::new(&[b'x'; bounds::JOB_BYTES_MAX]).expect("as long as it may be");
    let each = large_job("many", 0, &bytes).bytes() as usize;
    // As many as leave room for one job, and then less than that.
    let count = (bounds::JOB_BYTES_PER_NAME_MAX - bounds::JOB_ROOM_BYTES) / each;
    let mut group = with_jobs(1, (0..count).map(|at| large_job("many", at, &bytes)));
    let held = assert_granted(group.one(request(1, 1, for_job("many", "one more", Wait::No))));
    let all = [b'x'; bounds::JOB_BYTES_MAX];
    let stored = JobBytes::new(&all).expect("as long as it may be");
    let stored = group.one(request(1, 2, Action::Checkpoint { grant: held, bytes: stored }));
    assert_eq!(stored, Outcome::Checkpointed { attempt: 1 });
    let done = group.one(request(1, 3, report(held, Verdict::Succeeded, &all)));
    assert!(matches!(done, Outcome::Completed { .. }), "{done:?}");
    assert!(group.state.counts().job_bytes <= bounds::JOB_BYTES_PER_NAME_MAX as u64);
    assert_refused(group.one(request(1, 4, for_job("many", "too much", Wait::No))), Bound::JobBytesPerName);
    assert_granted(group.one(request(1, 5, for_job("other", "too much", Wait::No))));
}

#[test]
fn the_jobs_of_the_group_take_at_most_512_mib() {
    // The records share their bytes, so the test takes less.
    let bytes = JobBytes::new(&[b'x'; bounds::JOB_BYTES_MAX]).expect("as long as it may be");
    let each = large_job("many0", 0, &bytes).bytes() as usize;
    let per_name = (bounds::JOB_BYTES_PER_NAME_MAX - bounds::JOB_ROOM_BYTES) / each;
    let count = (bounds::JOB_BYTES_TOTAL_MAX - bounds::JOB_ROOM_BYTES) / each;
    let jobs = (0..count).map(|at| large_job(&format!("many{}", at / per_name), at, &bytes));
    let mut group = with_jobs(2, jobs);
    let held = assert_granted(group.one(request(1, 1, for_job("other", "last", Wait::No))));
    // It is held, so its room is no longer free for another one.
    assert_refused(group.one(request(2, 1, for_job("another", "one more", Wait::No))), Bound::JobBytesTotal);
    let done = group.one(request(1, 2, report(held, Verdict::Succeeded, &[b'x'; bounds::JOB_BYTES_MAX])));
    assert!(matches!(done, Outcome::Completed { .. }), "{done:?}");
}

#[test]
fn at_most_64_records_of_jobs_leave_with_one_entry() {
    let jobs = (0..150).map(|at| completed_job("many", &format!("{at:03}"), LogicalMs(1_000 - at)));
    let mut group = with_jobs(0, jobs);
    let view = |group: &Group, key| group.state.job(&name("many"), &job_key(key)).record;
    assert_eq!(group.state.next_deadline(), None, "the end of a record causes no entry");
    let mut left_at = |stamp_ms| {
        group.state.apply(LogicalMs(stamp_ms), Batch::default());
        (group.state.counts().jobs, group.state.list_jobs("", None, 200).rows.len())
    };
    // Those that ended first leave first. The others count as gone, and take room until they leave.
    assert_eq!(left_at(900), (150 - 50, 150 - 50));
    assert_eq!(left_at(1_000), (100 - 64, 0));
    assert_eq!(left_at(1_000), (0, 0));
    assert_eq!(view(&group, "000"), None);
    assert_eq!(group.state.verify(), Ok(()));
}

#[test]
fn a_page_of_jobs_looks_at_no_more_than_10_000_rows() {
    let count = bounds::PAGE_ROWS_MAX + bounds::JOBS_FORGOTTEN_PER_ENTRY_MAX;
    let over = (0..count).map(|at| completed_job("many", &format!("{at:07}"), LogicalMs(10)));
    let mut group = with_jobs(0, over.chain([completed_job("wanted", "k", LATER)]));
    group.state.apply(LogicalMs(10), Batch::default());
    let first = group.state.list_jobs("", None, 10);
    assert_eq!((first.rows.len(), first.next.is_some()), (0, true), "an empty page is not the last one");
    let second = group.state.list_jobs("", first.next.as_ref(), 10);
    assert_eq!(second.rows.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["wanted"]);
    assert_eq!(second.next, None);
    let small = group.state.list_jobs("wanted", None, 1);
    assert_eq!((small.rows.len(), small.next), (1, None));
}

#[test]
fn words_of_jobs_have_bounds() {
    assert!(JobKey::new(&"k".repeat(bounds::JOB_KEY_BYTES_MAX)).is_ok());
    for (bad, why) in [
        (JobKey::new(&"k".repeat(bounds::JOB_KEY_BYTES_MAX + 1)).map(drop), Bound::JobKeyBytes),
        (JobBytes::new(&[0; bounds::JOB_BYTES_MAX + 1]).map(drop), Bound::JobBytes),
        (Keep::new(bounds::KEEP_MS_MIN - 1).map(drop), Bound::KeepLeast),
        (Keep::new(bounds::DURATION_MS_MAX + 1).map(drop), Bound::Duration),
    ] {
        assert_eq!(bad, Err(fencepost_core::BadWord::Bound(why)));
    }
    assert!(JobBytes::new(&[0; bounds::JOB_BYTES_MAX]).is_ok());
    assert!(Keep::new(bounds::KEEP_MS_MIN).is_ok() && Keep::new(bounds::DURATION_MS_MAX).is_ok());
    assert!(JobKey::new("").is_err() && JobKey::new("two\nlines").is_err());
    assert_eq!(format!("{:?}", JobBytes::new(b"a secret").expect("short")), "JobBytes(8 bytes)");
}
