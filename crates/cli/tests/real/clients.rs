//! Those who use the cluster: threads with an SDK client each, that take locks, write to the fenced store under them, and write
//! down what they asked and were told.
//!
//! Each has a runtime of its own with one thread, so that a client that stands still does so as a paused process would: with its
//! keep-alives. The polite ones stop when the lock is lost; the sleepers wake up and write as if nothing had happened.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::{Client, Error, Exclusive, Failed, Guard, Hold as Held, Refused, Session, Shared, Update};

use super::history::{Answer, Ask, Asked, Attempt, History, Hold, Instant, Mode, Stall};
use super::store::Store;

/// The locks that everyone wants. The sleepers want the first two only.
const RESOURCES: [&str; 4] = ["orders", "invoices", "stock", "wallet"];

/// Where everyone writes down what happened.
#[derive(Clone)]
pub(crate) struct Recorder {
    began: std::time::Instant,
    history: Arc<Mutex<History>>,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder { began: std::time::Instant::now(), history: Arc::default() }
    }

    pub(crate) fn now(&self) -> Instant {
        u64::try_from(self.began.elapsed().as_nanos()).expect("tests are short")
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut History) -> T) -> T {
        act(&mut self.history.lock().unwrap())
    }

    /// The first grant that was asked for after an instant, or that came so long after it that nobody from before can have
    /// given it.
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
    /// Takes and gives back, in every mode.
    Polite,
    /// Stands still while it holds a lock, for longer than its session lives, and then writes.
    Sleeper,
    /// Takes a lock that nobody else wants, again and again: to see when the cluster grants again.
    Prober,
}

impl Clients {
    pub(crate) fn start(endpoints: &[String], store: &Path, recorder: &Recorder, seed: u64) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        // The file is made before two want to make it.
        drop(Store::open(store));
        let manners =
            [Manner::Polite, Manner::Polite, Manner::Polite, Manner::Sleeper, Manner::Sleeper, Manner::Prober];
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

    /// Lets everyone end in good order. Returns what the store has written down.
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
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
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
    /// What it held before, to come with too late.
    old_tokens: Vec<(String, u64)>,
}

