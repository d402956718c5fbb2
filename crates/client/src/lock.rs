//! Requests for locks: their settings, and the wait for a grant.
//!
//! [`ask`] also serves requests for permits. What a holder does with a grant is in `guard.rs`.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::time::Duration;

use fencepost_core::{
    Acquire, Action, Busy, GrantId, Lock, LockDelay, LockMode, Locks, Metadata, Name, Outcome, OwnerName, SessionId,
    Terms, Token, Ttl, Value, Wait,
};

use crate::client::{Client, millis};
use crate::error::{self, Error, Obstacle, Refused};
use crate::events::Acquiring;
use crate::guard::{Efficiency, Exclusive, Guard, Hold, Mode, Shared, Update};
use crate::job::OnceRequest;
use crate::observe::EXPLAIN_PATIENCE;
use crate::session::Home;
use fencepost_session::Tier;
use fencepost_session::client::{Answer, GrantKey};

/// How long an acquire waits by default.
pub(crate) const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// A request for a lock. Begin with [`crate::Client::lock`]. Nothing is sent before [`LockRequest::acquire`] or a similar method.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for until `acquire`, `try_acquire` or `run`"]
pub struct LockRequest<M> {
    pub(crate) home: Home,
    pub(crate) locks: Locks,
    owner: Option<OwnerName>,
    pub(crate) asking: Asking,
    /// How long [`LockRequest::run`] keeps the lock at least.
    pub(crate) at_least: Duration,
    mode: PhantomData<M>,
}

/// The settings of every request for a grant: how long to wait, and the terms of the grant.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) wait: Wait,
    /// Whether the program has said how long to wait.
    pub(crate) is_wait_chosen: bool,
    pub(crate) terms: Terms,
    /// The error of the first setting that is not valid. It is returned when the request is sent.
    pub(crate) problem: Option<Error>,
}

impl Default for Asking {
    fn default() -> Asking {
        let mut asking = Asking { wait: Wait::No, is_wait_chosen: false, terms: Terms::default(), problem: None };
        asking.wait(WAIT_DEFAULT);
        asking.is_wait_chosen = false;
        asking
    }
}

impl Asking {
    pub(crate) fn take<T>(&mut self, value: Result<T, impl Into<Error>>) -> Option<T> {
        value.map_err(|error| self.problem.get_or_insert(error.into())).ok()
    }

    pub(crate) fn wait(&mut self, wait: Duration) {
        if let Some(wait) = self.take(millis(wait)) {
            self.choose_wait(Wait::UpTo(wait));
        }
    }

    pub(crate) fn choose_wait(&mut self, wait: Wait) {
        (self.wait, self.is_wait_chosen) = (wait, true);
    }

    pub(crate) fn ttl(&mut self, ttl: Duration) {
        let ttl = millis(ttl).and_then(|ttl| Ok(Ttl::new(ttl.get())?));
        self.terms.ttl = self.take(ttl);
    }

    pub(crate) fn max_hold(&mut self, max_hold: Duration) {
        self.terms.max_hold = self.take(millis(max_hold));
    }

    pub(crate) fn lock_delay(&mut self, delay: Duration) {
        let delay = millis(delay).and_then(|delay| Ok(LockDelay::new(delay.get())?));
        self.terms.lock_delay = self.take(delay).unwrap_or_default();
    }

    pub(crate) fn metadata(&mut self, metadata: &[u8]) {
        self.terms.metadata = self.take(Metadata::new(metadata)).unwrap_or_default();
    }

    pub(crate) fn value(&mut self, value: &[u8]) {
        self.terms.value = self.take(Value::new(value));
    }
}

/// A grant.
pub(crate) struct Granted {
    pub(crate) session: SessionId,
    pub(crate) grant: GrantId,
    pub(crate) token: Token,
}

impl Granted {
    pub(crate) fn key(&self) -> GrantKey {
        GrantKey::new(self.session, self.grant)
    }
}

