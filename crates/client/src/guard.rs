//! What a holder gets: the token, the time for which the lock is certainly held, the loss signal, and the release.
//!
//! A [`Guard`] owns the lock and gives it back. A [`Hold`] only shows it. Renewal is not here: the session does it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::pin;
use std::time::Duration;

use fencepost_core::{
    Action, FencingToken, GrantId, JobReport, LockMode, Locks, Name, Outcome, ReadToken, SessionId, Token, Value, Wait,
};

use crate::client::{Client, millis};
use crate::error::{Error, Obstacle, Refused};
use crate::session::Home;
use fencepost_session::client::{GrantKey, GrantState, Lost};

/// Held by one client alone. Its token can write.
#[derive(Clone, Copy, Debug)]
pub struct Exclusive;
/// Held by several readers at the same time. Its token can read.
#[derive(Clone, Copy, Debug)]
pub struct Shared;
/// Held by one client beside readers. It can be upgraded to exclusive.
#[derive(Clone, Copy, Debug)]
pub struct Update;
/// Several names, each in its own mode.
#[derive(Clone, Copy, Debug)]
pub struct Mixed;
/// Permits of a semaphore. They cannot fence, so they have no token:
///
/// ```compile_fail,E0599
/// fn token_of(permits: &fencepost::Hold<fencepost::Permit>) {
///     permits.token();
/// }
/// ```
// Rule: semaphores-do-not-fence
#[derive(Clone, Copy, Debug)]
pub struct Permit;

/// Held in the efficiency tier, in any mode: fast, and forgotten when the leader changes. It has no fencing token, so it cannot be
/// used where a token is needed:
///
/// ```compile_fail,E0599
/// fn token_of(lock: &fencepost::Hold<fencepost::Efficiency>) {
///     lock.token();
/// }
/// ```
// Rule: tier-efficiency
#[derive(Clone, Copy, Debug)]
pub struct Efficiency;

/// The mode of a lock, as a type: [`Exclusive`], [`Update`] or [`Shared`].
pub trait Mode: sealed::Sealed {
    /// The mode as a value.
    const MODE: LockMode;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Exclusive {}
    impl Sealed for super::Update {}
    impl Sealed for super::Shared {}
}

impl Mode for Exclusive {
    const MODE: LockMode = LockMode::Exclusive;
}
impl Mode for Update {
    const MODE: LockMode = LockMode::Update;
}
impl Mode for Shared {
    const MODE: LockMode = LockMode::Shared;
}

/// A held lock. Dropping it gives the lock back in the background and does not block; a guard of a
#[cfg_attr(feature = "blocking", doc = "[blocking client](crate::blocking)")]
#[cfg_attr(not(feature = "blocking"), doc = "blocking client")]
/// waits until the release is written to the socket, up to a time limit.
///
/// # When the program ends
/// The lock is given back if the guard is dropped before the runtime is shut down: at the end of an async `main`, in a panic that
/// unwinds through it, in a task that the runtime drops. When the runtime shuts down, the client writes these releases to its
/// socket, once and without waiting. If the socket does not accept them at that moment, the lock ends with its TTL. The same
/// happens after `std::process::exit`, after an abort, and with a runtime in a static, which is never shut down: there, use
/// [`Guard::release`].
///
/// It has the methods of a [`Hold`]: token, remaining time, loss signal.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<M> {
    hold: Hold<M>,
    /// Whether the drop must give the lock back.
    open: bool,
}

/// Held permits of a semaphore. There is no fencing token, because a semaphore allows several holders at a time.
pub type PermitGuard = Guard<Permit>;

/// A view of a held lock: its token, its state and its loss signal. It is cheap to clone, and does not keep the lock: pass it to
/// the code that works under the lock, and keep the guard where the lock is given back.
pub struct Hold<M> {
    home: Home,
    key: GrantKey,
    token: Token,
    locks: Locks,
    mode: PhantomData<M>,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// How many acquires of the same owner are not released yet. Zero means that the owner no longer holds the lock.
    pub count_left: u32,
}

