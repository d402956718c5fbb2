//! Jobs that run once: a key on a lock, and what the cluster remembers about the work.
//!
//! [`OnceRequest`] asks, [`Job`] is what its holder gets, and [`Once`] says how it ended. The cluster decides which of several clients
//! works and whether the job is completed; this file asks it in the right order. It cannot make the work and its completion one step:
//! the guide `docs/guides/jobs.md` says what the store must do.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fencepost_core::{
    Action, CompletionRecord, JobBytes, JobKey, JobRecord, JobReport, JobTerms, Keep, LogicalMs, Name, Outcome,
    Principal, Token, Verdict, Wait, bounds,
};

use crate::client::{Client, millis};
use crate::error::{Error, Refused, Unknown};
use crate::guard::{Exclusive, Guard, Hold};
use crate::lock::LockRequest;

/// The pause between two reads of a job whose completion is not answered.
const READ_AGAIN: Duration = Duration::from_millis(500);

/// A request for a lock whose work is done once. Begin with [`LockRequest::once`].
///
/// It waits until the job is free or completed, however long that takes, unless the program says otherwise.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked for until `run` or `acquire`"]
pub struct OnceRequest {
    request: LockRequest<Exclusive>,
    key: Option<JobKey>,
    keep: Keep,
    attempts: Option<u64>,
}

/// What a request for a job gets.
#[derive(Debug)]
pub enum Turn {
    /// The job is yours: begin it, and complete it.
    Yours(Job),
    /// The job is completed, and nothing was granted.
    Completed(Completion),
}

/// How a job ended that was to run once.
#[derive(Clone, Debug, PartialEq)]
pub enum Once {
    /// The work ran here, and completed the job.
    Ran(Completion),
    /// The job had succeeded before.
    Before(Completion),
    /// The job has failed for good: now, because the attempts are used up, or before.
    GaveUp(Completion),
}

/// The completion of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Whether the job succeeded. Otherwise it has failed for good.
    pub succeeded: bool,
    /// The result. Empty if the record was forgotten before it could be read.
    pub result: Vec<u8>,
    /// The token of the grant that completed it. `None` if an administrator did.
    pub token: Option<Token>,
    /// The administrator who completed it.
    pub by: Option<Principal>,
    /// How many attempts there were. Zero if the record was forgotten before it could be read.
    pub attempts: u64,
}

/// A checkpoint of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The attempt that stored it.
    pub attempt: u64,
    /// When it was stored, in logical time.
    pub at: LogicalMs,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// A job that this client holds. It gives the lock back when it is dropped; then the job stays open.
#[derive(Debug)]
#[must_use = "the job stays open if it is dropped"]
pub struct Job {
    guard: Guard<Exclusive>,
    hold: JobHold,
}

/// A view of a held job, for the code that works on it. It has the methods of a [`Hold`]: token, remaining time, loss signal.
#[derive(Clone, Debug)]
pub struct JobHold {
    hold: Hold<Exclusive>,
    name: Name,
    key: JobKey,
    /// The number of its attempt; zero before it has begun.
    attempt: Arc<AtomicU64>,
}

/// The result of a job, at most 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobResult(Vec<u8>);

/// Why a job did not end as completed.
#[derive(Debug)]
pub enum OnceError<E> {
    /// The work failed. The attempt has ended, and the job stays open for another one.
    Work(E),
    /// The lock, or the cluster. [`Error::Unknown`] means that the work was done, and that its completion may have been.
    Lock(Error),
}

