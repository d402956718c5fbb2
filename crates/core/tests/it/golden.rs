//! Pins the state hash of one small state, because replicas of different builds compare this number.
//!
//! If this test fails and no record was changed on purpose, a compiler or a library has changed how records become bytes.
//! Then two builds with the same state would have different hashes. Repair the byte form, not the number.

use fencepost_core::{
    Acquire, Act, Action, Admin, Batch, Epoch, FreezeId, GrantId, JobBytes, JobKey, JobReport, JobTerms, Keep, Lock,
    LockDelay, LockMode, LockState, LogicalMs, Metadata, Millis, Name, Open, Operation, OwnerName, Permits, Principal,
    Reason, Record, Request, RequestNumber, Scope, SecretHash, Seen, SessionId, TakePermits, Terms, Ttl, Value,
    Verdict, Wait,
};

const A: SessionId = SessionId(0xA);
const B: SessionId = SessionId(0xB);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn open(session: SessionId) -> Operation {
    Operation::Open(Open {
        session,
        secret_hash: SecretHash([session.0 as u8; 32]),
        principal: Principal::new("payments").unwrap(),
        ttl: Ttl::new(30_000).unwrap(),
        metadata: Metadata::new(b"host-1").unwrap(),
    })
}

fn request(session: SessionId, number: u64, action: Action) -> Operation {
    let seen = Seen { mark: number / 4, ranges: Default::default() };
    Operation::Request(Request { session, epoch: Epoch(1), number: RequestNumber(number), seen, action })
}

fn lock(names: &[(&str, LockMode)], owner: Option<&str>, terms: Terms) -> Action {
    Action::Acquire(Acquire {
        locks: names.iter().map(|(text, mode)| Lock { name: name(text), mode: *mode }).collect(),
        owner: owner.map(|owner| OwnerName::new(owner).unwrap()),
        wait: Wait::UpTo(Millis::new(60_000).unwrap()),
        terms,
    })
}

fn admin(act: Act) -> Operation {
    let (by, reason) = (Principal::new("root").unwrap(), Reason::new("golden").unwrap());
    Operation::Admin(Admin { by, reason, act })
}

/// A state with at least one record of every kind.
fn small_state() -> LockState {
    use LockMode::{Exclusive, Shared, Update};
    let mut state = LockState::new(1);
    let terms = Terms {
        ttl: Some(Ttl::new(5_000).unwrap()),
        max_hold: Some(Millis::new(90_000).unwrap()),
        lock_delay: LockDelay::new(60_000).unwrap(),
        hear_contended: true,
        metadata: Metadata::new(b"job").unwrap(),
        value: Some(Value::new(b"10.0.0.1").unwrap()),
        job: None,
    };
    let permits = TakePermits {
        name: name("pool"),
        permits: Permits::new(3).unwrap(),
        limit: Some(Permits::new(10).unwrap()),
        wait: Wait::No,
        terms: Terms::default(),
    };
    let job = JobTerms { key: JobKey::new("2026-11").unwrap(), keep: Keep::default() };
    let report = JobReport { verdict: Verdict::Succeeded, bytes: JobBytes::new(b"12 invoices").unwrap() };
    let scope = Scope::Prefix(b"frozen/".as_slice().into());
    state.apply(
        LogicalMs(1_000),
        Batch {
            operations: vec![
                open(A),
                open(B),
                request(A, 1, lock(&[("/a/b", Update), ("plain", Shared)], Some("task"), Terms::default())),
                request(A, 2, lock(&[("leader", Exclusive)], None, terms)),
                request(B, 1, Action::TakePermits(permits)),
                request(B, 2, lock(&[("/a", Exclusive)], None, Terms::default())),
                request(B, 3, Action::Release { grant: GrantId(1), report: None }),
                request(B, 4, lock(&[("billing", Exclusive)], None, Terms { job: Some(job), ..Terms::default() })),
                request(B, 5, Action::Checkpoint { grant: GrantId(4), bytes: JobBytes::new(b"step 3").unwrap() }),
                request(B, 6, Action::Release { grant: GrantId(4), report: Some(Box::new(report)) }),
                admin(Act::Freeze { freeze: FreezeId(0xF), scope }),
                admin(Act::SetLimit { name: name("workers"), limit: Some(Permits::new(4).unwrap()) }),
            ],
            ..Batch::default()
        },
    );
    // The lock with a TTL ends and rests; everything else stays.
    state.apply(LogicalMs(7_000), Batch { failover_grace: true, ..Batch::default() });
    state.apply(LogicalMs(10_000), Batch::default());
    state
}

#[test]
fn state_hash_of_a_small_state_never_changes() {
    let state = small_state();
    let kind = |record: &Record| match record {
        Record::Header(_) => 0,
        Record::Session(_) => 1,
        Record::Answer(_) => 2,
        Record::Semaphore(_) => 3,
        Record::Freeze(_) => 4,
        Record::Grant(_) => 5,
        Record::Rest(_) => 6,
        Record::Waiter(_) => 7,
        Record::Job(_) => 8,
        #[cfg(feature = "made-up-version")]
        Record::Remark(_) => 9,
    };
    let mut kinds: Vec<i32> = state.records().map(|record| kind(&record)).collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, [0, 1, 2, 3, 4, 5, 6, 7, 8], "the state has every kind of record");
    assert_eq!(format!("{:016x}", state.state_hash()), "8015da0fff59db12");
}

#[test]
fn state_hash_depends_neither_on_the_hash_seed_nor_on_a_restore() {
    let state = small_state();
    let restored = LockState::restore(99, state.records()).unwrap();
    assert_eq!(restored.state_hash(), state.state_hash());
}