/// Asks for a grant and waits for the answer. If the shared session of the client has ended unnoticed, opens a new one and asks
/// again.
pub(crate) async fn ask(home: &Home, action: Action, wait: Wait) -> Result<Granted, Error> {
    let client = home.client();
    let limit = match wait {
        Wait::No => Some(client.call_timeout()),
        Wait::UpTo(wait) => Some(Duration::from_millis(wait.get()) + client.call_timeout()),
        Wait::Forever => None,
    };
    let mut acquiring = Acquiring::begin(client.shared());
    let granted = ask_until_answered(home, action, wait, limit, &mut acquiring).await;
    acquiring.ended(&granted);
    granted
}

async fn ask_until_answered(
    home: &Home,
    action: Action,
    wait: Wait,
    limit: Option<Duration>,
    acquiring: &mut Acquiring<'_>,
) -> Result<Granted, Error> {
    let client = home.client();
    let mut again = home.reopens_session();
    loop {
        let session = home.session()?;
        let (answer, obstacle) = answer_and_obstacle(client, session, &action, (wait, limit), acquiring).await;
        if let Answer::SessionEnded { queued: false, .. } = answer
            && std::mem::take(&mut again)
        {
            continue;
        }
        return match crate::error::decided(answer, || client.shared().failed()) {
            Err(Error::Refused(Refused::TimedOut { .. })) => Err(timed_out(client, names_of(&action), obstacle).await),
            Err(error) => Err(error),
            Ok(Outcome::Granted { grant, token, .. }) => Ok(Granted { session, grant, token }),
            Ok(Outcome::Completed { token, succeeded }) => Err(Refused::Completed { token, succeeded }.into()),
            Ok(other) => Err(Refused::Invalid(format!("an acquire was answered with {other:?}")).into()),
        };
    }
}

/// The names that a request for a grant asks for.
fn names_of(action: &Action) -> Vec<Name> {
    match action {
        Action::Acquire(acquire) => acquire.locks.iter().map(|lock| lock.name.clone()).collect(),
        Action::TakePermits(take) => vec![take.name.clone()],
        _ => Vec::new(),
    }
}

/// The error of a request that timed out: the names, and what is in the way. It asks the cluster, unless that was done before and found
/// something.
pub(crate) async fn timed_out(client: &Client, names: Vec<Name>, mut known: Option<Obstacle>) -> Error {
    let suspected = match &mut known {
        Some(Obstacle::Explained(explained)) => explained.what.suspected.take().map(Box::new),
        _ => None,
    };
    let obstacle = match (client.shared().tier, known) {
        (Tier::Efficiency, _) => Obstacle::NotTold("the efficiency tier"),
        (Tier::Correctness, Some(known)) if names.len() == 1 || !known.is_free() => known,
        (Tier::Correctness, _) => client.explain_first_in_the_way(&names).await,
    };
    Refused::TimedOut { names, obstacle, suspected }.into()
}

/// Asks for a grant. Shortly before the wait is over, checks whether this may be a deadlock. Not afterwards: two requests that wait
/// for each other equally long time out in the same log entry, and then neither of them waits any more.
async fn answer_and_obstacle(
    client: &Client,
    session: SessionId,
    action: &Action,
    (wait, limit): (Wait, Option<Duration>),
    acquiring: &mut Acquiring<'_>,
) -> (Answer, Option<Obstacle>) {
    let mut pending = pin!(client.shared().ask(session, action.clone(), limit));
    // If the lock is free, no timer is needed.
    if let Some(answer) = pending.as_mut().answer_or_queued().await {
        return (answer, None);
    }
    acquiring.queued();
    let (Wait::UpTo(wait), Action::Acquire(acquire), true) = (wait, action, client.shared().tier == Tier::Correctness)
    else {
        return (pending.await, None);
    };
    let wait = Duration::from_millis(wait.get());
    tokio::select! {
        biased;
        answer = &mut pending => return (answer, None),
        () = tokio::time::sleep(wait.saturating_sub(EXPLAIN_PATIENCE).max(wait / 2)) => {}
    }
    // A session that holds nothing cannot be part of a deadlock.
    let Some(first) = acquire.locks.first().filter(|_| client.shared().with(|state| state.machine.holds_any(session)))
    else {
        return (pending.await, None);
    };
    let mut explaining = pin!(client.explain_wait(&first.name, Some((session, acquire))));
    tokio::select! {
        biased;
        answer = &mut pending => {
            // A grant is returned at once. After a timeout, wait for the explanation, whose time is bounded.
            let timed_out = matches!(answer, Answer::Decided(Outcome::TimedOut));
            (answer, if timed_out { Some(explaining.await) } else { None })
        }
        obstacle = &mut explaining => (pending.await, Some(obstacle)),
    }
}

