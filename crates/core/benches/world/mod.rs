//! A state with sessions that acquire and release, for measurements: builds the commands and counts request numbers.
//!
//! Shared by the benchmarks, by `tests/memory.rs` and by `crates/wire/examples/instructions.rs`.

#![allow(dead_code, unreachable_pub, reason = "each measurement uses its part")]

use fencepost_core::{
    Acquire, Action, Batch, Effects, Epoch, GrantId, JobBytes, JobKey, JobReport, JobTerms, Keep, Lock, LockMode,
    LockState, Locks, LogicalMs, Metadata, Name, Open, Operation, OwnerName, Principal, Push, Renewal, Request,
    RequestNumber, SecretHash, Seen, SessionId, Terms, Ttl, Verdict, Wait,
};

/// A state. For each session: its last request number, and up to which number it has seen the answers.
#[derive(Clone)]
pub struct World {
    pub state: LockState,
    numbers: Vec<u64>,
    seen: Vec<u64>,
}

impl World {
    pub fn new(sessions: usize) -> World {
        let mut world = World { state: LockState::new(7), numbers: vec![0; sessions], seen: vec![0; sessions] };
        for chunk in (0..sessions).collect::<Vec<_>>().chunks(1_000) {
            let operations = chunk.iter().map(|session| open(*session)).collect();
            world.apply(operations);
        }
        world
    }

    pub fn apply(&mut self, operations: Vec<Operation>) -> Effects {
        self.state.apply(LogicalMs(0), Batch { operations, ..Batch::default() })
    }

    pub fn acquire(&mut self, session: usize, name: &Name, wait: Wait) -> Operation {
        self.acquire_as(session, None, name, wait)
    }

    pub fn acquire_as(&mut self, session: usize, owner: Option<OwnerName>, name: &Name, wait: Wait) -> Operation {
        let locks = Locks::from_buf([Lock { name: name.clone(), mode: LockMode::Exclusive }]);
        self.request(session, Action::Acquire(Acquire { locks, owner, wait, terms: Terms::default() }))
    }

    /// A request for the lock of a job.
    pub fn acquire_job(&mut self, session: usize, name: &Name, key: &JobKey, wait: Wait) -> Operation {
        let locks = Locks::from_buf([Lock { name: name.clone(), mode: LockMode::Exclusive }]);
        let job = Some(JobTerms { key: key.clone(), keep: Keep::default() });
        self.request(
            session,
            Action::Acquire(Acquire { locks, owner: None, wait, terms: Terms { job, ..Terms::default() } }),
        )
    }

    /// A release that completes the job, with an empty result.
    pub fn complete_job(&mut self, session: usize, grant: GrantId) -> Operation {
        let report = JobReport { verdict: Verdict::Succeeded, bytes: JobBytes::default() };
        self.request(session, Action::Release { grant, report: Some(Box::new(report)) })
    }

    pub fn release(&mut self, session: usize, grant: GrantId) -> Operation {
        self.request(session, Action::Release { grant, report: None })
    }

    pub fn request(&mut self, session: usize, action: Action) -> Operation {
        self.numbers[session] += 1;
        Operation::Request(Request {
            session: id(session),
            epoch: Epoch(1),
            number: RequestNumber(self.numbers[session]),
            seen: Seen { mark: self.seen[session], ..Seen::default() },
            action,
        })
    }

    /// From now on, the session's requests acknowledge every answer so far.
    pub fn saw_all(&mut self, session: usize) {
        self.seen[session] = self.numbers[session];
    }

    /// A keep-alive of a session, which also acknowledges what it has seen.
    pub fn keep_alive(&self, session: usize) -> Renewal {
        let seen = Seen { mark: self.seen[session], ..Seen::default() };
        Renewal::KeepAlive { session: id(session), epoch: Epoch(1), seen }
    }

    /// Acquires this many locks, shared out evenly among the sessions, on names of 20 bytes. All answers are acknowledged.
    pub fn hold(&mut self, locks: usize) {
        let sessions = self.numbers.len();
        for chunk in (0..locks).collect::<Vec<_>>().chunks(500) {
            let operations = chunk.iter().map(|lock| self.acquire(lock % sessions, &name(*lock), Wait::No)).collect();
            self.apply(operations);
            chunk.iter().for_each(|lock| self.saw_all(lock % sessions));
        }
        let renewals = (0..sessions).map(|session| self.keep_alive(session)).collect();
        self.state.apply(LogicalMs(0), Batch { renewals, ..Batch::default() });
    }
}

pub fn id(session: usize) -> SessionId {
    // Spread like random ids, so that sessions are not neighbours in the ordered set.
    SessionId((session as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

/// A name of 20 bytes.
pub fn name(lock: usize) -> Name {
    Name::new(&format!("orders/lock-{lock:08}")).expect("a plain name")
}

pub fn open(session: usize) -> Operation {
    Operation::Open(Open {
        session: id(session),
        secret_hash: SecretHash([7; 32]),
        // Several principals, because a principal has a bound on its sessions.
        principal: Principal::new(&format!("team-{}", session / 5_000)).expect("a plain name"),
        ttl: Ttl::new(30_000).expect("a TTL in bounds"),
        metadata: Metadata::default(),
    })
}

/// The first session that was granted something by a push, with its grant.
pub fn granted(effects: &Effects) -> Option<(SessionId, GrantId)> {
    effects.pushes.iter().find_map(|push| match push {
        Push::Ended { session, outcome: fencepost_core::Outcome::Granted { grant, .. }, .. } => {
            Some((*session, *grant))
        }
        _ => None,
    })
}
