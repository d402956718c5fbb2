//! The same locks for programs without async.
//!
//! One thread of its own runs the connection, so that keep-alives go out while the program works. Calls block the thread that makes
//! them. Whatever is not here can be had by [`Client::wait_for`].
//!
//! ```no_run
//! use std::time::Duration;
//! use fencepost::blocking::Client;
//!
//! # fn main() -> Result<(), fencepost::Error> {
//! let client = Client::connect("fencepost://127.0.0.1:7420")?;
//! let lock = client.acquire(client.lock("wallet:user_123").wait(Duration::from_secs(5)))?;
//! println!("write with token {}", lock.token());
//! lock.release()?;
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{Error, Failed};
use crate::guard::Released;
use crate::{ClientBuilder, Leadership, LockRequest, SemaphoreRequest};

/// A connection to a cluster, for threads. Cloning it is cheap. It can build every request that a [`crate::Client`] can.
///
/// Its calls must not be made on a thread of an async runtime: there, use [`crate::Client`].
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Runtime>,
}

/// The thread that runs the connection.
#[derive(Debug)]
struct Runtime {
    handle: Handle,
    /// Dropping it ends the thread. Nobody waits for that: a guard may be dropped anywhere and must not block.
    _stop: oneshot::Sender<()>,
}

/// How long the good-bye of the last client may take.
const FAREWELL: std::time::Duration = std::time::Duration::from_secs(2);

impl Runtime {
    fn start() -> std::io::Result<Runtime> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        thread::Builder::new().name("fencepost".to_owned()).spawn(move || {
            runtime.block_on(async {
                let _ = stopped.await;
                // The driver says good-bye by itself once the last handle is gone, and then has no tasks left.
                let until = tokio::time::Instant::now() + FAREWELL;
                while Handle::current().metrics().num_alive_tasks() > 0 && tokio::time::Instant::now() < until {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            });
        })?;
        Ok(Runtime { handle, _stop: stop })
    }
}

impl Client {
    /// As [`crate::Client::connect`].
    ///
    /// # Errors
    /// As [`crate::Client::connect`].
    pub fn connect(address: &str) -> Result<Client, Error> {
        Client::with(crate::Client::builder().address(address)?)
    }

    /// Connects as the builder says.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub fn with(builder: ClientBuilder) -> Result<Client, Error> {
        let no_thread =
            |error| Failed::NotTaken { message: format!("no thread for the connection: {error}"), retry_after: None };
        let runtime = Arc::new(Runtime::start().map_err(no_thread)?);
        let client = runtime.handle.block_on(builder.connect())?;
        Ok(Client { client, runtime })
    }

    /// Waits for a lock.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn acquire<M>(&self, request: LockRequest<M>) -> Result<Guard<M>, Error> {
        Ok(self.guard(self.wait_for(request.acquire())?))
    }

    /// A lock, if it can be had without waiting.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    pub fn try_acquire<M>(&self, request: LockRequest<M>) -> Result<Option<Guard<M>>, Error> {
        Ok(self.wait_for(request.try_acquire())?.map(|guard| self.guard(guard)))
    }

    /// Waits for permits.
    ///
    /// # Errors
    /// As [`SemaphoreRequest::acquire`].
    pub fn acquire_permits(&self, request: SemaphoreRequest) -> Result<Guard<crate::Permit>, Error> {
        Ok(self.guard(self.wait_for(request.acquire())?))
    }

    /// Waits until elected.
    ///
    /// # Errors
    /// As [`crate::Election::campaign`].
    pub fn campaign(&self, election: crate::Election, value: impl AsRef<[u8]>) -> Result<Leadership, Error> {
        self.wait_for(election.campaign(value))
    }

    /// Waits for anything of the async API.
    pub fn wait_for<F: Future>(&self, future: F) -> F::Output {
        self.runtime.handle.block_on(future)
    }

    fn guard<M>(&self, guard: crate::Guard<M>) -> Guard<M> {
        Guard { guard, runtime: self.runtime.clone() }
    }
}

/// It builds every request that the async client can.
impl Deref for Client {
    type Target = crate::Client;

    fn deref(&self) -> &crate::Client {
        &self.client
    }
}

/// A held lock. Dropping it gives the lock back in the background and never blocks.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<M> {
    guard: crate::Guard<M>,
    /// Renews the lock for as long as it is held.
    runtime: Arc<Runtime>,
}

impl<M> Guard<M> {
    /// As [`crate::Guard::release`].
    ///
    /// # Errors
    /// As [`crate::Guard::release`].
    pub fn release(self) -> Result<Released, Error> {
        self.runtime.handle.block_on(self.guard.release())
    }

    /// As [`crate::Guard::extend`].
    ///
    /// # Errors
    /// As [`crate::Guard::extend`].
    pub fn extend(&self, max_hold: std::time::Duration) -> Result<(), Error> {
        self.runtime.handle.block_on(self.guard.extend(max_hold))
    }

    /// The guard of the async API, for what is not here. It must not outlive the client.
    pub fn into_inner(self) -> crate::Guard<M> {
        self.guard
    }
}

impl<M> Deref for Guard<M> {
    type Target = crate::Hold<M>;

    fn deref(&self) -> &crate::Hold<M> {
        &self.guard
    }
}
