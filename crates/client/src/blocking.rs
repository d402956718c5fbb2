//! The same locks for programs without async.
//!
//! A background thread runs the connection, so that keep-alives are sent while the program works. Calls block the thread that makes
//! them. For everything that is not here, use [`Client::wait_for`] with the async API.
//!
//! # When the program ends
//! A guard that is dropped gives its lock back, also at the end of `main` and in a panic that unwinds. A guard that is not dropped
//! does not: after `std::process::exit`, after an abort, and with a guard in a static, the lock ends with its TTL. A client may be
//! in a static: its locks do not depend on its drop.
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

use std::convert::Infallible;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::error::{Error, Failed};
use crate::guard::Released;
use crate::{
    Checkpoint, ClientBuilder, Completion, JobResult, Leadership, LockRequest, Once, OnceError, OnceRequest,
    SemaphoreRequest,
};

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
    /// Dropping it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    /// Ends when the thread has ended. In a mutex because a receiver cannot be shared without one.
    ended: Mutex<mpsc::Receiver<Infallible>>,
}

/// How long the thread may take to close the sessions after the last handle is dropped.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long the drop of a guard, or of the last handle of a client, may block. The drop waits for one write to a socket, so this is
/// long enough. There must be a bound, because a cluster that hangs must not hang the program.
const DROP_WAITS: Duration = Duration::from_millis(100);

impl Runtime {
    fn start() -> std::io::Result<Runtime> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (ends, ended) = mpsc::channel();
        thread::Builder::new().name("fencepost".to_owned()).spawn(move || {
            let _ends = ends;
            runtime.block_on(async {
                let _ = stopped.await;
                // The driver closes the sessions by itself when the last handle is dropped. Then no task is left.
                let until = tokio::time::Instant::now() + FAREWELL;
                while Handle::current().metrics().num_alive_tasks() > 0 && tokio::time::Instant::now() < until {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        })?;
        Ok(Runtime { handle, stop: Some(stop), ended: Mutex::new(ended) })
    }
}

/// Waits for a bounded time until the sessions are closed, because the program may end right after this.
impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(DROP_WAITS);
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

    /// As [`crate::Client::from_env`].
    ///
    /// # Errors
    /// As [`crate::Client::from_env`].
    pub fn from_env() -> Result<Client, Error> {
        Client::with(ClientBuilder::from_env()?)
    }

    /// Connects with the settings of a builder.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub fn with(builder: ClientBuilder) -> Result<Client, Error> {
        let no_thread =
            |error| Failed::NotTaken { message: format!("no thread for the connection: {error}"), retry_after: None };
        let runtime = Arc::new(Runtime::start().map_err(no_thread)?);
        let client = runtime.handle.block_on(builder.drop_waits(DROP_WAITS).connect())?;
        Ok(Client { client, runtime })
    }

    /// Waits for a lock.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn acquire<M>(&self, request: LockRequest<M>) -> Result<Guard<M>, Error> {
        Ok(self.guard(self.wait_for(request.acquire())?))
    }

    /// Takes a lock if it is free; `None` if it is busy.
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

    /// Waits for a job that runs once.
    ///
    /// # Errors
    /// As [`OnceRequest::acquire`].
    pub fn acquire_job(&self, request: OnceRequest) -> Result<Turn, Error> {
        Ok(match self.wait_for(request.acquire())? {
            crate::Turn::Yours(job) => Turn::Yours(Job { hold: self.job_hold(&job), job }),
            crate::Turn::Completed(completion) => Turn::Completed(completion),
        })
    }

    /// As [`OnceRequest::run`], but the work runs on this thread. It cannot be stopped when the lock is lost: ask
    /// [`Hold::is_held`](crate::Hold::is_held) between its steps. The completion of a lost job is refused.
    ///
    /// # Errors
    /// As [`OnceRequest::run`].
    pub fn run_once<R, E>(
        &self,
        request: OnceRequest,
        work: impl FnOnce(JobHold) -> Result<R, E>,
    ) -> Result<Once, OnceError<E>>
    where
        R: Into<JobResult>,
        E: std::fmt::Display,
    {
        // The work must not run on the runtime, whose thread sends the keep-alives.
        let attempts_max = request.attempts_max();
        let mut job = match self.wait_for(request.acquire())? {
            crate::Turn::Completed(completion) => return Ok(Once::completed_before(completion)),
            crate::Turn::Yours(job) => job,
        };
        if let Some(gave_up) = self.wait_for(job.begin_or_give_up(attempts_max))? {
            return Ok(Once::GaveUp(gave_up));
        }
        let done = work(self.job_hold(&job));
        self.wait_for(job.end_of_work(done))
    }

    fn job_hold(&self, job: &crate::Job) -> JobHold {
        JobHold { hold: job.hold(), runtime: self.runtime.clone() }
    }

    /// Waits for any future of the async API.
    pub fn wait_for<F: Future>(&self, future: F) -> F::Output {
        self.runtime.handle.block_on(future)
    }

    fn guard<M>(&self, guard: crate::Guard<M>) -> Guard<M> {
        Guard { guard, runtime: self.runtime.clone() }
    }
}