impl<M> LockRequest<M> {
    pub(crate) fn new<N: AsRef<str>>(home: Home, names: impl IntoIterator<Item = (N, LockMode)>) -> LockRequest<M> {
        let mut asking = Asking::default();
        let lock = |(name, mode): (N, LockMode)| Ok(Lock { name: error::name(name.as_ref())?, mode });
        let locks: Result<Locks, Error> = names.into_iter().map(lock).collect();
        let locks = asking.take(locks).unwrap_or_default();
        LockRequest { home, locks, owner: None, asking, at_least: Duration::ZERO, mode: PhantomData }
    }

    fn in_mode<T: Mode>(self) -> LockRequest<T> {
        let LockRequest { home, mut locks, owner, asking, at_least, .. } = self;
        locks.iter_mut().for_each(|lock| lock.mode = T::MODE);
        LockRequest { home, locks, owner, asking, at_least, mode: PhantomData }
    }

    /// The same request in the efficiency tier.
    fn in_efficiency(mut self) -> LockRequest<Efficiency> {
        let home = self.asking.take(self.home.efficiency()).unwrap_or(self.home);
        let LockRequest { locks, owner, asking, at_least, .. } = self;
        LockRequest { home, locks, owner, asking, at_least, mode: PhantomData }
    }

    /// How long to wait for the lock: 30 s by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.asking.wait(wait);
        self
    }

    /// Does not wait: if the lock is not free, the answer is [`Refused::Busy`].
    pub fn no_wait(mut self) -> Self {
        self.asking.choose_wait(Wait::No);
        self
    }

    /// Waits until it is granted, however long that takes.
    pub fn wait_forever(mut self) -> Self {
        self.asking.choose_wait(Wait::Forever);
        self
    }

    /// A TTL for this lock, at least 1 s. If it is shorter than the session's, the lock is free sooner after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.asking.ttl(ttl);
        self
    }

    /// Ends the lock this long after it was granted, even if the client is alive. Protects from work that hangs.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.asking.max_hold(max_hold);
        self
    }

    /// If the lock ends without a release, keeps the resource busy for this time: at most a minute, zero by default.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.asking.lock_delay(delay);
        self
    }

    /// The unit of work that holds the lock. The same owner may acquire the lock again, and deadlocks between owners are detected.
    pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
        self.owner = self.asking.take(OwnerName::new(owner.as_ref()));
        self
    }

    /// How long [`LockRequest::run`] keeps the lock at least, from its grant: it holds on after the work. This spaces the runs of
    /// programs whose clocks differ. It is no promise of the cluster: if this program dies, the lock ends with its lease. Work that must
    /// not be done twice needs a key: see [`LockRequest::once`].
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.at_least = at_least;
        self
    }

    /// Metadata, shown to people who ask who holds the lock.
    pub fn metadata(mut self, metadata: impl AsRef<[u8]>) -> Self {
        self.asking.metadata(metadata.as_ref());
        self
    }

    /// Notifies the holder when another client begins to wait: see [`Hold::contended`].
    pub fn hear_contended(mut self) -> Self {
        self.asking.terms.hear_contended = true;
        self
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`Refused::TimedOut`] if it was not granted in time. It says who holds the lock, for which it asks the cluster, for half a
    /// second at most. It contains the sessions that seem to wait for each other, if a deadlock may be the reason.
    /// [`Refused::Deadlock`] if this lock has an owner and waiting would close a cycle of owners.
    /// [`Error::Unknown`] if the outcome is not known.
    ///
    /// # Cancellation
    /// Dropping the future cancels the wait at the server, and gives the lock back if it was already granted.
    pub async fn acquire(mut self) -> Result<Guard<M>, Error> {
        if let Some(problem) = self.asking.problem.take() {
            return Err(problem);
        }
        let LockRequest { home, locks, owner, asking: Asking { wait, terms, .. }, .. } = self;
        let acquire = Acquire { locks: locks.clone(), owner, wait, terms };
        let granted = ask(&home, Action::Acquire(acquire), wait).await?;
        Ok(Guard::new(home, granted.key(), granted.token, locks))
    }

    /// Takes the lock if it is free; `None` if it is busy.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`], but a busy lock is not an error.
    ///
    /// # Cancellation
    /// As [`LockRequest::acquire`].
    pub async fn try_acquire(self) -> Result<Option<Guard<M>>, Error> {
        Ok(self.try_acquire_or_busy().await?.ok())
    }

    /// Takes the lock if it is free. Otherwise returns who or what is in the way.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    ///
    /// # Cancellation
    /// As [`LockRequest::acquire`].
    pub async fn try_acquire_or_busy(self) -> Result<Result<Guard<M>, Box<Busy>>, Error> {
        match self.no_wait().acquire().await {
            Ok(guard) => Ok(Ok(guard)),
            Err(Error::Refused(Refused::Busy(busy))) => Ok(Err(busy)),
            Err(error) => Err(error),
        }
    }

    /// Waits for the lock, runs the work, and gives the lock back. If the lock is lost, the work is stopped: its future is dropped.
    ///
    /// ```no_run
    /// # async fn example(client: fencepost::Client) -> Result<(), fencepost::Error> {
    /// let report = client.lock("nightly").run(|lock| async move { format!("made with token {}", lock.token()) }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]; [`Refused::Lost`] if the lock was lost before the work was done.
    ///
    /// # Cancellation
    /// The work is dropped, and the lock is given back in the background.
    pub async fn run<T, W: Future<Output = T>>(self, work: impl FnOnce(Hold<M>) -> W) -> Result<T, Error> {
        let at_least = self.at_least;
        let guard = self.acquire().await?;
        let granted_at = tokio::time::Instant::now();
        let done = {
            let work = pin!(work(guard.hold()));
            tokio::select! {
                biased;
                why = guard.lost() => Err(why),
                done = work => Ok(done),
            }
        };
        let done = done?;
        if !at_least.is_zero() {
            tokio::select! {
                biased;
                // The work was done under the lock.
                _ = guard.lost() => return Ok(done),
                () = tokio::time::sleep_until(granted_at + at_least) => {}
            }
        }
        match guard.release().await {
            // Lost while the last step of the work ran.
            Err(error) if error.lost().is_some() => Err(error),
            // Even if the release failed, the work was done under the lock.
            _ => Ok(done),
        }
    }
}