impl<E: fmt::Display> fmt::Display for OnceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnceError::Work(error) => write!(f, "the attempt failed, and the job stays open: {error}"),
            OnceError::Lock(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for OnceError<E> {}

impl<E> From<Error> for OnceError<E> {
    fn from(error: Error) -> OnceError<E> {
        OnceError::Lock(error)
    }
}

impl From<()> for JobResult {
    fn from((): ()) -> JobResult {
        JobResult::default()
    }
}

impl From<Vec<u8>> for JobResult {
    fn from(bytes: Vec<u8>) -> JobResult {
        JobResult(bytes)
    }
}

impl From<&[u8]> for JobResult {
    fn from(bytes: &[u8]) -> JobResult {
        JobResult(bytes.to_vec())
    }
}

impl From<String> for JobResult {
    fn from(text: String) -> JobResult {
        JobResult(text.into_bytes())
    }
}

impl From<&str> for JobResult {
    fn from(text: &str) -> JobResult {
        JobResult(text.as_bytes().to_vec())
    }
}

impl Once {
    /// The completion, however the job ended.
    pub fn completion(&self) -> &Completion {
        match self {
            Once::Ran(completion) | Once::Before(completion) | Once::GaveUp(completion) => completion,
        }
    }

    /// What a caller learns about a job that was completed before.
    pub(crate) fn completed_before(completion: Completion) -> Once {
        if completion.succeeded { Once::Before(completion) } else { Once::GaveUp(completion) }
    }
}

impl OnceRequest {
    pub(crate) fn new(mut request: LockRequest<Exclusive>, key: &str) -> OnceRequest {
        let key = request.asking.take(JobKey::new(key));
        if !request.at_least.is_zero() {
            let why = "a job has no `at_least`: its lock ends with its completion, and a completed key is never granted again";
            request.asking.take(Err::<(), Error>(Refused::Invalid(why.to_owned()).into()));
        }
        if !request.asking.is_wait_chosen {
            request.asking.wait = Wait::Forever;
        }
        OnceRequest { request, key, keep: Keep::default(), attempts: None }
    }

    /// How long to wait for the job, which another client may be working on. Without this: until it is free or completed.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.request = self.request.wait(wait);
        self
    }

    /// Does not wait: if the job is not free, the answer is [`Refused::Busy`].
    pub fn no_wait(mut self) -> Self {
        self.request = self.request.no_wait();
        self
    }

    /// How many attempts the job may have. A client that begins one more completes the job as failed instead: see [`Once::GaveUp`].
    pub fn attempts(mut self, attempts: u64) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// How long the cluster remembers the job after its last attempt: a minute to a year, 30 days by default.
    pub fn keep(mut self, keep: Duration) -> Self {
        let keep = millis(keep).and_then(|keep| Ok(Keep::new(keep.get())?));
        self.keep = self.request.asking.take(keep).unwrap_or_default();
        self
    }

    /// Waits for the job.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]. A completed job is no error: see [`Turn::Completed`].
    ///
    /// # Cancellation
    /// As [`LockRequest::acquire`].
    pub async fn acquire(self) -> Result<Turn, Error> {
        let OnceRequest { mut request, key, keep, .. } = self;
        let Some(key) = key else {
            let problem = request.asking.problem.take();
            return Err(problem.unwrap_or_else(|| Refused::Invalid("a job has no key".to_owned()).into()));
        };
        request.asking.terms.job = Some(JobTerms { key: key.clone(), keep });
        let client = request.home.client().clone();
        let name = request.locks.first().map(|lock| lock.name.clone());
        match (request.acquire().await, name) {
            (Ok(guard), Some(name)) => {
                let hold = JobHold { hold: guard.hold(), name, key, attempt: Arc::default() };
                Ok(Turn::Yours(Job { guard, hold }))
            }
            (Err(Error::Refused(Refused::Completed { token, succeeded })), Some(name)) => {
                let record = client.job(name.as_str(), key.as_str()).await?.what.record;
                let found = record.and_then(Completion::of);
                let forgotten = Completion { succeeded, result: Vec::new(), token, by: None, attempts: 0 };
                Ok(Turn::Completed(found.unwrap_or(forgotten)))
            }
            (Err(error), _) => Err(error),
            (Ok(_), None) => Err(Refused::Invalid("a lock on no name was granted".to_owned()).into()),
        }
    }

    /// Does the work, unless the job is completed: waits for the job, begins an attempt, runs the work, and completes the job with its
    /// result. If the lock is lost, the work is stopped: its future is dropped.
    ///
    /// An error of the work ends the attempt and leaves the job open; the first 4 KiB of its text are kept with the job. A result of more
    /// than 4 KiB is cut, because the work is done.
    ///
    /// # Errors
    /// [`OnceError::Work`] with the error of the work. [`OnceError::Lock`] if the job could not be asked for, or the lock was lost before
    /// the work was done, or it is not known whether the job is completed.
    ///
    /// # Cancellation
    /// The work is dropped, and the lock is given back in the background. The job stays open, unless its completion was sent.
    pub async fn run<R, E, W>(self, work: impl FnOnce(JobHold) -> W) -> Result<Once, OnceError<E>>
    where
        R: Into<JobResult>,
        E: fmt::Display,
        W: Future<Output = Result<R, E>>,
    {
        let attempts_max = self.attempts;
        let mut job = match self.acquire().await? {
            Turn::Completed(completion) => return Ok(Once::completed_before(completion)),
            Turn::Yours(job) => job,
        };
        if let Some(gave_up) = job.begin_or_give_up(attempts_max).await? {
            return Ok(Once::GaveUp(gave_up));
        }
        let done = {
            let work = pin!(work(job.hold()));
            tokio::select! {
                biased;
                why = job.lost() => return Err(Error::from(why).into()),
                done = work => done,
            }
        };
        job.end_of_work(done).await
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn attempts_max(&self) -> Option<u64> {
        self.attempts
    }
}

impl Job {
    /// A view of the job, for the code that works on it.
    pub fn hold(&self) -> JobHold {
        self.hold.clone()
    }

    /// Begins an attempt. If that is one too many, completes the job as failed instead, and returns the completion.
    pub(crate) async fn begin_or_give_up(&mut self, attempts_max: Option<u64>) -> Result<Option<Completion>, Error> {
        let attempt = self.begin().await?;
        match attempts_max.filter(|max| attempt > *max) {
            Some(max) => Ok(Some(self.complete_failed(format!("gave up after {max} attempts")).await?)),
            None => Ok(None),
        }
    }

    /// Completes the job with the result of the work, or ends the attempt with its error.
    pub(crate) async fn end_of_work<R, E>(&mut self, done: Result<R, E>) -> Result<Once, OnceError<E>>
    where
        R: Into<JobResult>,
        E: fmt::Display,
    {
        match done {
            Ok(result) => Ok(Once::Ran(self.complete(cut(result.into().0)).await?)),
            Err(error) => {
                // Whether or not the text arrives, the attempt is over and the error is the caller's.
                let _ = self.fail(error.to_string()).await;
                Err(OnceError::Work(error))
            }
        }
    }

    /// Completes the job as succeeded, with a result of at most 4 KiB, and gives the lock back.
    ///
    /// The completion is sent again until it is answered. If the session ends meanwhile, the job is read: if this grant completed it, it
    /// is completed.
    ///
    /// # Errors
    /// [`Refused::BadWord`] if the result is too long: then nothing was done. [`Refused::Lost`] if the lock was lost before: then another
    /// attempt may run. [`Error::Unknown`] only if the cluster cannot be reached until the lease is over.
    // Rule: completion
    pub async fn complete(&mut self, result: impl Into<JobResult>) -> Result<Completion, Error> {
        self.end(Verdict::Succeeded, result.into().0).await
    }

    /// Completes the job as failed for good, with a result of at most 4 KiB, and gives the lock back. No attempt begins any more.
    ///
    /// # Errors
    /// As [`Job::complete`].
    pub async fn complete_failed(&mut self, result: impl Into<JobResult>) -> Result<Completion, Error> {
        self.end(Verdict::Failed, result.into().0).await
    }

    /// Ends this attempt, leaves the job open for another one, and gives the lock back. The first 4 KiB of the text are kept.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn fail(&mut self, error: impl Into<String>) -> Result<(), Error> {
        let bytes = JobBytes::new(&cut(error.into().into_bytes()))?;
        self.guard.report(JobReport { verdict: Verdict::Open, bytes }).await.map(drop)
    }

    async fn end(&mut self, verdict: Verdict, result: Vec<u8>) -> Result<Completion, Error> {
        let bytes = JobBytes::new(&result)?;
        // The completion would begin the attempt, but would not say its number.
        let attempts = match self.hold.attempt.load(Relaxed) {
            0 => self.begin().await?,
            attempt => attempt,
        };
        let own = Some(self.hold.hold.grant_token());
        let ends_at = Instant::now() + self.hold.hold.remaining();
        let unanswered = match self.guard.report(JobReport { verdict, bytes }).await {
            Ok(Outcome::Completed { token, succeeded }) if token == own => {
                return Ok(Completion { succeeded, result, token, by: None, attempts });
            }
            Ok(_) => return Err(Refused::NotHeld.into()),
            // The answer was lost with the session, or with the connection: the job says what happened.
            Err(error @ (Error::Refused(Refused::SessionEnded(_)) | Error::Unknown(_) | Error::Failed(_))) => error,
            Err(error) => return Err(error),
        };
        let mut completion = self.completion_by(own).await;
        // While the cluster cannot be reached, the answer is *unknown* at once, but the completion is still sent if the cluster comes back
        // before the lease is over.
        while !matches!(unanswered, Error::Refused(_)) && !matches!(completion, Ok(Some(_))) && Instant::now() < ends_at
        {
            tokio::time::sleep(READ_AGAIN).await;
            completion = self.completion_by(own).await;
        }
        match (completion, unanswered) {
            (Ok(Some(completion)), _) => Ok(completion),
            // The session has ended, so the completion cannot arrive any more.
            (Ok(None), error @ Error::Refused(_)) => Err(error),
            // Rule: unknown-is-said
            (Ok(None) | Err(_), _) => Err(Unknown::NoAnswer.into()),
        }
    }

    /// The completion of the job, if the grant with this token completed it.
    async fn completion_by(&self, token: Option<Token>) -> Result<Option<Completion>, Error> {
        let job = self.client().job(self.hold.name.as_str(), self.hold.key.as_str()).await?;
        Ok(job.what.record.and_then(Completion::of).filter(|it| it.token == token))
    }

    fn client(&self) -> &Client {
        self.hold.hold.client()
    }
}

