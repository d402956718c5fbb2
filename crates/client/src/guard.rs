//! What a holder has in hand: the proof that it holds, how long that is certain, and the way to give it back.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::pin;
use std::time::Duration;

use fencepost_core::{
    Action, FencingToken, GrantId, LockMode, Locks, Name, Outcome, ReadToken, SessionId, Token, Wait,
};

use crate::client::{Client, millis};
use crate::error::{Error, Refused};
use crate::session::Home;
use fencepost_session::client::{GrantKey, GrantState, Lost};

/// Held alone. Its token writes.
#[derive(Clone, Copy, Debug)]
pub struct Exclusive;
/// Held together with other readers.
#[derive(Clone, Copy, Debug)]
pub struct Shared;
/// Held beside readers, by the one who means to become exclusive.
#[derive(Clone, Copy, Debug)]
pub struct Update;
/// Several names, each in its own mode.
#[derive(Clone, Copy, Debug)]
pub struct Mixed;
/// Permits of a semaphore. They fence nothing, so they have no token:
///
/// ```compile_fail,E0599
/// fn token_of(permits: &fencepost::Hold<fencepost::Permit>) {
///     permits.token();
/// }
/// ```
// Rule: semaphores-do-not-fence
#[derive(Clone, Copy, Debug)]
pub struct Permit;

/// Held in the efficiency tier, in whatever mode: fast, and forgotten when the leader changes. There is no fencing token, so
/// this cannot stand where one is needed:
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
    /// As the service calls it.
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
/// waits for one write.
///
/// # When the program ends
/// The lock is given back if the guard is dropped before the runtime is shut down: at the end of an async `main`, in a panic that
/// unwinds through it, in a task that the runtime drops. When the runtime goes, the client writes what was given back to its
/// socket, once and without waiting. A network that takes nothing at that moment leaves the lock to its TTL, and so do
/// `std::process::exit`, an abort, and a runtime in a static, which is never shut down: there, use [`Guard::release`].
///
/// It can be looked at like a [`Hold`]: token, remaining time, loss signal.
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<M> {
    hold: Hold<M>,
    /// There is something to give back.
    open: bool,
}

/// Held permits of a semaphore. There is no fencing token: two holders at a time are what a semaphore is for.
pub type PermitGuard = Guard<Permit>;

/// What a guard shows: cheap to clone, and no claim. It can be given to those who work under the lock; the guard itself stays
/// with who gives it back.
pub struct Hold<M> {
    home: Home,
    key: GrantKey,
    token: Token,
    locks: Locks,
    mode: PhantomData<M>,
}

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// How many entries of the same owner are left; zero means that the lock is free of it.
    pub count_left: u32,
}

/// A lock that could not change its mode.
pub struct NotConverted<M> {
    /// The lock as it was. None if it is not certain which mode it has now: it was given back.
    pub guard: Option<Guard<M>>,
    /// Why.
    pub error: Error,
}

impl<M> Guard<M> {
    pub(crate) fn new(home: Home, key: GrantKey, token: Token, locks: Locks) -> Guard<M> {
        Guard { hold: Hold { home, key, token, locks, mode: PhantomData }, open: true }
    }

    /// What the guard shows, for those who work under the lock.
    pub fn hold(&self) -> Hold<M> {
        self.hold.clone()
    }

    /// Gives the lock back and waits until that is done.
    ///
    /// # Errors
    /// [`Refused::Lost`] if it was lost before. [`Error::Unknown`] if no answer came; the release goes on in the background, and
    /// the lock ends with its deadline at the latest.
    ///
    /// # Cancellation
    /// The release goes on in the background.
    pub async fn release(mut self) -> Result<Released, Error> {
        self.open = false;
        let client = self.hold.client();
        let asked = client.shared().release(self.hold.key, client.call_timeout())?;
        match client.decided(asked).await? {
            Outcome::Released { count_left } => Ok(Released { count_left }),
            _ => Err(Refused::NotHeld.into()),
        }
    }

