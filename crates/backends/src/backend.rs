//! What a lock system has to do to be a backend, and no more: try once, wait, prove that it goes on, give back.
//!
//! Everything that is the same for all of them stands elsewhere and is written once: when to renew and when a lock is lost
//! ([`crate::validity`]), what may be asked of whom ([`crate::promises`]), time-outs, re-entrance and order ([`crate::client`]).

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Lost, Name, Nanos, Token};
use tokio::runtime::Handle;

use crate::backoff::Backoff;
use crate::promises::System;

/// How a name is to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other readers.
    Shared,
}

/// What is asked of a backend.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The resource.
    pub name: Name,
    /// How it is to be held.
    pub mode: Mode,
    /// How long the lock outlives a holder that says nothing.
    pub ttl: Duration,
}

/// A lock system.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Whose promises it keeps.
    fn system(&self) -> System;

    /// The lock, if nobody is in the way.
    ///
    /// # Cancellation
    /// What it may have got is given back in the background: see [`Undo`].
    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error>;

    /// Waits for the lock, however long it takes. A system that cannot say when a lock is free is asked again and again, after
    /// pauses that grow and are never the same for two who wait.
    ///
    /// # Cancellation
    /// The wait is cancelled, and what it may have got is given back in the background.
    async fn acquire(&self, ask: &Ask) -> Result<Box<dyn Lease>, Error> {
        let mut backoff = Backoff::for_busy();
        loop {
            if let Some(lease) = self.try_acquire(ask).await? {
                return Ok(lease);
            }
            tokio::time::sleep(backoff.pause(random())).await;
        }
    }
}

/// A lock that was granted.
#[async_trait]
pub trait Lease: Debug + Send + Sync + 'static {
    /// Its fencing token, if the system gives one.
    fn token(&self) -> Option<Token>;

    /// The last thing that proved the lock when it was granted.
    fn proof(&self) -> Proof;

    /// Asks the system to let the lock go on.
    ///
    /// # Errors
    /// [`Error::Refused`] means that it is lost. After anything else it may still be held, and is asked for again.
    async fn renew(&self) -> Result<Proof, Error>;

    /// Returns when the system says by itself that the lock is gone; never, if it does not say such things.
    async fn ended(&self) -> Lost {
        std::future::pending().await
    }

    /// Gives the lock back, if it is still ours. There are four answers: it was released; somebody else has it
    /// ([`fencepost::Refused::NotOwner`]); it was released before ([`fencepost::Refused::NotHeld`]); it had expired
    /// ([`fencepost::Refused::Lost`]).
    async fn release(&self) -> Result<(), Error>;
}

/// What was sent at `sent_at` and succeeded: from then on the system keeps the lock for `ttl`, by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// When we began to send it, which is before the system began to count.
    pub sent_at: Nanos,
    /// How long the system keeps the lock from then on.
    pub ttl: Duration,
}

/// Something to be done in the background unless all goes well: what gives back a lock that nobody waits for any more.
pub struct Undo {
    undo: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Where it was begun: it may be dropped on a thread that has no runtime.
    runtime: Handle,
}

impl Undo {
    /// Does it when this is dropped. Must be made within a runtime.
    pub fn new(undo: impl Future<Output = ()> + Send + 'static) -> Undo {
        Undo { undo: Some(Box::pin(undo)), runtime: Handle::current() }
    }

    /// All went well.
    pub fn disarm(mut self) {
        self.undo = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            self.runtime.spawn(undo);
        }
    }
}

/// Any number.
pub(crate) fn random() -> u64 {
    // Without randomness everybody comes back at the same moment, which is no reason to stay away.
    getrandom::u64().unwrap_or(0)
}

/// A value that nobody else has, by which a system knows the holder again.
///
/// # Errors
/// [`fencepost::Failed::NotTaken`] if the machine has no randomness: a value that another might have is no owner.
#[allow(dead_code, reason = "without any feature there is no backend")]
pub(crate) fn unique() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = format!("this machine has no randomness: {error}");
        Error::Failed(fencepost::Failed::NotTaken { message, retry_after: None })
    })?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