impl Deref for Job {
    type Target = JobHold;

    fn deref(&self) -> &JobHold {
        &self.hold
    }
}

impl JobHold {
    /// The name of the job, which is the name of its lock.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The key of the job.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// Begins an attempt, and returns its number. A second call begins no other.
    ///
    /// # Errors
    /// [`Refused::Lost`] if the lock is lost; [`Error::Unknown`] if no answer came.
    // Rule: attempt
    pub async fn begin(&self) -> Result<u64, Error> {
        match self.hold.ask(Action::Begin { grant: self.grant() }, Duration::ZERO).await? {
            Outcome::Begun { attempt } => {
                self.attempt.store(attempt, Relaxed);
                Ok(attempt)
            }
            other => Err(Refused::Invalid(format!("a begin was answered with {other:?}")).into()),
        }
    }

    /// The last checkpoint of the job, usually that of an earlier attempt. Claim at the store before you trust it: an old holder may have
    /// written after it.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn last_checkpoint(&self) -> Result<Option<Checkpoint>, Error> {
        let job = self.hold.client().job(self.name.as_str(), self.key.as_str()).await?.what;
        let checkpoint = job.record.and_then(|record| record.checkpoint);
        Ok(checkpoint.map(|it| Checkpoint { attempt: it.attempt, at: it.at, bytes: it.bytes.as_bytes().to_vec() }))
    }

    /// Stores how far the work has come, at most 4 KiB, and returns when that is replicated. The next attempt of this job reads it.
    ///
    /// # Errors
    /// [`Refused::Lost`] if the lock is lost: stop the work. [`Refused::BadWord`] if the checkpoint is too long.
    // Rule: checkpoint
    pub async fn checkpoint(&self, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
        let (grant, bytes) = (self.hold.grant(), JobBytes::new(bytes.as_ref())?);
        self.hold.ask(Action::Checkpoint { grant, bytes }, Duration::ZERO).await.map(drop)
    }
}

impl Deref for JobHold {
    type Target = Hold<Exclusive>;

    fn deref(&self) -> &Hold<Exclusive> {
        &self.hold
    }
}

impl Completion {
    /// The completion of a job, if it is completed.
    pub fn of(job: JobRecord) -> Option<Completion> {
        let CompletionRecord { at: _, succeeded, result, token, by } = job.completion?;
        let (result, attempts) = (result.as_bytes().to_vec(), job.attempts);
        Some(Completion { succeeded, result, token, by, attempts })
    }
}

/// The first bytes of a result or of an error text, as many as a job keeps.
fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bounds::JOB_BYTES_MAX);
    bytes
}
