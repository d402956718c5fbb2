//! Asking for a lock.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::time::Duration;

use fencepost_core::{
    Acquire, Action, Busy, Cycle, GrantId, Lock, LockDelay, LockMode, Locks, Metadata, Outcome, OwnerName, SessionId,
    Terms, Token, Ttl, Value, Wait,
};

use crate::client::{Client, millis};
use crate::error::{self, Error, Refused};
use crate::guard::{Efficiency, Exclusive, Guard, Hold, Mode, Shared, Update};
use crate::observe::SUSPECT_PATIENCE;
use crate::session::Home;
use fencepost_session::Tier;
use fencepost_session::client::{Answer, GrantKey};

/// How long an acquire waits if nobody says.
pub(crate) const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// A lock to be asked for. Begin with [`crate::Client::lock`]; nothing is sent before [`LockRequest::acquire`] or one of its
/// siblings.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for until `acquire`, `try_acquire` or `run`"]
pub struct LockRequest<M> {
    pub(crate) home: Home,
    locks: Locks,
    owner: Option<OwnerName>,
    pub(crate) asking: Asking,
    mode: PhantomData<M>,
}

/// What every request for a grant has: how long to wait, and on which terms.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) wait: Wait,
    pub(crate) terms: Terms,
    /// The first thing that was said and is not valid. It is told when the lock is asked for.
    pub(crate) problem: Option<Error>,
}

impl Default for Asking {
    fn default() -> Asking {
        let mut asking = Asking { wait: Wait::No, terms: Terms::default(), problem: None };
        asking.wait(WAIT_DEFAULT);
        asking
    }
}

impl Asking {
    pub(crate) fn take<T>(&mut self, value: Result<T, impl Into<Error>>) -> Option<T> {
        value.map_err(|error| self.problem.get_or_insert(error.into())).ok()
    }

    pub(crate) fn wait(&mut self, wait: Duration) {
        if let Some(wait) = self.take(millis(wait)) {
            self.wait = Wait::UpTo(wait);
        }
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

/// What was granted.
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

/// Asks for a grant and waits for the answer. If the session that a client's clones share had ended unnoticed, a new one is opened.
pub(crate) async fn ask(home: &Home, action: Action, wait: Wait) -> Result<Granted, Error> {
    let client = home.client();
    let limit = match wait {
        Wait::No => Some(client.call_timeout()),
        Wait::UpTo(wait) => Some(Duration::from_millis(wait.get()) + client.call_timeout()),
        Wait::Forever => None,
    };
    let mut again = home.opens_anew();
    loop {
        let session = home.session()?;
        let (answer, suspected) = answer_and_suspicion(client, session, &action, wait, limit).await;
        if let Answer::SessionEnded { queued: false, .. } = answer
            && std::mem::take(&mut again)
        {
            continue;
        }
        return match crate::error::decided(answer, || client.shared().failed()) {
            Err(Error::Refused(Refused::TimedOut { .. })) => Err(Refused::TimedOut { suspected }.into()),
            Err(error) => Err(error),
            Ok(Outcome::Granted { grant, token, .. }) => Ok(Granted { session, grant, token }),
            Ok(other) => Err(Refused::Invalid(format!("an acquire was answered with {other:?}")).into()),
        };
    }
}

/// Asks, and shortly before the wait is over looks whether it may be a deadlock. Not afterwards: two that wait for each other equally
/// long time out in the same entry, and then neither waits any more.
async fn answer_and_suspicion(
    client: &Client,
    session: SessionId,
    action: &Action,
    wait: Wait,
    limit: Option<Duration>,
) -> (Answer, Option<Box<Cycle>>) {
    let mut asked = pin!(client.shared().ask(session, action.clone(), limit));
    let (Wait::UpTo(wait), Action::Acquire(acquire), true) = (wait, action, client.shared().tier == Tier::Correctness)
    else {
        return (asked.await, None);
    };
    // A lock that is free costs no timer.
    if let Some(answer) = asked.as_mut().answer_or_queued().await {
        return (answer, None);
    }
    let wait = Duration::from_millis(wait.get());
    tokio::select! {
        biased;
        answer = &mut asked => return (answer, None),
        () = tokio::time::sleep(wait.saturating_sub(SUSPECT_PATIENCE).max(wait / 2)) => {}
    }
    // A session that holds nothing is in the way of no other.
    if !client.shared().with(|state| state.machine.holds_any(session)) {
        return (asked.await, None);
    }
    let mut suspicion = pin!(client.suspect(session, acquire));
    tokio::select! {
        biased;
        answer = &mut asked => {
            // A grant is returned at once. A time-out waits for the look, which is bounded.
            let timed_out = matches!(answer, Answer::Decided(Outcome::TimedOut));
            (answer, if timed_out { suspicion.await } else { None })
        }
        suspected = &mut suspicion => (asked.await, suspected),
    }
}

impl<M> LockRequest<M> {
    pub(crate) fn new<N: AsRef<str>>(home: Home, names: impl IntoIterator<Item = (N, LockMode)>) -> LockRequest<M> {
        let mut asking = Asking::default();
        let lock = |(name, mode): (N, LockMode)| Ok(Lock { name: error::name(name.as_ref())?, mode });
        let locks: Result<Locks, Error> = names.into_iter().map(lock).collect();
        let locks = asking.take(locks).unwrap_or_default();
        LockRequest { home, locks, owner: None, asking, mode: PhantomData }
    }

    fn in_mode<T: Mode>(self) -> LockRequest<T> {
        let LockRequest { home, mut locks, owner, asking, .. } = self;
        locks.iter_mut().for_each(|lock| lock.mode = T::MODE);
        LockRequest { home, locks, owner, asking, mode: PhantomData }
    }

    /// The same request to the other tier.
    fn in_efficiency(mut self) -> LockRequest<Efficiency> {
        let home = self.asking.take(self.home.efficiency()).unwrap_or(self.home);
        let LockRequest { locks, owner, asking, .. } = self;
        LockRequest { home, locks, owner, asking, mode: PhantomData }
    }

    /// How long to wait for others: 30 s by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.asking.wait(wait);
        self
    }

    /// Does not wait: if somebody is in the way, the answer is [`Refused::Busy`].
    pub fn no_wait(mut self) -> Self {
        self.asking.wait = Wait::No;
        self
    }

    /// Waits until it is granted, however long that takes.
    pub fn wait_forever(mut self) -> Self {
        self.asking.wait = Wait::Forever;
        self
    }

    /// A time to live of its own, at least 1 s: shorter than the session's, so that this lock is free sooner after a crash.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.asking.ttl(ttl);
        self
    }