impl LockRequest<Exclusive> {
    /// Work that is done once under this key: the cluster remembers what is completed, and nothing is granted for it again.
    ///
    /// ```no_run
    /// # async fn bill(token: fencepost::FencingToken) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn example(client: fencepost::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let done = client.lock("billing").once("2026-11").run(|job| async move { bill(job.token()).await }).await?;
    /// println!("{}", String::from_utf8_lossy(&done.completion().result));
    /// # Ok(())
    /// # }
    /// ```
    pub fn once(self, key: impl AsRef<str>) -> OnceRequest {
        OnceRequest::new(self, key.as_ref())
    }

    /// A shared lock: several readers can hold it at the same time.
    pub fn shared(self) -> LockRequest<Shared> {
        self.in_mode()
    }

    /// An update lock: one client holds it beside readers, and can upgrade it to exclusive.
    pub fn update(self) -> LockRequest<Update> {
        self.in_mode()
    }

    /// A fast lock that exists only in the leader's memory: no log is written, and all such locks are forgotten when the leader
    /// changes. Then two clients may hold the lock at the same time, for up to an election timeout. Use it for work that may now and
    /// then be done twice. If the correctness of data depends on the lock, use the other tier, and its token.
    ///
    /// The two tiers have separate names. A lock of this tier has no token.
    ///
    /// ```no_run
    /// # async fn example(client: fencepost::Client) -> Result<(), fencepost::Error> {
    /// let lock = client.lock("thumbnails/42").efficiency().acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    // Rule: tier-efficiency
    pub fn efficiency(self) -> LockRequest<Efficiency> {
        self.in_efficiency()
    }
}

impl LockRequest<Shared> {
    /// As [`LockRequest::<Exclusive>::efficiency`], but several readers can hold it at the same time.
    pub fn efficiency(self) -> LockRequest<Efficiency> {
        self.in_efficiency()
    }
}
