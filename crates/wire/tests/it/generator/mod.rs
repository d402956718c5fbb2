//! Random commands, records, views and events from a seed: every variant of the core, with small and with extreme numbers.
//!
//! Each word is valid, and together they make no sense: a codec must accept that. [`Met`] notes which variants were generated. One macro
//! makes its lists and the `match`es that name a variant. So a new variant of the core does not compile until it is in its list, and
//! the test fails until it is generated.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

mod outcomes;
mod variants;
mod views;

use fencepost_core::{
    Acquire, Act, Action, Admin, AnswerRecord, Arrival, AttemptEnd, AttemptRecord, Batch, CheckpointRecord,
    CompletionRecord, Epoch, FormatVersion, FreezeId, FreezeRecord, GrantId, GrantRecord, Header, Held, JobBytes,
    JobKey, JobRecord, JobReport, JobTerms, Keep, Lock, LockDelay, LockMode, Locks, LogicalMs, Metadata, Millis, Name,
    Open, Operation, OwnerName, Permits, Principal, Reason, Record, Renewal, Request, RequestNumber, RestRecord, Scope,
    SecretHash, Seen, SemaphoreRecord, SessionId, SessionRecord, TakePermits, Terms, Token, ToldReason, Ttl, Value,
    Verdict, Wait, WaiterRecord, Wants,
};
use fencepost_wire::{Cause, Entry, StateProof, Transfer};

pub use variants::Met;

/// A SplitMix64 generator of commands, records, views and events.
pub struct Generator {
    state: u64,
    /// Makes only short texts and lists, for files that people read.
    brief: bool,
    pub met: Met,
}

impl Generator {
    pub fn new(seed: u64) -> Generator {
        Generator { state: seed, brief: false, met: Met::default() }
    }