    /// Ends the lock so long after it was granted, however alive the client is: the answer to work that hangs.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.asking.max_hold(max_hold);
        self
    }

    /// Keeps the resource busy for so long after the lock ends against its holder's will: at most a minute, none by default.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.asking.lock_delay(delay);
        self
    }

    /// The unit of work that holds the lock. The same owner may enter it again, and deadlocks between owners are found.
    pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
        self.owner = self.asking.take(OwnerName::new(owner.as_ref()));
        self
    }

    /// For people who ask who holds the lock.
    pub fn metadata(mut self, metadata: impl AsRef<[u8]>) -> Self {
        self.asking.metadata(metadata.as_ref());
        self
    }

    /// Lets the holder hear when somebody begins to wait: see [`Hold::contended`].
    pub fn hear_contended(mut self) -> Self {
        self.asking.terms.hear_contended = true;
        self
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`Refused::TimedOut`] if it was not granted in time, with the sessions that seem to wait for each other, if that may be why;
    /// [`Refused::Deadlock`] if this lock has an owner and waiting would close a cycle of owners;
    /// [`Error::Unknown`] if the outcome could not be learnt.
    ///
    /// # Cancellation
    /// Dropping the future cancels the wait at the server, and gives back what it may have got.
    pub async fn acquire(mut self) -> Result<Guard<M>, Error> {
        if let Some(problem) = self.asking.problem.take() {
            return Err(problem);
        }
        let LockRequest { home, locks, owner, asking: Asking { wait, terms, .. }, .. } = self;
        let acquire = Acquire { locks: locks.clone(), owner, wait, terms };
        let granted = ask(&home, Action::Acquire(acquire), wait).await?;
        Ok(Guard::new(home, granted.key(), granted.token, locks))
    }

    /// The lock, if it can be had without waiting.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`], except that being busy is none.
    ///
    /// # Cancellation
    /// As [`LockRequest::acquire`].
    pub async fn try_acquire(self) -> Result<Option<Guard<M>>, Error> {
        Ok(self.try_acquire_or_busy().await?.ok())
    }

    /// The lock, if it can be had without waiting, or who is in the way.
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

    /// Waits for the lock, does the work under it, and gives it back. When the lock is lost the work is stopped: its future is
    /// dropped.
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
        let guard = self.acquire().await?;
        let done = {
            let work = pin!(work(guard.hold()));
            tokio::select! {
                biased;
                why = guard.lost() => Err(why),
                done = work => Ok(done),
            }
        };
        let done = done?;
        match guard.release().await {
            // Lost while the last step of the work ran.
            Err(error) if error.lost().is_some() => Err(error),
            // Whether or not the release was heard, the work was done under the lock.
            _ => Ok(done),
        }
    }
}

impl LockRequest<Exclusive> {
    /// Held together with other readers.
    pub fn shared(self) -> LockRequest<Shared> {
        self.in_mode()
    }

    /// Held beside readers, by the one who means to become exclusive.
    pub fn update(self) -> LockRequest<Update> {
        self.in_mode()
    }

    /// Fast, and only as good as the leader's memory: no log is written, and everything is forgotten when the leader changes. For
    /// up to an election time-out two may hold the lock then. For work that may now and then be done twice; a lock that data
    /// depends on needs the other tier, and a token.
    ///
    /// Names are apart from those of the other tier. What is held has no token.
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
    /// As [`LockRequest::<Exclusive>::efficiency`], held together with other readers.
    pub fn efficiency(self) -> LockRequest<Efficiency> {
        self.in_efficiency()
    }
}
