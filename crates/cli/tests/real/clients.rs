//! The clients of a run: threads with one SDK client each. They take locks, write to the fenced store under them, and record every
//! request and answer.
//!
//! Each has its own runtime with one thread, so that a client that stands still is like a paused process: its keep-alives stop, too.
//! Polite clients stop when the lock is lost; sleepers wake up and write as if nothing had happened.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::{
    Client, Error, Exclusive, Failed, Guard, Hold as Held, LockMode, Mixed, NotConverted, Permit, Refused, Session,
    Shared, Update,
};

use super::history::{Answer, Ask, Attempt, History, Hold, Instant, LockOperation, Mode, Stall, Taken};
use super::store::Store;

/// The locks that all clients want. The sleepers want only the first two.
const RESOURCES: [&str; 4] = ["orders", "invoices", "stock", "wallet"];
/// The semaphore that all clients want, and how many permits it has.
const SEMAPHORE: (&str, u32) = ("licences", 3);

/// The TTL that a sleeper outlives.
const SLEEPERS_TTL: Duration = Duration::from_secs(2);

/// The shared record of what happened.
#[derive(Clone)]
pub(crate) struct Recorder {
    began: std::time::Instant,
    history: Arc<Mutex<History>>,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        let limits = [(SEMAPHORE.0.to_owned(), SEMAPHORE.1)].into();
        let history = History { limits, ..History::default() };
        Recorder { began: std::time::Instant::now(), history: Arc::new(Mutex::new(history)) }
    }

    pub(crate) fn now(&self) -> Instant {
        u64::try_from(self.began.elapsed().as_nanos()).expect("tests are short")
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut History) -> T) -> T {
        act(&mut self.history.lock().unwrap())
    }

    /// How long after an instant the first grant came. Counts requests from after the instant, and answers so late that a leader
    /// from before it cannot have given them.
    pub(crate) fn first_grant_after(&self, instant: Instant) -> Option<Duration> {
        let election = Duration::from_millis(500).as_nanos() as u64;
        self.with(|history| {
            let granted = history.asks.iter().filter(|ask| matches!(ask.answer, Answer::Granted { .. }));
            let after = granted.filter(|ask| ask.asked_at >= instant || ask.answered_at >= instant + election);
            after.map(|ask| Duration::from_nanos(ask.answered_at.saturating_sub(instant))).min()
        })
    }
}

/// All clients of a run.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    store: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Takes and releases locks, in every mode.
    Polite,
    /// Stands still while it holds a lock, for longer than its session's TTL, and then writes.
    Sleeper,
    /// The same with a lock that has its own TTL. Its session lives on.
    LeaseSleeper,
    /// Takes a lock that no other client wants, over and over, to see when the cluster grants again.
    Prober,
}

impl Clients {
    pub(crate) fn start(endpoints: &[String], store: &Path, recorder: &Recorder, seed: u64) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        // Creates the file before two clients try to.
        drop(Store::open(store));
        let manners =
            [Manner::Polite, Manner::Polite, Manner::Polite, Manner::Sleeper, Manner::LeaseSleeper, Manner::Prober];
        let mut threads = Vec::new();
        for (number, manner) in manners.into_iter().enumerate() {
            let worker = Worker {
                name: format!("c{}", number + 1),
                number,
                manner,
                endpoints: endpoints.to_vec(),
                stop: stop.clone(),
                recorder: recorder.clone(),
                store: Store::open(store),
                random: Random(seed * 1_000 + number as u64 + 1),
                old_tokens: Vec::new(),
            };
            threads.push(std::thread::spawn(move || worker.run()));
        }
        Clients { stop, threads, store: store.to_owned() }
    }

    /// Stops the clients gracefully. Returns the store's record.
    pub(crate) fn finish(mut self) -> Vec<Attempt> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a client does not panic");
        }
        Store::open(&self.store).attempts()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A stream of numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

struct Worker {
    name: String,
    number: usize,
    manner: Manner,
    endpoints: Vec<String>,
    stop: Arc<AtomicBool>,
    recorder: Recorder,
    store: Store,
    random: Random,
    /// Tokens of earlier locks, for late writes.
    old_tokens: Vec<(String, u64)>,
}