    /// Moves the end of the longest hold (`max_hold`) to so long from now.
    ///
    /// # Errors
    /// [`Refused::Lost`] if the lock is lost, [`Refused::Rule`] if it has no longest hold.
    pub async fn extend(&self, max_hold: Duration) -> Result<(), Error> {
        let action = Action::Extend { grant: self.hold.key.grant, max_hold: millis(max_hold)? };
        self.hold.ask(action, Duration::ZERO).await.map(drop)
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
            Err(error) => Err(NotConverted { guard: Some(self), error }),
        }
    }

    pub(crate) async fn set_value(&self, value: fencepost_core::Value) -> Result<(), Error> {
        let action = Action::SetValue { grant: self.hold.key.grant, value };
        self.hold.ask(action, Duration::ZERO).await.map(drop)
    }
}

impl Guard<Exclusive> {
    /// Lets readers in. The token stays the same number, but reads only.
    ///
    /// # Errors
    /// [`NotConverted`] with the lock as it was, and why.
    ///
    /// # Cancellation
    /// The lock is given back.
    pub async fn downgrade(self) -> Result<Guard<Shared>, NotConverted<Exclusive>> {
        self.convert(Wait::No).await
    }

    /// Lets readers in, and keeps the right to become exclusive again.
    ///
    /// # Errors
    /// As [`Guard::downgrade`].
    pub async fn downgrade_to_update(self) -> Result<Guard<Update>, NotConverted<Exclusive>> {
        self.convert(Wait::No).await
    }
}

impl Guard<Update> {
    /// Becomes exclusive when the readers are gone, with a new token. Nobody gets in between.
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

    /// Gives up the right to become exclusive.
    ///
    /// # Errors
    /// As [`Guard::upgrade`].
    pub async fn downgrade(self) -> Result<Guard<Shared>, NotConverted<Update>> {
        self.convert(Wait::No).await
    }
}

impl Guard<Shared> {
    /// Becomes exclusive when the other readers are gone, with a new token. If another reader wants that, too, it is refused at
    /// once: whoever means to upgrade should hold an update lock from the start.
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
    /// The fencing token: what a protected store must see with every write. It accepts no older one.
    pub fn token(&self) -> FencingToken {
        FencingToken::of_exclusive(self.token)
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
    /// How long the lock is certainly held. It grows again with every renewal that is confirmed.
    pub fn remaining(&self) -> Duration {
        self.client().shared().with(|state| state.machine.remaining(self.key, crate::clock::now()))
    }

    /// Whether the lock is certainly held at this moment. After a false there is never a true again.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), GrantState::Lost(_))
    }

    /// Held, in jeopardy, or lost and why.
    pub fn state(&self) -> GrantState {
        self.client().shared().grant_state(self.key)
    }

    /// Waits until the lock is lost, and says why. Also when it was given back.
    ///
    /// # Cancellation
    /// Safe: it only looks.
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

    /// Waits until the state is another than this one, and says which.
    ///
    /// # Cancellation
    /// Safe: it only looks.
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

    /// Waits until somebody who conflicts begins to wait. For locks that asked to hear it.
    ///
    /// # Errors
    /// [`Refused::Lost`] if the lock is lost first.
    ///
    /// # Cancellation
    /// Safe: nothing is missed.
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

    /// The grant's id, by which an administrator can break it.
    pub fn grant(&self) -> GrantId {
        self.key.grant
    }

    /// The session that holds it.
    pub fn session(&self) -> SessionId {
        self.key.session
    }

    /// The resources.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.locks.iter().map(|lock| &lock.name)
    }

    fn only_name(&self) -> Option<Name> {
        match self.locks.as_slice() {
            [lock] => Some(lock.name.clone()),
            _ => None,
        }
    }

    fn client(&self) -> &Client {
        self.home.client()
    }

    /// Asks for something that changes the grant.
    async fn ask(&self, action: Action, wait: Duration) -> Result<Outcome, Error> {
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

/// The lock is given back; what is left is why.
impl<M> From<NotConverted<M>> for Error {
    fn from(not: NotConverted<M>) -> Error {
        not.error
    }
}
