//! What a log entry can hold: one [`Batch`] of commands, and everything that a command can ask for.
//!
//! A command is plain data. Its names, sizes and durations are valid by type, so `apply` does not check them again. A
//! command holds no wall-clock time and no secret, because the log keeps it. Nothing here decides anything.

use smallvec::SmallVec;

use crate::format_version::FormatVersion;
use crate::mode::LockMode;
use crate::words::{
    Epoch, FreezeId, GrantId, JobBytes, JobKey, Keep, LockDelay, Metadata, Millis, Name, OwnerName, Permits, Principal,
    Reason, RequestNumber, SecretHash, SessionId, Ttl, Value,
};

/// One log entry. Its parts take effect in the order of the fields (rule `within-an-entry`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Makes this version the active one, unless a newer one is active already. Set by the leader once every member knows
    /// the version; no client and no administrator can ask for it.
    pub raise_to: Option<FormatVersion>,
    /// Set by a new leader in its first entry. Lifts the deadlines of leases that could not be renewed during the fail-over.
    pub failover_grace: bool,
    /// Keep-alives and attaches.
    pub renewals: Vec<Renewal>,
    /// All other commands, in their order.
    pub operations: Vec<Operation>,
}

/// What renews a session and everything that it holds. No other command renews.
#[derive(Clone, Debug, PartialEq)]
pub enum Renewal {
    /// The client is alive.
    KeepAlive {
        /// The session to renew.
        session: SessionId,
        /// The epoch of the connection that sent it.
        epoch: Epoch,
        /// The answers that the client has seen.
        seen: Seen,
    },
    /// Another connection takes the session over.
    Attach {
        /// The session to take over.
        session: SessionId,
        /// The SHA-256 of the secret that the client showed.
        secret_hash: SecretHash,
        /// The answers that the client has seen.
        seen: Seen,
    },
}

/// The request numbers whose answers a client has seen, so that the session can forget those answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// All numbers up to and including this one.
    pub mark: u64,
    /// Ranges of numbers above the mark: first and last number, both included.
    pub ranges: SmallVec<[(u64, u64); 1]>,
}

/// A command that is not a renewal.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Opens a session. A repeat with the same id and secret gets the same answer.
    Open(Open),
    /// A session's request, applied exactly once.
    Request(Request),
    /// An administrator's act. It can be repeated safely: it names its grant, session, freeze or limit.
    Admin(Admin),
    /// The operation of the made-up version: sets the remark.
    #[cfg(feature = "made-up-version")]
    MadeUp(Reason),
}

/// Opens a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// Its id: 128 random bits, drawn by the client.
    pub session: SessionId,
    /// The hash of its secret. A later attach must show the same one.
    pub secret_hash: SecretHash,
    /// The authenticated principal that owns the session.
    pub principal: Principal,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// Text for people: client name, host, pid, version, labels.
    pub metadata: Metadata,
}

/// A request of a session that may change something.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The session that asks.
    pub session: SessionId,
    /// The epoch of the connection that sent it.
    pub epoch: Epoch,
    /// The session's number for the request. A repeat carries the same number.
    pub number: RequestNumber,
    /// The answers that the client has seen.
    pub seen: Seen,
    /// What the session asks for.
    pub action: Action,
}

/// What a session can ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Locks on one resource, or on several at once.
    Acquire(Acquire),
    /// Permits of a semaphore.
    TakePermits(TakePermits),
    /// Ends the wait of another request of the session. If that request has not arrived, makes its number void.
    Cancel {
        /// The number of the request to cancel.
        request: RequestNumber,
        /// If the request was granted already, gives one count of that grant back.
        release_if_granted: bool,
    },
    /// Gives one count of a grant back; the last count ends it.
    Release {
        /// The grant.
        grant: GrantId,
        /// How the attempt at the grant's job went. Only for a grant with a job key.
        report: Option<Box<JobReport>>,
    },
    /// Begins an attempt at the grant's job. Counts once for each grant.
    Begin {
        /// The grant.
        grant: GrantId,
    },
    /// Stores how far the grant's job has come. Begins the attempt, if it was not begun.
    Checkpoint {
        /// The grant.
        grant: GrantId,
        /// What the next attempt reads.
        bytes: JobBytes,
    },
    /// Moves the end of a grant's `max_hold`.
    Extend {
        /// The grant.
        grant: GrantId,
        /// The time from this entry to the new end.
        max_hold: Millis,
    },
    /// Changes the mode of one resource of a grant. A weaker mode takes effect at once, a stronger one when no other holder
    /// conflicts with it.
    Convert {
        /// The grant.
        grant: GrantId,
        /// The resource.
        name: Name,
        /// The new mode.
        mode: LockMode,
        /// How long to wait for a stronger mode.
        wait: Wait,
    },
    /// Sets the value of an election.
    SetValue {
        /// The election's grant: an exclusive lock on one resource.
        grant: GrantId,
        /// The new value, for observers.
        value: Value,
    },
    /// Ends the session.
    Close,
}

