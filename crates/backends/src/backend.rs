//! The trait that a lock system implements to be a backend: try once, wait, renew, release.
//!
//! Everything that is the same for all systems is written once, elsewhere: when to renew and when a lock is lost
//! ([`crate::validity`]), which requests a system accepts ([`crate::promises`]), timeouts, re-entry and order ([`crate::client`]).

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Lost, Name, Nanos, Token};
use tokio::runtime::Handle;

use crate::backoff::Backoff;
use crate::promises::System;

/// How a name is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other readers.
    Shared,
}

/// A request to a backend.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The resource.
    pub name: Name,
    /// How to hold it.
    pub mode: Mode,
    /// How long the lock outlives a holder that does not renew it.
    pub ttl: Duration,
}

/// A lock system.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// The system whose promises it keeps.
    fn system(&self) -> System;

    /// Acquires the lock if it is free; `None` if another contender holds it or waits for it.
    ///
    /// # Cancellation
    /// If the lock was granted, it is released in the background: see [`Undo`].
    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error>;

    /// Waits for the lock without a timeout. The default polls with [`Backend::try_acquire`], for systems that do not notify
    /// waiters. Its pauses are random and grow, so that waiters do not poll at the same moment.
    ///
    /// # Cancellation
    /// The wait ends. If the lock was granted, it is released in the background.
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

/// A granted lock.
#[async_trait]
pub trait Lease: Debug + Send + Sync + 'static {
    /// Its fencing token, if the system gives one.
    fn token(&self) -> Option<Token>;

    /// The newest proof of the lock at the time of the grant.
    fn proof(&self) -> Proof;

    /// Renews the lock.
    ///
    /// # Errors
    /// [`Error::Refused`] means that the lock is lost. After any other error it may still be held, and the caller retries.
    async fn renew(&self) -> Result<Proof, Error>;

    /// Returns when the system reports on its own that the lock is gone. Never returns for a system that does not report this.
    async fn ended(&self) -> Lost {
        std::future::pending().await
    }

    /// Releases the lock if we still hold it. There are four answers: it was released; another holder has it
    /// ([`fencepost::Refused::NotOwner`]); we had already released it ([`fencepost::Refused::NotHeld`]); it had expired
    /// ([`fencepost::Refused::Lost`]).
    async fn release(&self) -> Result<(), Error>;
}

/// Proof of a lock: a request that we sent at `sent_at` succeeded. The system keeps the lock for `ttl` from some later moment on,
/// by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// When we began to send the request, which is before the system began to count.
    pub sent_at: Nanos,
    /// How long the system keeps the lock.
    pub ttl: Duration,
}

/// Cleanup that runs in the background when this is dropped, unless it was disarmed. It releases a lock whose caller stopped
/// waiting.
pub struct Undo {
    undo: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The runtime that created it. Needed because the drop may happen on a thread without a runtime.
    runtime: Handle,
}

impl Undo {
    /// Runs `undo` when this is dropped. Must be called within a runtime.
    pub fn new(undo: impl Future<Output = ()> + Send + 'static) -> Undo {
        Undo { undo: Some(Box::pin(undo)), runtime: Handle::current() }
    }

    /// Drops the cleanup: it is not needed.
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

/// A random number for backoff.
pub(crate) fn random() -> u64 {
    // Without randomness all waiters retry at the same moment. That is slow, but still correct.
    getrandom::u64().unwrap_or(0)
}

/// A unique value by which a system recognises the holder.
///
/// # Errors
/// [`fencepost::Failed::NotTaken`] if the machine has no randomness: a value that is not unique does not identify a holder.
#[allow(dead_code, reason = "without any feature there is no backend")]
pub(crate) fn unique() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        let message = format!("this machine has no randomness: {error}");
        Error::Failed(fencepost::Failed::NotTaken { message, retry_after: None })
    })?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
