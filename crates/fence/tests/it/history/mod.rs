//! A small world in which the rules of fencing must hold: the real lock state machine, clients that pause and then go on with the
//! locks that they believe to hold, and a store that admits accesses by the rules alone.
//!
//! A client reads under its locks, and later writes what it decided from that; much later, if it was paused. It does not learn at
//! once that its locks are gone. Two things must never happen, and a history ends with an error as soon as one does:
//!
//! - a write is admitted although something that it was decided from has changed, or although the current holder of a lock has
//!   read what it changes;
//! - a client that holds its locks is refused.

mod client;
mod store;

use client::{Client, Work};
use fencepost_core::{
    Acquire, Act, Action, Admin, Batch, Epoch, GrantId, Held, Lock, LockMode, LockState, Locks, LogicalMs, Metadata,
    Millis, Name, Open, Operation, Principal, Reason, Renewal, Request, RequestNumber, SecretHash, Seen, SessionId,
    Terms, Ttl, Wait,
};
use store::Store;

pub(crate) use store::Careless;

/// Paths above and below each other, neighbours, and names that are not paths. Each is a lock, and a datum of the store.
const NAMES: [&str; 7] = ["/a", "/a/b", "/a/b/c", "/a/d", "/e", "flat", "other"];
const CLIENTS: usize = 4;
const TTL_MS: u64 = 1_000;

/// What has happened in a history, so that a test can assert that every case occurred.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) writes_admitted: u64,
    pub(crate) writes_refused: u64,
    /// Writes that were decided from something that had changed. Without a guard they would have taken effect.
    pub(crate) writes_superseded: u64,
    /// Writes that were also decided from what was read under another lock.
    pub(crate) writes_from_two_locks: u64,
    pub(crate) reads_refused: u64,
    pub(crate) conversions: u64,
    pub(crate) marks_forgotten: u64,
}

/// One history. Its seed decides everything in it.
struct History {
    random: Random,
    locks: LockState,
    now: LogicalMs,
    clients: Vec<Client>,
    sessions_opened: u128,
    store: Store,
    tally: Tally,
}

impl History {
    fn new(seed: u64, careless: Option<Careless>) -> History {
        let mut history = History {
            random: Random(seed),
            locks: LockState::new(seed),
            now: LogicalMs(0),
            clients: vec![Client::default(); CLIENTS],
            sessions_opened: 0,
            store: Store::new(careless),
            tally: Tally::default(),
        };
        (0..CLIENTS).for_each(|client| history.open_session(client));
        history
    }

    /// One random event.
    fn step(&mut self) -> Result<(), String> {
        let client = self.random.below(CLIENTS);
        match self.random.below(100) {
            0..15 => self.let_time_pass(),
            15..35 => self.acquire(client),
            35..40 => self.release(client),
            40..48 => self.convert(client),
            48..54 => self.clients[client].awake ^= true,
            54..64 => self.learn(client),
            64..66 => self.break_a_grant(),
            66 => self.forget_marks(),
            67..80 => return self.read(client),
            _ => return self.write(client),
        }
        Ok(())
    }

    /// The clients that are awake send keep-alives, and open a new session if theirs has ended. They go on believing in the locks
    /// of the old session until they learn that these are gone.
    fn let_time_pass(&mut self) {
        self.now = LogicalMs(self.now.0 + self.random.below(TTL_MS as usize / 2) as u64);
        let awake = self.clients.iter().filter(|client| client.awake);
        let keep_alive = |client: &Client| {
            let epoch = self.epoch_of(client.session)?;
            Some(Renewal::KeepAlive { session: client.session, epoch, seen: Seen::default() })
        };
        let renewals = awake.filter_map(keep_alive).collect();
        self.locks.apply(self.now, Batch { renewals, ..Batch::default() });
        for client in 0..CLIENTS {
            if self.clients[client].awake && self.epoch_of(self.clients[client].session).is_none() {
                self.open_session(client);
            }
        }
    }

    fn open_session(&mut self, client: usize) {
        self.sessions_opened += 1;
        let session = SessionId(self.sessions_opened);
        self.clients[client].session = session;
        self.clients[client].last_number = 0;
        self.apply(Operation::Open(Open {
            session,
            secret_hash: SecretHash([0; 32]),
            principal: Principal::new("client").expect("valid"),
            ttl: Ttl::new(TTL_MS).expect("valid"),
            metadata: Metadata::default(),
        }));
    }