/// Gives access to all requests of the async client.
impl Deref for Client {
    type Target = crate::Client;

    fn deref(&self) -> &crate::Client {
        &self.client
    }
}

/// A held lock. Dropping it gives the lock back. The drop returns when the release is written to the connection, but after 100 ms
/// at the latest. So the program may end right after it. The drop does not wait for the answer; [`Guard::release`] does.
#[derive(Debug)]
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<M> {
    guard: crate::Guard<M>,
    /// Runs the connection, which keeps the lock alive while it is held.
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

    /// As [`crate::Hold::extend`].
    ///
    /// # Errors
    /// As [`crate::Hold::extend`].
    pub fn extend(&self, max_hold: std::time::Duration) -> Result<(), Error> {
        self.runtime.handle.block_on(self.guard.extend(max_hold))
    }

    /// The guard of the async API, for methods that are not here. It must not outlive the client.
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

/// As [`crate::Turn`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a program has few of them, and a box would be in its way")]
pub enum Turn {
    /// The job is yours: begin it, and complete it.
    Yours(Job),
    /// The job is completed, and nothing was granted.
    Completed(Completion),
}

/// As [`crate::Job`].
#[derive(Debug)]
#[must_use = "the job stays open if it is dropped"]
pub struct Job {
    job: crate::Job,
    hold: JobHold,
}

/// As [`crate::JobHold`].
#[derive(Clone, Debug)]
pub struct JobHold {
    hold: crate::JobHold,
    runtime: Arc<Runtime>,
}

impl Job {
    /// As [`crate::JobHold::begin`].
    ///
    /// # Errors
    /// As [`crate::JobHold::begin`].
    pub fn begin(&self) -> Result<u64, Error> {
        self.hold.runtime.handle.block_on(self.job.begin())
    }

    /// As [`crate::Job::complete`].
    ///
    /// # Errors
    /// As [`crate::Job::complete`].
    pub fn complete(&mut self, result: impl Into<JobResult>) -> Result<Completion, Error> {
        self.hold.runtime.handle.block_on(self.job.complete(result))
    }

    /// As [`crate::Job::complete_failed`].
    ///
    /// # Errors
    /// As [`crate::Job::complete`].
    pub fn complete_failed(&mut self, result: impl Into<JobResult>) -> Result<Completion, Error> {
        self.hold.runtime.handle.block_on(self.job.complete_failed(result))
    }

    /// As [`crate::Job::fail`].
    ///
    /// # Errors
    /// As [`crate::Job::fail`].
    pub fn fail(&mut self, error: impl Into<String>) -> Result<(), Error> {
        self.hold.runtime.handle.block_on(self.job.fail(error))
    }
}

impl Deref for Job {
    type Target = JobHold;

    fn deref(&self) -> &JobHold {
        &self.hold
    }
}

impl JobHold {
    /// As [`crate::JobHold::last_checkpoint`].
    ///
    /// # Errors
    /// As [`crate::JobHold::last_checkpoint`].
    pub fn last_checkpoint(&self) -> Result<Option<Checkpoint>, Error> {
        self.runtime.handle.block_on(self.hold.last_checkpoint())
    }

    /// As [`crate::JobHold::checkpoint`].
    ///
    /// # Errors
    /// As [`crate::JobHold::checkpoint`].
    pub fn checkpoint(&self, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
        self.runtime.handle.block_on(self.hold.checkpoint(bytes))
    }
}

impl Deref for JobHold {
    type Target = crate::JobHold;

    fn deref(&self) -> &crate::JobHold {
        &self.hold
    }
}