/// A lock that could not change its mode.
pub struct NotConverted<M> {
    /// The lock as it was. `None` if it is not certain which mode the lock has now: then it was given back.
    pub guard: Option<Guard<M>>,
    /// Why.
    pub error: Error,
}

impl<M> Guard<M> {
    pub(crate) fn new(home: Home, key: GrantKey, token: Token, locks: Locks) -> Guard<M> {
        Guard { hold: Hold { home, key, token, locks, mode: PhantomData }, open: true }
    }

    /// A view of the lock, for the code that works under it.
    pub fn hold(&self) -> Hold<M> {
        self.hold.clone()
    }

    /// Gives the lock back and waits until that is done.
    ///
    /// # Errors
    /// [`Refused::Lost`] if it was lost before. [`Error::Unknown`] if no answer came: then the release goes on in the background,
    /// and the lock ends at its deadline at the latest.
    ///
    /// # Cancellation
    /// The release goes on in the background.
    pub async fn release(mut self) -> Result<Released, Error> {
        self.open = false;
        let client = self.hold.client();
        let pending = client.shared().release(self.hold.key, client.call_timeout())?;
        match client.decided(pending).await? {
            Outcome::Released { count_left } => Ok(Released { count_left }),
            _ => Err(Refused::NotHeld.into()),
        }
    }

    /// Gives the lock back with a report about its job, and waits for the answer. The report is sent again until it is answered, or
    /// until the session has ended. After the first call there is nothing to report.
    pub(crate) async fn report(&mut self, report: JobReport) -> Result<Outcome, Error> {
        if !std::mem::replace(&mut self.open, false) {
            return Err(Refused::NotHeld.into());
        }
        let client = self.hold.client();
        let pending = client.shared().report(self.hold.key, report)?;
        client.decided(pending).await
    }

    async fn convert<T: Mode>(mut self, wait: Wait) -> Result<Guard<T>, NotConverted<M>> {
        let Some(name) = self.hold.only_name() else {
            return Err(NotConverted { guard: Some(self), error: Refused::SeveralNames.into() });
        };
        let action = Action::Convert { grant: self.hold.key.grant, name, mode: T::MODE, wait };
        let longest = match wait {
            Wait::UpTo(ms) => Duration::from_millis(ms.get()),
            _ => Duration::ZERO,
        };
        match self.hold.ask(action, longest).await {
            Ok(Outcome::Converted { token, .. }) => {
                self.open = false;
                let Hold { home, key, mut locks, .. } = self.hold.clone();
                locks.iter_mut().for_each(|lock| lock.mode = T::MODE);
                Ok(Guard::new(home, key, token, locks))
            }
            Ok(_) => Err(NotConverted { guard: Some(self), error: Refused::NotHeld.into() }),
            Err(error) if error.is_unknown() => Err(NotConverted { guard: None, error }),
            Err(error) if error.is_timed_out() => {
                let names = self.hold.names().cloned().collect();
                let mut error = crate::lock::timed_out(self.hold.client(), names, None).await;
                if let Error::Refused(Refused::TimedOut { obstacle: Obstacle::Explained(explained), .. }) = &mut error {
                    // The lock itself is not in the way.
                    explained.what.holders.retain(|it| it.holder.grant != self.hold.key.grant);
                }
                Err(NotConverted { guard: Some(self), error })
            }
            Err(error) => Err(NotConverted { guard: Some(self), error }),
        }
    }
}

impl Guard<Exclusive> {
    /// Becomes a shared lock, and lets readers in. The token keeps its number, but can only read.
    ///
    /// # Errors
    /// [`NotConverted`] with the lock as it was, and why.
    ///
    /// # Cancellation
    /// The lock is given back.
    pub async fn downgrade(self) -> Result<Guard<Shared>, NotConverted<Exclusive>> {
        self.convert(Wait::No).await
    }

    /// Becomes an update lock: lets readers in, and can be upgraded again.
    ///
    /// # Errors
    /// As [`Guard::downgrade`].
    pub async fn downgrade_to_update(self) -> Result<Guard<Update>, NotConverted<Exclusive>> {
        self.convert(Wait::No).await
    }
}