    fn acquire(&mut self, client: usize) {
        let mut names = vec![*self.random.pick(&NAMES)];
        if self.random.below(4) == 0 {
            names.push(*self.random.pick(&NAMES));
            names.dedup();
        }
        let locks: Locks = names.into_iter().map(|text| Lock { name: name(text), mode: self.random.mode() }).collect();
        let wait = if self.random.below(2) == 0 { Wait::No } else { Wait::Forever };
        self.request(client, Action::Acquire(Acquire { locks, owner: None, wait, terms: Terms::default() }));
    }

    fn release(&mut self, client: usize) {
        let Some((grant, _)) = self.random_work(client) else { return };
        self.request(client, Action::Release { grant, report: None });
    }

    fn convert(&mut self, client: usize) {
        let Some((grant, work)) = self.random_work(client) else { return };
        let name = self.random.pick(&work.locks).name.clone();
        let (mode, wait) = (self.random.mode(), Wait::UpTo(Millis::new(TTL_MS).expect("valid")));
        self.request(client, Action::Convert { grant, name, mode, wait });
        self.tally.conversions += 1;
    }

    fn break_a_grant(&mut self) {
        let grants = self.locks.list_grants("", None, usize::MAX).rows;
        if grants.is_empty() {
            return;
        }
        let grant = self.random.pick(&grants).record.id;
        let (by, reason) = (Principal::new("operator").expect("valid"), Reason::new("it hangs").expect("valid"));
        self.apply(Operation::Admin(Admin { by, reason, act: Act::Break { grant } }));
    }

    fn forget_marks(&mut self) {
        let (oldest_live, last) = (self.locks.oldest_live_token(), self.locks.counts().last_token);
        self.tally.marks_forgotten += self.store.forget_below(oldest_live, last);
    }

    /// The client learns what it holds. It may learn later what it has lost: that message is still in flight.
    fn learn(&mut self, client: usize) {
        if !self.clients[client].awake {
            return;
        }
        let hears_of_losses = self.random.below(2) == 0;
        let session = self.clients[client].session;
        let grants = self.locks.list_grants("", None, usize::MAX).rows;
        let grants = grants.into_iter().map(|view| view.record).filter(|record| record.session == session);
        let held: Vec<(GrantId, Locks, _)> = grants
            .filter_map(|record| match record.held {
                Held::Locks(locks) => Some((record.id, locks, record.token)),
                Held::Permits { .. } => None,
            })
            .collect();
        let works = &mut self.clients[client].works;
        if hears_of_losses {
            works.retain(|grant, _| held.iter().any(|(held, ..)| held == grant));
        }
        for (grant, locks, token) in held {
            let work = works.entry(grant).or_default();
            // What was read stays valid: a client that converts its lock holds it without a gap.
            (work.locks, work.token) = (locks, token);
        }
    }

    /// Reads everything under a lock that the client believes to hold, or one datum of it.
    fn read(&mut self, client: usize) -> Result<(), String> {
        let Some((grant, work)) = self.random_work(client) else { return Ok(()) };
        let lock = self.random.pick(&work.locks).clone();
        let place = self.random.pick(&within(&lock.name)).clone();
        let claims = lock.mode == LockMode::Exclusive && self.random.below(4) != 0;
        match self.store.read(&place, work.token, claims) {
            Ok(found) => {
                let read = &mut self.clients[client].works.get_mut(&grant).expect("it was found there").read;
                read.insert(place, found);
                Ok(())
            }
            Err(stale) => {
                self.tally.reads_refused += 1;
                if self.holds(grant, &work) {
                    return Err(format!("{grant:?} holds {lock:?} and may not read: {stale}"));
                }
                Ok(())
            }
        }
    }