impl Worker {
    fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(self.work());
    }

    async fn work(mut self) {
        // The usual settings: what a user gets who changes nothing.
        let builder = self.endpoints.iter().fold(Client::builder(), |builder, endpoint| builder.endpoint(endpoint));
        let client = builder.name(&self.name).connect_in_background().expect("valid addresses");
        // Short, so that a sleeper outlives it; but a TTL below 5 s may not survive a fail-over.
        let ttl = Duration::from_secs(if self.manner == Manner::Sleeper { 2 } else { 12 });
        let open = || client.session().ttl(ttl).open().expect("a valid TTL");
        let mut session = open();
        while !self.stop.load(Ordering::Relaxed) {
            if !session.is_alive() {
                session = open();
            }
            match self.manner {
                Manner::Prober => self.probe(&session).await,
                Manner::Sleeper => self.sleep_on_it(&session).await,
                Manner::Polite => self.take_and_give_back(&session).await,
            }
            tokio::time::sleep(Duration::from_millis(2 + self.random.below(8))).await;
        }
        // Whatever comes of it is in the event log.
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
        if let Some(guard) = self.acquired(session, &name, Mode::Exclusive, asked_at, granted) {
            let hold = self.begin_hold(&guard, &name, Mode::Exclusive, guard.token().get());
            self.give_back(guard, hold).await;
        }
    }

    async fn take_and_give_back(&mut self, session: &Session) {
        // Now and then one that a sleeper may sit on.
        let name = match self.random.below(4) {
            0 => RESOURCES[self.random.below(2) as usize],
            _ => RESOURCES[2 + self.random.below(2) as usize],
        };
        let wait = Duration::from_millis(300 + self.random.below(2_500));
        let asked_at = self.recorder.now();
        match self.random.below(10) {
            0..=3 => {
                let granted = session.lock(name).wait(wait).acquire().await.map_err(|error| answer(&error));
                if let Some(guard) = self.acquired(session, name, Mode::Exclusive, asked_at, granted) {
                    self.use_exclusive(guard, name).await;
                }
            }
            4..=5 => {
                let granted = match session.lock(name).try_acquire().await {
                    Ok(Some(guard)) => Ok(guard),
                    Ok(None) => Err(Answer::Refused("busy".to_owned())),
                    Err(error) => Err(answer(&error)),
                };
                if let Some(guard) = self.acquired(session, name, Mode::Exclusive, asked_at, granted) {
                    self.use_exclusive(guard, name).await;
                }
            }
            6..=7 => {
                let granted = session.lock(name).shared().wait(wait).acquire().await.map_err(|error| answer(&error));
                if let Some(guard) = self.acquired::<Shared>(session, name, Mode::Shared, asked_at, granted) {
                    let mut hold = self.begin_hold(&guard, name, Mode::Shared, guard.token().get());
                    self.keep_a_while(&guard, &mut hold).await;
                    self.give_back(guard, hold).await;
                }
            }
            8 => {
                let granted = session.lock(name).update().wait(wait).acquire().await.map_err(|error| answer(&error));
                if let Some(guard) = self.acquired::<Update>(session, name, Mode::Update, asked_at, granted) {
                    self.upgrade(session, guard, name, wait).await;
                }
            }
            _ => self.write_late(),
        }
    }

    /// With a token of long ago: nobody holds that lock any more.
    fn write_late(&mut self) {
        if self.old_tokens.is_empty() {
            return;
        }
        let chosen = self.random.below(self.old_tokens.len() as u64) as usize;
        let (resource, token) = self.old_tokens.swap_remove(chosen);
        self.store.write_late(&resource, token);
    }

    async fn upgrade(&mut self, session: &Session, guard: Guard<Update>, name: &str, wait: Duration) {
        let mut hold = self.begin_hold(&guard, name, Mode::Update, guard.token().get());
        self.keep_a_while(&guard, &mut hold).await;
        let asked_at = self.recorder.now();
        let upgraded = guard.upgrade(wait).await;
        let (granted, guard) = match upgraded {
            Ok(guard) => (Answer::Granted { grant: guard.grant().0, token: guard.token().get() }, Ok(guard)),
            Err(not) => (answer(&not.error), Err(not.guard)),
        };
        self.asked(session, name, Asked::Upgrade, asked_at, granted);
        match guard {
            Ok(guard) => {
                // What it held for reading ends here, and begins anew for writing.
                hold.gave_up_at = Some(self.recorder.now());
                self.recorder.with(|history| history.holds.push(hold));
                self.use_exclusive(guard, name).await;
            }
            Err(Some(guard)) => self.give_back(guard, hold).await,
            Err(None) => {
                hold.gave_up_at = Some(asked_at);
                self.recorder.with(|history| history.holds.push(hold));
            }
        }
    }

    /// Claims, works, and writes; as often as the lock says that it is still held.
    async fn use_exclusive(&mut self, guard: Guard<Exclusive>, name: &str) {
        let token = guard.token().get();
        let mut hold = self.begin_hold(&guard, name, Mode::Exclusive, token);
        if guard.is_held()
            && let Some(read) = self.store.claim(name, token)
        {
            self.keep_a_while(&guard, &mut hold).await;
            for value in 1..=1 + self.random.below(2) as i64 {
                if !guard.is_held() || !self.store.write(name, token, read + value) {
                    break;
                }
            }
        }
        self.old_tokens.push((name.to_owned(), token));
        if self.old_tokens.len() > 8 {
            self.old_tokens.remove(0);
        }
        self.give_back(guard, hold).await;
    }

    /// The program is paused in the middle of its work, and knows nothing of it when it goes on.
    async fn sleep_on_it(&mut self, session: &Session) {
        let name = RESOURCES[self.number % 2];
        let asked_at = self.recorder.now();
        let wait = Duration::from_secs(5);
        let granted = session.lock(name).wait(wait).acquire().await.map_err(|error| answer(&error));
        let Some(guard) = self.acquired(session, name, Mode::Exclusive, asked_at, granted) else { return };
        let token = guard.token().get();
        let mut hold = self.begin_hold(&guard, name, Mode::Exclusive, token);
        if let Some(read) = self.store.claim(name, token) {
            self.look(&guard, &mut hold);
            let from = self.recorder.now();
            // Not the runtime's sleep: this one keeps the whole client from running.
            std::thread::sleep(Duration::from_millis(2_800 + self.random.below(1_200)));
            // It does not look whether it still holds the lock. This is what fencing is for.
            self.store.write(name, token, read + 1);
            let stall = Stall { session: guard.session().0, from, until: self.recorder.now() };
            self.recorder.with(|history| history.stalls.push(stall));
        }
        self.give_back(guard, hold).await;
        // Others want it, too.
        let pause = Duration::from_millis(500 + self.random.below(1_500));
        tokio::time::sleep(pause).await;
    }

    async fn keep_a_while<M>(&mut self, guard: &Held<M>, hold: &mut Hold) {
        tokio::time::sleep(Duration::from_millis(self.random.below(15))).await;
        self.look(guard, hold);
    }

    /// Writes down for how long the SDK says that the lock is certainly held.
    fn look<M>(&self, guard: &Held<M>, hold: &mut Hold) {
        // First the time, then the rest: the sum is never later than what was promised.
        let now = self.recorder.now();
        let remaining = u64::try_from(guard.remaining().as_nanos()).unwrap_or(u64::MAX / 2);
        if remaining > 0 {
            hold.believed_until = hold.believed_until.max(now + remaining);
        }
    }

    fn begin_hold<M>(&self, guard: &Held<M>, resource: &str, mode: Mode, token: u64) -> Hold {
        let now = self.recorder.now();
        let mut hold = Hold {
            client: self.name.clone(),
            session: guard.session().0,
            resource: resource.to_owned(),
            mode,
            grant: guard.grant().0,
            token,
            from: now,
            believed_until: now,
            gave_up_at: None,
        };
        self.look(guard, &mut hold);
        hold
    }

    async fn give_back<M>(&mut self, guard: Guard<M>, mut hold: Hold) {
        self.look(&guard, &mut hold);
        let (session, grant) = (guard.session().0, guard.grant().0);
        let asked_at = self.recorder.now();
        hold.gave_up_at = Some(asked_at);
        let resource = hold.resource.clone();
        self.recorder.with(|history| history.holds.push(hold));
        let answer = match guard.release().await {
            Ok(_) => Answer::Released,
            Err(error) => answer(&error),
        };
        let (client, answered_at) = (self.name.clone(), self.recorder.now());
        let what = Asked::Release { grant };
        let ask = Ask { client, session, resource, what, asked_at, answered_at, answer };
        self.recorder.with(|history| history.asks.push(ask));
    }

    fn acquired<M>(
        &self,
        session: &Session,
        resource: &str,
        mode: Mode,
        asked_at: Instant,
        granted: Result<Guard<M>, Answer>,
    ) -> Option<Guard<M>>
    where
        Guard<M>: Tokened,
    {
        let (answer, guard) = match granted {
            Ok(guard) => (Answer::Granted { grant: guard.grant().0, token: guard.number() }, Some(guard)),
            Err(answer) => (answer, None),
        };
        self.asked(session, resource, Asked::Acquire(mode), asked_at, answer);
        guard
    }

    fn asked(&self, session: &Session, resource: &str, what: Asked, asked_at: Instant, answer: Answer) {
        let (client, session, resource) = (self.name.clone(), session.id().0, resource.to_owned());
        let ask = Ask { client, session, resource, what, asked_at, answered_at: self.recorder.now(), answer };
        self.recorder.with(|history| history.asks.push(ask));
    }
}

/// The number of a guard's token, whatever it is good for.
trait Tokened {
    fn number(&self) -> u64;
}

impl Tokened for Guard<Exclusive> {
    fn number(&self) -> u64 {
        self.token().get()
    }
}
impl Tokened for Guard<Shared> {
    fn number(&self) -> u64 {
        self.token().get()
    }
}
impl Tokened for Guard<Update> {
    fn number(&self) -> u64 {
        self.token().get()
    }
}

fn answer(error: &Error) -> Answer {
    match error {
        Error::Failed(Failed::GrantedTooLate) => Answer::TooLate,
        // It may have been granted before the session ended; then it ended with it.
        Error::Refused(Refused::SessionEnded(_)) => Answer::TooLate,
        Error::Refused(refused) => Answer::Refused(refused.to_string()),
        Error::Failed(failed) => Answer::Failed(failed.to_string()),
        unknown => Answer::Unknown(unknown.to_string()),
    }
}