impl Guard<Update> {
    /// Waits for the readers to release, then becomes exclusive, with a new token. No other writer gets in between.
    ///
    /// # Errors
    /// [`NotConverted`] with the lock as it was, and why.
    ///
    /// # Cancellation
    /// The lock is given back.
    pub async fn upgrade(self, wait: Duration) -> Result<Guard<Exclusive>, NotConverted<Update>> {
        match millis(wait) {
            Ok(wait) => self.convert(Wait::UpTo(wait)).await,
            Err(error) => Err(NotConverted { guard: Some(self), error }),
        }
    }

    /// Becomes a shared lock, and gives up the right to become exclusive.
    ///
    /// # Errors
    /// As [`Guard::upgrade`].
    pub async fn downgrade(self) -> Result<Guard<Shared>, NotConverted<Update>> {
        self.convert(Wait::No).await
    }
}

impl Guard<Shared> {
    /// Waits for the other readers to release, then becomes exclusive, with a new token. If another reader already waits for the
    /// same, this is refused at once: two such readers would wait for each other. If you are going to upgrade, take an update
    /// lock from the start.
    ///
    /// # Errors
    /// [`NotConverted`] with the lock as it was, and why.
    ///
    /// # Cancellation
    /// The lock is given back.
    pub async fn upgrade(self, wait: Duration) -> Result<Guard<Exclusive>, NotConverted<Shared>> {
        match millis(wait) {
            Ok(wait) => self.convert(Wait::UpTo(wait)).await,
            Err(error) => Err(NotConverted { guard: Some(self), error }),
        }
    }
}

impl<M> Deref for Guard<M> {
    type Target = Hold<M>;

    fn deref(&self) -> &Hold<M> {
        &self.hold
    }
}

impl<M> Drop for Guard<M> {
    fn drop(&mut self) {
        if self.open {
            self.hold.client().shared().let_go(self.hold.key);
        }
    }
}

impl Hold<Exclusive> {
    /// The fencing token. Pass it to the protected store with every write, so that the store can refuse older tokens.
    pub fn token(&self) -> FencingToken {
        FencingToken::of_exclusive(self.token)
    }

    /// Changes the value that observers of an election see. For the holder of a [`Leadership`](crate::Leadership).
    ///
    /// # Errors
    /// [`Refused::Lost`] if the leadership is lost, [`Refused::BadWord`] if the value is too long.
    pub async fn set_value(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let action = Action::SetValue { grant: self.key.grant, value: Value::new(value.as_ref())? };
        self.ask(action, Duration::ZERO).await.map(drop)
    }
}

impl Hold<Update> {
    /// The token for reads. To write, upgrade first.
    pub fn token(&self) -> ReadToken {
        ReadToken::of_grant(self.token)
    }
}

impl Hold<Shared> {
    /// The token for reads.
    pub fn token(&self) -> ReadToken {
        ReadToken::of_grant(self.token)
    }
}

impl Hold<Mixed> {
    /// The fencing token for a name, if it is held exclusively.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        let exclusive = |lock: &fencepost_core::Lock| lock.mode == LockMode::Exclusive && lock.name.as_str() == name;
        self.locks.iter().any(exclusive).then_some(FencingToken::of_exclusive(self.token))
    }

    /// The token for reads of any of the names.
    pub fn read_token(&self) -> ReadToken {
        ReadToken::of_grant(self.token)
    }
}

impl<M> Hold<M> {
    /// How long the lock is certainly held from now on. Every confirmed keep-alive extends this time.
    pub fn remaining(&self) -> Duration {
        self.client().shared().with(|state| state.machine.remaining(self.key, crate::clock::now()))
    }