impl Worker {
    fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(self.work());
    }

    async fn work(mut self) {
        // The default settings.
        let builder = self.endpoints.iter().fold(Client::builder(), |builder, endpoint| builder.endpoint(endpoint));
        let client = builder.name(&self.name).connect_in_background().expect("valid addresses");
        // A sleeper gets a short TTL, because it must sleep for longer than that. The other clients get a long TTL: their sessions must
        // survive a fail-over, and a session with a TTL below 5 s may not.
        let ttl = if self.manner == Manner::Sleeper { SLEEPERS_TTL } else { Duration::from_secs(12) };
        let open = || client.session().ttl(ttl).open().expect("a valid TTL");
        let mut session = open();
        while !self.stop.load(Ordering::Relaxed) {
            if !session.is_alive() {
                session = open();
            }
            match self.manner {
                Manner::Prober => self.probe(&session).await,
                Manner::Sleeper | Manner::LeaseSleeper => self.sleep_on_it(&session).await,
                Manner::Polite => self.take_and_give_back(&session).await,
            }
            tokio::time::sleep(Duration::from_millis(2 + self.random.below(8))).await;
        }
        // The event log shows the outcome.
        let _ = session.close().await;
        let _ = client.close().await;
    }

    async fn probe(&mut self, session: &Session) {
        let name = format!("probe-{}", self.number);
        let lock = session.lock(&name).try_acquire();
        let asked_at = self.recorder.now();
        let granted = match lock.await {
            Ok(Some(guard)) => Ok(guard),
            Ok(None) => Err(Answer::Refused("busy".to_owned())),
            Err(error) => Err(answer(&error)),
        };
        if let Some(guard) = self.acquired(session, one(&name, Mode::Exclusive), asked_at, granted) {
            let hold = self.begin_hold(&guard, &name, Mode::Exclusive);
            self.give_back(guard, vec![hold]).await;
        }
    }

    async fn take_and_give_back(&mut self, session: &Session) {
        let name = self.a_resource();
        let wait = Duration::from_millis(300 + self.random.below(2_500));
        match self.random.below(16) {
            0..=2 => self.take_exclusive(session, name, wait, None).await,
            3 => self.take_exclusive(session, name, Duration::ZERO, None).await,
            // Renewed in time, so it does not expire here.
            4 => self.take_exclusive(session, name, wait, Some(Duration::from_secs(6))).await,
            5..=7 => self.take_shared(session, name, wait).await,
            8..=9 => {
                let asked_at = self.recorder.now();
                let granted = session.lock(name).update().wait(wait).acquire().await.map_err(|error| answer(&error));
                let Some(guard) = self.acquired(session, one(name, Mode::Update), asked_at, granted) else { return };
                let hold = self.begin_hold(&guard, name, Mode::Update);
                if self.random.below(4) == 0 {
                    let down = |guard: Guard<Update>| guard.downgrade();
                    if let Some((guard, hold)) = self.convert(guard, hold, Mode::Shared, down).await {
                        self.give_back(guard, vec![hold]).await;
                    }
                } else {
                    self.upgrade(guard, hold, name, |guard| guard.upgrade(wait)).await;
                }
            }
            10..=12 => self.take_several(session, wait).await,
            13..=14 => self.take_permits(session, wait).await,
            _ => self.write_late(),
        }
    }

    /// In one of four cases a resource that a sleeper may hold.
    fn a_resource(&mut self) -> &'static str {
        match self.random.below(4) {
            0 => RESOURCES[self.random.below(2) as usize],
            _ => RESOURCES[2 + self.random.below(2) as usize],
        }
    }

    async fn take_exclusive(&mut self, session: &Session, name: &str, wait: Duration, ttl: Option<Duration>) {
        let lock = session.lock(name);
        let lock = ttl.into_iter().fold(lock, |lock, ttl| lock.ttl(ttl));
        let asked_at = self.recorder.now();
        let granted = match wait {
            Duration::ZERO => match lock.try_acquire().await {
                Ok(Some(guard)) => Ok(guard),
                Ok(None) => Err(Answer::Refused("busy".to_owned())),
                Err(error) => Err(answer(&error)),
            },
            wait => lock.wait(wait).acquire().await.map_err(|error| answer(&error)),
        };
        if let Some(guard) = self.acquired(session, one(name, Mode::Exclusive), asked_at, granted) {
            self.use_exclusive(guard, name).await;
        }
    }

    /// Reads. Then upgrades, or releases and acquires again to write, or only releases.
    async fn take_shared(&mut self, session: &Session, name: &str, wait: Duration) {
        let asked_at = self.recorder.now();
        let granted = session.lock(name).shared().wait(wait).acquire().await.map_err(|error| answer(&error));
        let Some(guard) = self.acquired(session, one(name, Mode::Shared), asked_at, granted) else { return };
        let mut hold = self.begin_hold(&guard, name, Mode::Shared);
        self.keep_a_while(&guard, &mut hold).await;
        match self.random.below(4) {
            0 => self.upgrade(guard, hold, name, |guard| guard.upgrade(wait)).await,
            1 => {
                self.give_back(guard, vec![hold]).await;
                self.take_exclusive(session, name, wait, None).await;
            }
            _ => self.give_back(guard, vec![hold]).await,
        }
    }

    /// Two or three names at once, not all in the same mode.
    async fn take_several(&mut self, session: &Session, wait: Duration) {
        let first = self.random.below(4) as usize;
        let count = 2 + self.random.below(2) as usize;
        let chosen = (0..count).map(|step| RESOURCES[(first + step) % RESOURCES.len()]);
        let mut taken: Taken = Vec::new();
        for name in chosen {
            let mode = if self.random.below(3) == 0 { Mode::Shared } else { Mode::Exclusive };
            taken.push((name.to_owned(), mode));
        }
        taken.sort();
        let mode = |mode| if mode == Mode::Shared { LockMode::Shared } else { LockMode::Exclusive };
        let locks = session.lock_each(taken.iter().map(|(name, it)| (name, mode(*it))));
        let asked_at = self.recorder.now();
        let granted = locks.wait(wait).acquire().await.map_err(|error| answer(&error));
        let Some(guard) = self.acquired(session, taken.clone(), asked_at, granted) else { return };
        let first = self.begin_hold(&guard, "", Mode::Shared);
        let as_hold = |(name, mode): &(String, Mode)| Hold { resource: name.clone(), mode: *mode, ..first.clone() };
        let mut holds: Vec<Hold> = taken.iter().map(as_hold).collect();
        for hold in holds.iter_mut().filter(|hold| hold.mode == Mode::Exclusive) {
            self.write_under(&guard, hold).await;
        }
        self.give_back(guard, holds).await;
    }

    async fn take_permits(&mut self, session: &Session, wait: Duration) {
        let (name, limit) = SEMAPHORE;
        let permits = 1 + self.random.below(2) as u32;
        let asked_at = self.recorder.now();
        let granted = session.semaphore(name).limit(limit).permits(permits).wait(wait).acquire().await;
        let granted = granted.map_err(|error| answer(&error));
        let mode = Mode::Permits(permits);
        let Some(guard) = self.acquired(session, one(name, mode), asked_at, granted) else { return };
        let mut hold = self.begin_hold(&guard, name, mode);
        self.keep_a_while(&guard, &mut hold).await;
        self.give_back(guard, vec![hold]).await;
    }

    /// Writes with an old token, whose lock is no longer held.
    fn write_late(&mut self) {
        if self.old_tokens.is_empty() {
            return;
        }
        let chosen = self.random.below(self.old_tokens.len() as u64) as usize;
        let (resource, token) = self.old_tokens.swap_remove(chosen);
        self.store.write_late(&resource, token);
    }

    /// Upgrades to exclusive, unless other holders prevent it, and uses the lock.
    async fn upgrade<M, F>(&mut self, guard: Guard<M>, mut hold: Hold, name: &str, up: impl FnOnce(Guard<M>) -> F)
    where
        F: Future<Output = Result<Guard<Exclusive>, NotConverted<M>>>,
        Held<M>: Tokened,
        Held<Exclusive>: Tokened,
    {
        self.keep_a_while(&guard, &mut hold).await;
        if let Some((guard, _)) = self.convert(guard, hold, Mode::Exclusive, up).await {
            self.use_exclusive(guard, name).await;
        }
    }

    /// Asks for another mode. Ends the recorded hold, and begins a new one in the new mode. If the mode is refused, the lock is
    /// released.
    async fn convert<M, T, F>(
        &mut self,
        guard: Guard<M>,
        mut hold: Hold,
        mode: Mode,
        convert: impl FnOnce(Guard<M>) -> F,
    ) -> Option<(Guard<T>, Hold)>
    where
        F: Future<Output = Result<Guard<T>, NotConverted<M>>>,
        Held<M>: Tokened,
        Held<T>: Tokened,
    {
        let (session, grant) = (guard.session().0, guard.grant().0);
        let asked_at = self.recorder.now();
        let converted = convert(guard).await;
        // Until the answer, an upgraded lock is held in its old mode. A downgraded lock may already be weaker.
        hold.gave_up_at = Some(if mode > hold.mode { self.recorder.now() } else { asked_at });
        let (answer, left) = match &converted {
            Ok(guard) => (Answer::Granted { grant, token: guard.number() }, true),
            Err(not) => (answer(&not.error), not.guard.is_some()),
        };
        // The outcome is unknown: nothing is certain from the request on.
        if !left {
            hold.gave_up_at = Some(asked_at);
        }
        let (resource, before) = (hold.resource.clone(), hold.mode);
        self.recorder.with(|history| history.holds.push(hold));
        self.asked(session, LockOperation::Convert { grant, mode }, asked_at, answer);
        match converted {
            Ok(guard) => {
                let hold = self.begin_hold(&guard, &resource, mode);
                Some((guard, hold))
            }
            Err(not) => {
                if let Some(guard) = not.guard {
                    let hold = self.begin_hold(&guard, &resource, before);
                    self.give_back(guard, vec![hold]).await;
                }
                None
            }
        }
    }

    /// Claims, works and writes. Then releases, or downgrades and stays for a while.
    async fn use_exclusive(&mut self, guard: Guard<Exclusive>, name: &str) {
        let mut hold = self.begin_hold(&guard, name, Mode::Exclusive);
        self.write_under(&guard, &mut hold).await;
        match self.random.below(6) {
            0 => {
                let down = |guard: Guard<Exclusive>| guard.downgrade();
                if let Some((guard, mut hold)) = self.convert(guard, hold, Mode::Shared, down).await {
                    self.keep_a_while(&guard, &mut hold).await;
                    self.give_back(guard, vec![hold]).await;
                }
            }
            1 => {
                let down = |guard: Guard<Exclusive>| guard.downgrade_to_update();
                if let Some((guard, mut hold)) = self.convert(guard, hold, Mode::Update, down).await {
                    self.keep_a_while(&guard, &mut hold).await;
                    self.give_back(guard, vec![hold]).await;
                }
            }
            _ => self.give_back(guard, vec![hold]).await,
        }
    }

    /// Writes once or twice, as long as the SDK says that the lock is held.
    async fn write_under<M>(&mut self, guard: &Held<M>, hold: &mut Hold) {
        let (name, token) = (hold.resource.clone(), hold.token);
        if guard.is_held()
            && let Some(read) = self.store.claim(&name, token)
        {
            self.keep_a_while(guard, hold).await;
            for value in 1..=1 + self.random.below(2) as i64 {
                if !guard.is_held() || !self.store.write(&name, token, read + value) {
                    break;
                }
            }
        }
        self.old_tokens.push((name, token));
        if self.old_tokens.len() > 8 {
            self.old_tokens.remove(0);
        }
    }

    /// Acts like a program that is paused in the middle of its work, and does not notice.
    async fn sleep_on_it(&mut self, session: &Session) {
        let name = RESOURCES[self.number % 2];
        let asked_at = self.recorder.now();
        let wait = Duration::from_secs(5);
        let lock = session.lock(name).wait(wait);
        let lock = if self.manner == Manner::LeaseSleeper { lock.ttl(SLEEPERS_TTL) } else { lock };
        let granted = lock.acquire().await.map_err(|error| answer(&error));
        let Some(guard) = self.acquired(session, one(name, Mode::Exclusive), asked_at, granted) else { return };
        let token = guard.token().get();
        let mut hold = self.begin_hold(&guard, name, Mode::Exclusive);
        if let Some(read) = self.store.claim(name, token) {
            self.look(&guard, &mut hold);
            let from = self.recorder.now();
            // Not the runtime's sleep: this one stops the whole client.
            std::thread::sleep(Duration::from_millis(2_800 + self.random.below(1_200)));
            // It does not check whether it still holds the lock. This is what fencing is for.
            self.store.write(name, token, read + 1);
            let stall = Stall { session: guard.session().0, from, until: self.recorder.now() };
            self.recorder.with(|history| history.stalls.push(stall));
        }
        self.give_back(guard, vec![hold]).await;
        // Leaves the lock to other clients for a while.
        let pause = Duration::from_millis(500 + self.random.below(1_500));
        tokio::time::sleep(pause).await;
    }

    async fn keep_a_while<M>(&mut self, guard: &Held<M>, hold: &mut Hold) {
        tokio::time::sleep(Duration::from_millis(self.random.below(15))).await;
        self.look(guard, hold);
    }

    /// Records how long the SDK says that the lock is certainly held.
    fn look<M>(&self, guard: &Held<M>, hold: &mut Hold) {
        // First the time, then the remaining time: the sum is never later than what the SDK promised.
        let now = self.recorder.now();
        let remaining = u64::try_from(guard.remaining().as_nanos()).unwrap_or(u64::MAX / 2);
        if remaining > 0 {
            hold.believed_until = hold.believed_until.max(now + remaining);
        }
    }

    fn begin_hold<M>(&self, guard: &Held<M>, resource: &str, mode: Mode) -> Hold
    where
        Held<M>: Tokened,
    {
        let now = self.recorder.now();
        let mut hold = Hold {
            client: self.name.clone(),
            session: guard.session().0,
            resource: resource.to_owned(),
            mode,
            grant: guard.grant().0,
            token: guard.number(),
            from: now,
            believed_until: now,
            gave_up_at: None,
        };
        self.look(guard, &mut hold);
        hold
    }

    /// Releases a lock, and records its holds.
    async fn give_back<M>(&mut self, guard: Guard<M>, mut holds: Vec<Hold>) {
        holds.iter_mut().for_each(|hold| self.look(&guard, hold));
        let (session, grant) = (guard.session().0, guard.grant().0);
        let asked_at = self.recorder.now();
        holds.iter_mut().for_each(|hold| hold.gave_up_at = Some(asked_at));
        self.recorder.with(|history| history.holds.extend(holds));
        let answer = match guard.release().await {
            Ok(_) => Answer::Released,
            Err(error) => answer(&error),
        };
        self.asked(session, LockOperation::Release { grant }, asked_at, answer);
    }

    fn acquired<M>(
        &self,
        session: &Session,
        taken: Taken,
        asked_at: Instant,
        granted: Result<Guard<M>, Answer>,
    ) -> Option<Guard<M>>
    where
        Held<M>: Tokened,
    {
        let (answer, guard) = match granted {
            Ok(guard) => (Answer::Granted { grant: guard.grant().0, token: guard.number() }, Some(guard)),
            Err(answer) => (answer, None),
        };
        self.asked(session.id().0, LockOperation::Acquire(taken), asked_at, answer);
        guard
    }

    fn asked(&self, session: u128, what: LockOperation, asked_at: Instant, answer: Answer) {
        let (client, answered_at) = (self.name.clone(), self.recorder.now());
        let ask = Ask { client, session, what, asked_at, answered_at, answer };
        self.recorder.with(|history| history.asks.push(ask));
    }
}

