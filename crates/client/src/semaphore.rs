//! Requests for permits of a semaphore.
//!
//! They share their settings and the wait for a grant with requests for locks, in `lock.rs`. Permits have no fencing token.

use std::time::Duration;

use fencepost_core::{Action, Busy, Lock, LockMode, Locks, Name, Permits, TakePermits, Wait};

use crate::error::{self, Error, Refused};
use crate::guard::{Guard, PermitGuard};
use crate::lock::{Asking, ask};
use crate::session::Home;

/// A request for permits. Begin with [`crate::Client::semaphore`].
///
/// ```no_run
/// # async fn example(client: fencepost::Client) -> Result<(), fencepost::Error> {
/// let permit = client.semaphore("uploads").limit(10).acquire().await?;
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for until `acquire` or `try_acquire`"]
pub struct SemaphoreRequest {
    home: Home,
    name: Option<Name>,
    permits: u32,
    limit: Option<u32>,
    asking: Asking,
}

impl SemaphoreRequest {
    pub(crate) fn new(home: Home, name: &str) -> SemaphoreRequest {
        let mut asking = Asking::default();
        let name = asking.take(error::name(name));
        SemaphoreRequest { home, name, permits: 1, limit: None, asking }
    }

    /// How many permits to take: one by default.
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = permits;
        self
    }

    /// How many permits the semaphore has in all. Needed unless an administrator has set a limit; if there are both, they must be
    /// equal.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// As [`crate::LockRequest::wait`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.asking.wait(wait);
        self
    }

    /// As [`crate::LockRequest::wait_forever`].
    pub fn wait_forever(mut self) -> Self {
        self.asking.wait = Wait::Forever;
        self
    }

    /// As [`crate::LockRequest::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.asking.ttl(ttl);
        self
    }

    /// As [`crate::LockRequest::max_hold`].
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.asking.max_hold(max_hold);
        self
    }

    /// As [`crate::LockRequest::lock_delay`].
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.asking.lock_delay(delay);
        self
    }

    /// As [`crate::LockRequest::metadata`].
    pub fn metadata(mut self, metadata: impl AsRef<[u8]>) -> Self {
        self.asking.metadata(metadata.as_ref());
        self
    }

    /// Waits for the permits.
    ///
    /// # Errors
    /// As [`crate::LockRequest::acquire`]. [`Refused::Rule`] if the semaphore has no limit and the request names none, or if the
    /// request names another limit than the semaphore has.
    ///
    /// # Cancellation
    /// Dropping the future cancels the wait at the server, and gives the permits back if they were already granted.
    pub async fn acquire(mut self) -> Result<PermitGuard, Error> {
        let permits = self.asking.take(Permits::new(self.permits));
        let limit = self.limit.map(Permits::new).transpose();
        let limit = self.asking.take(limit);
        if let Some(problem) = self.asking.problem.take() {
            return Err(problem);
        }
        let (Some(name), Some(permits), Some(limit)) = (self.name, permits, limit) else {
            return Err(Refused::NotFound.into());
        };
        let Asking { wait, terms, .. } = self.asking;
        let take = TakePermits { name: name.clone(), permits, limit, wait, terms };
        let granted = ask(&self.home, Action::TakePermits(take), wait).await?;
        // For permits only the name matters: they have no mode.
        let locks = Locks::from_iter([Lock { name, mode: LockMode::Shared }]);
        Ok(Guard::new(self.home, granted.key(), granted.token, locks))
    }

    /// Takes the permits if they are free; `None` if they are not.
    ///
    /// # Errors
    /// As [`SemaphoreRequest::acquire`], but a busy semaphore is not an error.
    ///
    /// # Cancellation
    /// As [`SemaphoreRequest::acquire`].
    pub async fn try_acquire(self) -> Result<Option<PermitGuard>, Error> {
        Ok(self.try_acquire_or_busy().await?.ok())
    }

    /// Takes the permits if they are free. Otherwise says who has them.
    ///
    /// # Errors
    /// As [`SemaphoreRequest::try_acquire`].
    ///
    /// # Cancellation
    /// As [`SemaphoreRequest::acquire`].
    pub async fn try_acquire_or_busy(mut self) -> Result<Result<PermitGuard, Box<Busy>>, Error> {
        self.asking.wait = Wait::No;
        match self.acquire().await {
            Ok(guard) => Ok(Ok(guard)),
            Err(Error::Refused(Refused::Busy(busy))) => Ok(Err(busy)),
            Err(error) => Err(error),
        }
    }
}