    pub fn brief(seed: u64) -> Generator {
        Generator { brief: true, ..Generator::new(seed) }
    }

    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    pub fn flag(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// A number of any size: zero, small, or up to the largest.
    pub fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            _ => {
                let shift = self.below(64);
                self.bits() >> shift
            }
        }
    }

    pub fn maybe<T>(&mut self, make: impl FnOnce(&mut Generator) -> T) -> Option<T> {
        self.flag().then(|| make(self))
    }

    pub fn some<T>(&mut self, count_max: usize, mut make: impl FnMut(&mut Generator) -> T) -> Vec<T> {
        (0..self.below(count_max + 1)).map(|_| make(self)).collect()
    }

    // ---- Words

    fn text(&mut self, bytes_max: usize) -> String {
        const LETTERS: [&str; 8] = ["a", "Z", "7", ":", "-", "ä", "鎖", "🔒"];
        let aim = if self.below(16) == 0 && !self.brief { bytes_max } else { 1 + self.below(24) };
        let mut text = "n".to_owned();
        loop {
            let letter = LETTERS[self.below(LETTERS.len())];
            if text.len() + letter.len() > aim {
                return text;
            }
            text.push_str(letter);
        }
    }

    pub fn name(&mut self) -> Name {
        let text = match self.below(4) {
            0 => (0..1 + self.below(if self.brief { 3 } else { 16 })).map(|_| format!("/{}", self.text(28))).collect(),
            _ => self.text(512),
        };
        Name::new(&text).expect("at most 16 segments of at most 28 bytes, or 512 bytes of letters")
    }

    fn bytes(&mut self, count_max: usize) -> Vec<u8> {
        let count = match self.below(32) {
            0 if !self.brief => count_max,
            1..16 => 0,
            _ if self.brief => return b"brief".to_vec(),
            _ => self.below(40),
        };
        (0..count).map(|_| self.bits() as u8).collect()
    }

    pub fn owner(&mut self) -> Option<OwnerName> {
        self.maybe(|g| OwnerName::new(&g.text(128)).expect("letters"))
    }

    pub fn principal(&mut self) -> Principal {
        Principal::new(&self.text(256)).expect("letters")
    }

    pub fn reason(&mut self) -> Reason {
        let text = if self.flag() { String::new() } else { self.text(1024) };
        Reason::new(&text).expect("letters")
    }

    pub fn told_reason(&mut self) -> ToldReason {
        ToldReason::from(&self.reason())
    }

    pub fn transfer(&mut self) -> Transfer {
        Transfer { to: self.number(), cause: Cause { by: self.principal(), reason: self.reason() } }
    }

    fn metadata(&mut self) -> Metadata {
        Metadata::new(&self.bytes(4096)).expect("within the bound")
    }

    pub fn value(&mut self) -> Value {
        Value::new(&self.bytes(4096)).expect("within the bound")
    }

    pub fn secret_hash(&mut self) -> SecretHash {
        SecretHash(std::array::from_fn(|_| self.bits() as u8))
    }

    pub fn id(&mut self) -> u128 {
        u128::from(self.number()) << 64 | u128::from(self.number())
    }

    pub fn session(&mut self) -> SessionId {
        SessionId(self.id())
    }

    pub fn grant(&mut self) -> GrantId {
        GrantId(self.number())
    }

    pub fn permits(&mut self) -> Permits {
        Permits::new((self.number() as u32).max(1)).expect("at least one")
    }

    pub fn stamp(&mut self) -> LogicalMs {
        LogicalMs(self.number())
    }

    fn millis(&mut self) -> Millis {
        const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1_000;
        Millis::new(self.number() % (YEAR_MS + 1)).expect("at most a year")
    }

    fn ttl(&mut self) -> Ttl {
        Ttl::new(self.millis().get().max(1_000)).expect("at least a second")
    }

    fn seen_ranges(&mut self) -> Vec<(u64, u64)> {
        self.some(3, |g| (g.number(), g.number()))
    }

    fn seen(&mut self) -> Seen {
        Seen { mark: self.number(), ranges: self.seen_ranges().into_iter().collect() }
    }

    fn lock_mode(&mut self) -> LockMode {
        let mode = [LockMode::Shared, LockMode::Update, LockMode::Exclusive][self.below(3)];
        self.met.lock_mode(&mode);
        mode
    }

    pub fn locks(&mut self) -> Locks {
        let count = if self.below(32) == 0 && !self.brief { 64 } else { 1 + self.below(3) };
        (0..count).map(|_| Lock { name: self.name(), mode: self.lock_mode() }).collect()
    }

    fn wait(&mut self) -> Wait {
        let wait = match self.below(3) {
            0 => Wait::No,
            1 => Wait::UpTo(self.millis()),
            _ => Wait::Forever,
        };
        self.met.wait(&wait);
        wait
    }

    pub fn terms(&mut self) -> Terms {
        if self.flag() {
            return Terms::default();
        }
        Terms {
            ttl: self.maybe(Generator::ttl),
            max_hold: self.maybe(Generator::millis),
            lock_delay: LockDelay::new(self.number() % 60_001).expect("at most a minute"),
            hear_contended: self.flag(),
            metadata: self.metadata(),
            value: self.maybe(Generator::value),
            job: self.maybe(|random| JobTerms { key: random.job_key(), keep: random.keep() }),
        }
    }

    pub fn job_key(&mut self) -> JobKey {
        let key = self.below(1_000).to_string().repeat(1 + self.below(80));
        JobKey::new(&key).expect("at most 240 bytes")
    }

    fn keep(&mut self) -> Keep {
        Keep::new(60_000 + self.number() % 1_000_000).expect("at least a minute")
    }

    fn job_bytes(&mut self) -> JobBytes {
        JobBytes::new(&self.bytes(4 * 1024)).expect("at most 4 KiB")
    }

    fn job_report(&mut self) -> JobReport {
        let verdict = [Verdict::Succeeded, Verdict::Failed, Verdict::Open][self.below(3)];
        self.met.verdict(&verdict);
        JobReport { verdict, bytes: self.job_bytes() }
    }

    pub fn scope(&mut self) -> Scope {
        let scope = match self.flag() {
            true => Scope::Name(self.name()),
            false => Scope::Prefix(self.bytes(512).into()),
        };
        self.met.scope(&scope);
        scope
    }

    // ---- Commands

    pub fn entry(&mut self) -> Entry {
        Entry {
            version: FormatVersion::FIRST,
            term: self.number(),
            stamp: self.stamp(),
            wall_clock_ms: self.maybe(Generator::number),
            proof: self.maybe(|random| StateProof { index: random.number(), state_hash: random.number() }),
            batch: self.batch(),
            transfer: self.maybe(Generator::transfer),
        }
    }

    pub fn batch(&mut self) -> Batch {
        Batch {
            raise_to: self.maybe(|random| FormatVersion::new(random.number() as u32).unwrap_or_default()),
            failover_grace: self.flag(),
            renewals: self.some(4, Generator::renewal),
            operations: self.some(8, Generator::operation),
        }
    }

    pub fn renewal(&mut self) -> Renewal {
        let renewal = match self.flag() {
            true => Renewal::KeepAlive { session: self.session(), epoch: Epoch(self.number()), seen: self.seen() },
            false => Renewal::Attach { session: self.session(), secret_hash: self.secret_hash(), seen: self.seen() },
        };
        self.met.renewal(&renewal);
        renewal
    }

    fn operation(&mut self) -> Operation {
        let operation = match self.below(4) {
            0 => Operation::Open(self.open()),
            1 => Operation::Admin(self.admin()),
            _ => Operation::Request(self.request()),
        };
        self.met.operation(&operation);
        operation
    }

    pub fn open(&mut self) -> Open {
        Open {
            session: self.session(),
            secret_hash: self.secret_hash(),
            principal: self.principal(),
            ttl: self.ttl(),
            metadata: self.metadata(),
        }
    }

    pub fn admin(&mut self) -> Admin {
        Admin { by: self.principal(), reason: self.reason(), act: self.act() }
    }

    pub fn request(&mut self) -> Request {
        Request {
            session: self.session(),
            epoch: Epoch(self.number()),
            number: RequestNumber(self.number()),
            seen: self.seen(),
            action: self.action(),
        }
    }

    fn action(&mut self) -> Action {
        let action = match self.below(10) {
            0 => Action::Acquire(Acquire {
                locks: self.locks(),
                owner: self.owner(),
                wait: self.wait(),
                terms: self.terms(),
            }),
            1 => Action::TakePermits(TakePermits {
                name: self.name(),
                permits: self.permits(),
                limit: self.maybe(Generator::permits),
                wait: self.wait(),
                terms: self.terms(),
            }),
            2 => Action::Cancel { request: RequestNumber(self.number()), release_if_granted: self.flag() },
            3 => Action::Release { grant: self.grant(), report: self.maybe(|random| Box::new(random.job_report())) },
            4 => Action::Extend { grant: self.grant(), max_hold: self.millis() },
            5 => Action::Convert { grant: self.grant(), name: self.name(), mode: self.lock_mode(), wait: self.wait() },
            6 => Action::SetValue { grant: self.grant(), value: self.value() },
            7 => Action::Begin { grant: self.grant() },
            8 => Action::Checkpoint { grant: self.grant(), bytes: self.job_bytes() },
            _ => Action::Close,
        };
        self.met.action(&action);
        action
    }

    fn act(&mut self) -> Act {
        let act = match self.below(9) {
            0 => Act::Break { grant: self.grant() },
            1 => Act::Evict { session: self.session() },
            2 => Act::WaiveRest { grant: self.grant() },
            3 => Act::Freeze { freeze: FreezeId(self.id()), scope: self.scope() },
            4 => Act::Thaw { freeze: FreezeId(self.id()) },
            5 => Act::CompleteJob { name: self.name(), key: self.job_key(), keep: self.keep() },
            6 => Act::ForgetJob { name: self.name(), key: self.job_key() },
            7 => Act::AllowJobs,
            _ => Act::SetLimit { name: self.name(), limit: self.maybe(Generator::permits) },
        };
        self.met.act(&act);
        act
    }

    // ---- Records

    pub fn record(&mut self) -> Record {
        let record = match self.below(12) {
            0 => Record::Header(Header {
                version: FormatVersion::FIRST,
                stamp: self.stamp(),
                last_token: self.number(),
                last_arrival: self.number(),
                grace_at: self.maybe(Generator::stamp),
                jobs_refused: self.flag(),
            }),
            1 => Record::Session(self.session_record()),
            2 => Record::Grant(self.grant_record()),
            3 => Record::Rest(self.rest_record()),
            4 => Record::Waiter(self.waiter_record()),
            5 => Record::Semaphore(self.semaphore_record()),
            6 => Record::Freeze(self.freeze_record()),
            7 => Record::Job(self.job_record()),
            // More often, because there are many outcomes.
            _ => Record::Answer(AnswerRecord {
                session: self.session(),
                number: RequestNumber(self.number()),
                answered_at: self.stamp(),
                outcome: self.outcome(),
                given_back: self.flag(),
            }),
        };
        self.met.record(&record);
        record
    }

    pub fn session_record(&mut self) -> SessionRecord {
        SessionRecord {
            id: self.session(),
            principal: self.principal(),
            secret_hash: self.secret_hash(),
            ttl: self.ttl(),
            metadata: self.metadata(),
            opened_at: self.stamp(),
            opened_after_token: self.number(),
            epoch: Epoch(self.number()),
            renewed_at: self.stamp(),
            seen_mark: self.number(),
            seen_ranges: self.seen_ranges(),
            lost: self.some(3, |g| (g.grant(), g.grant_end())),
        }
    }

    pub fn grant_record(&mut self) -> GrantRecord {
        GrantRecord {
            id: self.grant(),
            token: Token(self.number()),
            session: self.session(),
            owner: self.owner(),
            held: self.held(),
            count: self.number() as u32,
            granted_at: self.stamp(),
            hold_until: self.maybe(Generator::stamp),
            terms: self.maybe(|g| Box::new(g.terms())),
        }
    }

    pub fn rest_record(&mut self) -> RestRecord {
        RestRecord {
            grant: self.grant(),
            token: Token(self.number()),
            held: self.held(),
            since: self.stamp(),
            until: self.stamp(),
        }
    }

    pub fn semaphore_record(&mut self) -> SemaphoreRecord {
        SemaphoreRecord { name: self.name(), limit: self.permits(), administered: self.flag() }
    }

    pub fn freeze_record(&mut self) -> FreezeRecord {
        FreezeRecord {
            id: FreezeId(self.id()),
            scope: self.scope(),
            by: self.principal(),
            reason: self.reason(),
            since: self.stamp(),
        }
    }

    pub fn job_record(&mut self) -> JobRecord {
        JobRecord {
            name: self.name(),
            key: self.job_key(),
            attempts: self.number(),
            last: self.maybe(|random| AttemptRecord {
                grant: random.grant(),
                token: Token(random.number()),
                session: random.session(),
                began_at: random.stamp(),
                ended: random.maybe(|random| AttemptEnd {
                    at: random.stamp(),
                    how: random.grant_end(),
                    error: random.job_bytes(),
                }),
            }),
            checkpoint: self.maybe(|random| CheckpointRecord {
                attempt: random.number(),
                at: random.stamp(),
                bytes: random.job_bytes(),
            }),
            completion: self.maybe(|random| CompletionRecord {
                at: random.stamp(),
                succeeded: random.flag(),
                result: random.job_bytes(),
                token: random.maybe(|random| Token(random.number())),
                by: random.maybe(Generator::principal),
            }),
            until: self.maybe(Generator::stamp),
        }
    }

    pub fn waiter_record(&mut self) -> WaiterRecord {
        let wants = match self.below(3) {
            0 => Wants::Locks(self.locks()),
            1 => Wants::Conversion { grant: self.grant(), name: self.name(), mode: self.lock_mode() },
            _ => Wants::Permits { name: self.name(), permits: self.permits() },
        };
        self.met.wants(&wants);
        WaiterRecord {
            arrival: Arrival(self.number()),
            session: self.session(),
            number: RequestNumber(self.number()),
            owner: self.owner(),
            wants,
            queued_at: self.stamp(),
            until: self.maybe(Generator::stamp),
            terms: self.maybe(|g| Box::new(g.terms())),
            unchecked: self.flag(),
        }
    }

    pub fn held(&mut self) -> Held {
        let held = match self.flag() {
            true => Held::Locks(self.locks()),
            false => Held::Permits { name: self.name(), permits: self.permits() },
        };
        self.met.held(&held);
        held
    }
}