    /// Whether the lock is certainly held at this moment. Once it has returned false, it never returns true again.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), GrantState::Lost(_))
    }

    /// The state of the lock: held, in jeopardy, or lost and why.
    pub fn state(&self) -> GrantState {
        self.client().shared().grant_state(self.key)
    }

    /// Waits until the lock is lost or given back, and returns why.
    ///
    /// # Cancellation
    /// Safe: it changes nothing.
    pub async fn lost(&self) -> Lost {
        loop {
            let listener = self.client().shared().listener(self.key);
            let mut changed = pin!(listener.notified());
            changed.as_mut().enable();
            if let GrantState::Lost(why) = self.state() {
                return why;
            }
            changed.await;
        }
    }

    /// Waits until the state differs from this one, and returns the new state.
    ///
    /// # Cancellation
    /// Safe: it changes nothing.
    pub async fn state_other_than(&self, known: GrantState) -> GrantState {
        loop {
            let listener = self.client().shared().listener(self.key);
            let mut changed = pin!(listener.notified());
            changed.as_mut().enable();
            let state = self.state();
            if state != known {
                return state;
            }
            changed.await;
        }
    }

    /// Waits until a conflicting request begins to wait. Only for locks with
    /// [`hear_contended`](crate::LockRequest::hear_contended).
    ///
    /// # Errors
    /// [`Refused::Lost`] if the lock is lost first.
    ///
    /// # Cancellation
    /// Safe: no signal is lost.
    pub async fn contended(&self) -> Result<(), Error> {
        loop {
            let listener = self.client().shared().listener(self.key);
            let mut changed = pin!(listener.notified());
            changed.as_mut().enable();
            if self.client().shared().with(|state| state.machine.take_contended(self.key)) {
                return Ok(());
            }
            if let GrantState::Lost(why) = self.state() {
                return Err(why.into());
            }
            changed.await;
        }
    }

    /// Moves the end of `max_hold` to this time from now.
    ///
    /// # Errors
    /// [`Refused::Lost`] if the lock is lost, [`Refused::Rule`] if it has no `max_hold`.
    pub async fn extend(&self, max_hold: Duration) -> Result<(), Error> {
        let action = Action::Extend { grant: self.key.grant, max_hold: millis(max_hold)? };
        self.ask(action, Duration::ZERO).await.map(drop)
    }

    /// The id of the grant. An administrator can break the grant by this id.
    pub fn grant(&self) -> GrantId {
        self.key.grant
    }

    /// The session that holds the lock.
    pub fn session(&self) -> SessionId {
        self.key.session
    }

    /// The names of the resources.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.locks.iter().map(|lock| &lock.name)
    }

    fn only_name(&self) -> Option<Name> {
        match self.locks.as_slice() {
            [lock] => Some(lock.name.clone()),
            _ => None,
        }
    }

    pub(crate) fn grant_token(&self) -> Token {
        self.token
    }

    pub(crate) fn client(&self) -> &Client {
        self.home.client()
    }

    /// Makes a request that changes the grant.
    pub(crate) async fn ask(&self, action: Action, wait: Duration) -> Result<Outcome, Error> {
        if let GrantState::Lost(why) = self.state() {
            return Err(why.into());
        }
        let client = self.client();
        let limit = wait + client.call_timeout();
        client.decided(client.shared().ask(self.key.session, action, Some(limit))).await
    }
}

impl<M> Clone for Hold<M> {
    fn clone(&self) -> Hold<M> {
        let Hold { home, key, token, locks, mode } = self;
        Hold { home: home.clone(), key: *key, token: *token, locks: locks.clone(), mode: *mode }
    }
}

impl<M> fmt::Debug for Hold<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("locks", &self.locks)
            .field("grant", &self.key)
            .field("token", &self.token)
            .finish()
    }
}

impl<M> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.hold).finish()
    }
}

impl<M> fmt::Debug for NotConverted<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotConverted").field("guard", &self.guard).field("error", &self.error).finish()
    }
}

impl<M> fmt::Display for NotConverted<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for NotConverted<M> {}

/// Drops the guard, which gives the lock back, and keeps the reason.
impl<M> From<NotConverted<M>> for Error {
    fn from(not: NotConverted<M>) -> Error {
        not.error
    }
}