    /// Writes what was decided from everything that was read under the lock, and perhaps under another one.
    fn write(&mut self, client: usize) -> Result<(), String> {
        let Some((grant, work)) = self.random_work(client) else { return Ok(()) };
        let exclusive: Vec<&Lock> = work.locks.iter().filter(|lock| lock.mode == LockMode::Exclusive).collect();
        if exclusive.is_empty() {
            return Ok(());
        }
        let lock = self.random.pick(&exclusive).name.clone();
        let place = self.random.pick(&within(&lock)).clone();
        // Writes one datum, or, like a recursive delete, the datum of a name and all data below that name.
        let data = if self.random.below(2) == 0 { vec![place] } else { within(&place) };
        let mut decided_from = vec![(grant, work)];
        decided_from.extend(self.random_work(client).filter(|(other, _)| *other != grant));
        let superseded = decided_from.iter().any(|(_, work)| self.store.has_changed(work));
        let holds_all = decided_from.iter().all(|(grant, work)| self.holds(*grant, work));
        self.tally.writes_superseded += u64::from(superseded);
        self.tally.writes_from_two_locks += u64::from(decided_from.len() > 1);
        let works: Vec<&Work> = decided_from.iter().map(|(_, work)| work).collect();
        match self.store.write(&data, &works) {
            Ok(()) => {
                self.tally.writes_admitted += 1;
                if superseded {
                    return Err(format!("{data:?} was written from what had changed: {decided_from:?}"));
                }
                data.iter().for_each(|datum| self.clients[client].has_written(datum, &self.store));
                data.iter().try_for_each(|datum| self.no_other_client_relies_on(datum, client, grant))
            }
            Err(stale) => {
                self.tally.writes_refused += 1;
                if holds_all {
                    return Err(format!("{decided_from:?} are held and {data:?} may not be written: {stale}"));
                }
                Ok(())
            }
        }
    }

    /// A client that holds a lock under which it has read this place must find it unchanged when it reads again.
    fn no_other_client_relies_on(&self, place: &Name, writer: usize, written_under: GrantId) -> Result<(), String> {
        for (client, other) in self.clients.iter().enumerate().filter(|(client, _)| *client != writer) {
            for (grant, work) in &other.works {
                let has_read = work.read.values().any(|found| found.contains_key(place));
                if has_read && self.holds(*grant, work) {
                    return Err(format!("client {client} holds {grant:?}, and {place} changed by {written_under:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether the client really holds what it believes to hold.
    fn holds(&self, grant: GrantId, work: &Work) -> bool {
        self.locks
            .grant_view(grant)
            .is_some_and(|view| view.record.token == work.token && view.record.held == Held::Locks(work.locks.clone()))
    }

    fn random_work(&mut self, client: usize) -> Option<(GrantId, Work)> {
        let works: Vec<_> = self.clients[client].works.iter().collect();
        if works.is_empty() {
            return None;
        }
        let (grant, work) = *self.random.pick(&works);
        Some((*grant, work.clone()))
    }

    /// Sends a request if the client is awake and its session lives. Otherwise only its number is used up.
    fn request(&mut self, client: usize, action: Action) {
        let client = &mut self.clients[client];
        client.last_number += 1;
        let (session, number) = (client.session, RequestNumber(client.last_number));
        if let (true, Some(epoch)) = (client.awake, self.epoch_of(session)) {
            self.apply(Operation::Request(Request { session, epoch, number, seen: Seen::default(), action }));
        }
    }

    fn apply(&mut self, operation: Operation) {
        self.locks.apply(self.now, Batch { operations: vec![operation], ..Batch::default() });
    }

    fn epoch_of(&self, session: SessionId) -> Option<Epoch> {
        self.locks.session(session).map(|view| view.record.epoch)
    }
}

/// Plays one history to its end, or to the first step that breaks a rule.
pub(crate) fn play(seed: u64, steps: usize, careless: Option<Careless>) -> Result<Tally, String> {
    let mut history = History::new(seed, careless);
    for step in 0..steps {
        history.step().map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
    }
    Ok(history.tally)
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).expect("the tests use valid names")
}

/// The data that a name stands for: first its own datum, then those below it.
pub(crate) fn within(place: &Name) -> Vec<Name> {
    let below = NAMES.iter().map(|text| name(text)).filter(|datum| datum.ancestors().any(|above| above == *place));
    std::iter::once(place.clone()).chain(below).collect()
}

/// The SplitMix64 generator: it has no weak seeds.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn mode(&mut self) -> LockMode {
        *self.pick(&[LockMode::Shared, LockMode::Update, LockMode::Exclusive, LockMode::Exclusive])
    }
}