/// A request for locks.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    /// One to 64 locks, all granted together or none.
    pub locks: Locks,
    /// The unit of work that will own the locks. A request without an owner name is an owner of its own.
    pub owner: Option<OwnerName>,
    /// How long to wait.
    pub wait: Wait,
    /// The terms of the grant.
    pub terms: Terms,
}

/// Resources with their modes. One resource, the usual case, needs no allocation.
pub type Locks = SmallVec<[Lock; 1]>;

/// A resource and the mode of the lock on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// The resource.
    pub name: Name,
    /// The mode.
    pub mode: LockMode,
}

/// A request for permits of a semaphore.
#[derive(Clone, Debug, PartialEq)]
pub struct TakePermits {
    /// The semaphore.
    pub name: Name,
    /// How many permits.
    pub permits: Permits,
    /// The limit that the caller expects. Required if the semaphore has no limit yet. The request is refused if the
    /// semaphore has another limit.
    pub limit: Option<Permits>,
    /// How long to wait.
    pub wait: Wait,
    /// The terms of the grant.
    pub terms: Terms,
}

/// How long a request waits, in logical time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Not at all: a request that cannot be granted is answered *busy*.
    No,
    /// At most this long. Zero is the same as [`Wait::No`].
    UpTo(Millis),
    /// Without a limit: until it is granted, cancelled or refused, or the session ends.
    Forever,
}

/// The terms of a grant: all that a caller can choose besides locks, owner and wait. Most locks have the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// A time to live of its own, besides the session's. The session's keep-alives renew it, too.
    pub ttl: Option<Ttl>,
    /// Ends the grant this long after it was granted, even if its client is alive.
    pub max_hold: Option<Millis>,
    /// How long the grant rests after an involuntary end: its resources stay busy for that time.
    pub lock_delay: LockDelay,
    /// Whether the holder is told when a conflicting request begins to wait.
    pub hear_contended: bool,
    /// Text for people who ask who holds the lock.
    pub metadata: Metadata,
    /// The value of the election, set together with the grant.
    pub value: Option<Value>,
    /// The job that the lock is for. Only for an exclusive lock on one resource.
    pub job: Option<JobTerms>,
}

/// The job that a lock is for. The name of the job is the name of the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobTerms {
    /// Its key.
    pub key: JobKey,
    /// How long its record is kept after the end of its last grant.
    pub keep: Keep,
}

/// What a holder says about its job when it releases the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobReport {
    /// How the attempt went.
    pub verdict: Verdict,
    /// The result, or the text of the error.
    pub bytes: JobBytes,
}

/// How an attempt at a job went. Only the first two complete the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The job is done.
    Succeeded,
    /// The job has failed for good.
    Failed,
    /// The attempt has failed, and the job stays open for another one.
    Open,
}

/// An administrator's act, with its author and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// The administrator.
    pub by: Principal,
    /// The reason.
    pub reason: Reason,
    /// The act.
    pub act: Act,
}

/// What an administrator can do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Ends a grant with all its counts. The old holder is told but not stopped: only fencing stops its writes.
    Break {
        /// The grant, by id, so that a repeat cannot hit the next holder.
        grant: GrantId,
    },
    /// Ends a session. Its client may open another one.
    Evict {
        /// The session.
        session: SessionId,
    },
    /// Ends a rest early.
    WaiveRest {
        /// The id of the grant that rests.
        grant: GrantId,
    },
    /// Makes new grants and upgrades wait.
    Freeze {
        /// The id of the freeze, drawn by the caller.
        freeze: FreezeId,
        /// The names that are frozen.
        scope: Scope,
    },
    /// Ends one freeze.
    Thaw {
        /// The freeze.
        freeze: FreezeId,
    },
    /// Sets, changes or takes away the limit of a semaphore. A name with such a limit stays a semaphore when it is not in
    /// use.
    SetLimit {
        /// The semaphore.
        name: Name,
        /// The new limit; `None` takes it away.
        limit: Option<Permits>,
    },
    /// Completes a job as succeeded, so that no attempt begins any more. Breaks its holder.
    CompleteJob {
        /// The job's name.
        name: Name,
        /// The job's key.
        key: JobKey,
        /// How long the record is kept, if the job is not held.
        keep: Keep,
    },
    /// Forgets a job that is not held, so that it runs again.
    ForgetJob {
        /// The job's name.
        name: Name,
        /// The job's key.
        key: JobKey,
    },
    /// Allows acquires with a job key again, after a backup was restored.
    AllowJobs,
}

/// The names that a freeze covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One name.
    Name(Name),
    /// Every name that begins with these bytes. An empty prefix covers every name.
    Prefix(Box<[u8]>),
}