fn one(name: &str, mode: Mode) -> Taken {
    vec![(name.to_owned(), mode)]
}

/// The number of a guard's token, for every kind of guard.
trait Tokened {
    fn number(&self) -> u64;
}

impl Tokened for Held<Exclusive> {
    fn number(&self) -> u64 {
        self.token().get()
    }
}
impl Tokened for Held<Shared> {
    fn number(&self) -> u64 {
        self.token().get()
    }
}
impl Tokened for Held<Update> {
    fn number(&self) -> u64 {
        self.token().get()
    }
}
impl Tokened for Held<Mixed> {
    fn number(&self) -> u64 {
        self.read_token().get()
    }
}
/// Permits have no token in the API. In the log the token equals the grant's id, except after an upgrade.
impl Tokened for Held<Permit> {
    fn number(&self) -> u64 {
        self.grant().0
    }
}

fn answer(error: &Error) -> Answer {
    match error {
        Error::Failed(Failed::GrantedTooLate) => Answer::TooLate,
        // The lock may have been granted before the session ended, and ended with it.
        Error::Refused(Refused::SessionEnded(_)) => Answer::TooLate,
        Error::Refused(refused) => Answer::Refused(refused.to_string()),
        Error::Failed(failed) => Answer::Failed(failed.to_string()),
        unknown => Answer::Unknown(unknown.to_string()),
    }
}
