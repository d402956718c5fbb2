//! What may be put in the log: one [`Batch`] an entry, and everything that it can ask for.
//!
//! A command is plain data, valid by type as far as types can say it. It carries no wall clock and no secret.

use smallvec::SmallVec;

use crate::format_version::FormatVersion;
use crate::mode::LockMode;
use crate::words::{
    Epoch, FreezeId, GrantId, LockDelay, Metadata, Millis, Name, OwnerName, Permits, Principal, Reason, RequestNumber,
    SecretHash, SessionId, Ttl, Value,
};

/// One log entry. Its parts take effect in the order of these fields (rule `within-an-entry`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Set by a leader that knows that every member knows this version: from here on it is the active one, unless a newer one
    /// is. No client and no administrator can ask for it.
    pub raise_to: Option<FormatVersion>,
    /// Set by a new leader in its first entry: lifts deadlines that the fail-over may have eaten.
    pub failover_grace: bool,
    /// Signs of life.
    pub renewals: Vec<Renewal>,
    /// Everything else, in order.
    pub operations: Vec<Operation>,
}

/// A sign of life from a session. Nothing else renews.
#[derive(Clone, Debug, PartialEq)]
pub enum Renewal {
    /// The session lives, and all that it holds with it.
    KeepAlive {
        /// Whose sign of life.
        session: SessionId,
        /// The epoch of the connection it came from.
        epoch: Epoch,
        /// Which answers the client has seen.
        seen: Seen,
    },
    /// The session goes on from another connection.
    Attach {
        /// Which session.
        session: SessionId,
        /// The SHA-256 of the secret that was presented.
        secret_hash: SecretHash,
        /// Which answers the client has seen.
        seen: Seen,
    },
}

/// Which answers a client has seen: every number up to the mark, and ranges above it, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Every number up to this one.
    pub mark: u64,
    /// Numbers above the mark: first and last of each range.
    pub ranges: SmallVec<[(u64, u64); 1]>,
}

/// A command that is not a sign of life.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Opens a session. A repeat with the same id and secret gets the same answer.
    Open(Open),
    /// A session's own request, applied exactly once.
    Request(Request),
    /// An administrator's act. Each is its own repeat: it names a grant, a session, a freeze or a number.
    Admin(Admin),
    /// An operation of the made-up version: sets the remark.
    #[cfg(feature = "made-up-version")]
    MadeUp(Reason),
}

/// Opens a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// 128 random bits.
    pub session: SessionId,
    /// What a later attach must match.
    pub secret_hash: SecretHash,
    /// Whose session it is.
    pub principal: Principal,
    /// How long it lives without a sign of life.
    pub ttl: Ttl,
    /// Client name, host, pid, version, labels.
    pub metadata: Metadata,
}

/// A changing request of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Who asks.
    pub session: SessionId,
    /// The epoch of the connection it came from.
    pub epoch: Epoch,
    /// The session's number for it; a repeat carries the same.
    pub number: RequestNumber,
    /// Which answers the client has seen.
    pub seen: Seen,
    /// What is asked.
    pub action: Action,
}

/// What a session can ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Locks on one resource or several at once.
    Acquire(Acquire),
    /// Permits of a semaphore.
    TakePermits(TakePermits),
    /// Ends the wait of an earlier request, or takes its number if it has not arrived.
    Cancel {
        /// The number of the request to cancel.
        request: RequestNumber,
        /// If it was granted already, give that grant back (one count).
        release_if_granted: bool,
    },
    /// Gives a grant back (one count).
    Release {
        /// Which.
        grant: GrantId,
    },
    /// Moves the end of a grant's `max_hold` to that long from now.
    Extend {
        /// Which.
        grant: GrantId,
        /// The new time from now.
        max_hold: Millis,
    },
    /// Changes the mode of one resource of a grant: weaker at once, stronger when the other holders allow it.
    Convert {
        /// Which.
        grant: GrantId,
        /// The resource in it.
        name: Name,
        /// The mode it should have.
        mode: LockMode,
        /// How long to wait for a stronger one.
        wait: Wait,
    },
    /// Sets the value of an election.
    SetValue {
        /// The exclusive grant that is the election.
        grant: GrantId,
        /// What observers see.
        value: Value,
    },
    /// Ends the session by its own will.
    Close,
}

/// A request for locks.
#[derive(Clone, Debug, PartialEq)]
pub struct Acquire {
    /// One lock, or up to 64 of them that are granted together or not at all.
    pub locks: Locks,
    /// The unit of work that will own them; without a name this request is an owner of its own.
    pub owner: Option<OwnerName>,
    /// How long to wait.
    pub wait: Wait,
    /// What the grant will be like.
    pub terms: Terms,
}

/// Resources with the modes asked for. One is the usual case and needs no allocation.
pub type Locks = SmallVec<[Lock; 1]>;

/// A resource with the mode asked for.
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
    /// How many.
    pub permits: Permits,
    /// The limit that the caller believes in. Needed when no limit is known; refused when it is another than the live one.
    pub limit: Option<Permits>,
    /// How long to wait.
    pub wait: Wait,
    /// What the grant will be like.
    pub terms: Terms,
}

/// How long a request waits, in logical time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Try: busy comes back at once.
    No,
    /// So long. Zero is the same as [`Wait::No`].
    UpTo(Millis),
    /// Until it is granted, cancelled, refused, or the session ends.
    Forever,
}

/// What a grant will be like, beyond who holds what. The default is what most locks have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// A time to live of its own, renewed by the session's keep-alives.
    pub ttl: Option<Ttl>,
    /// Ends the grant that long after it was granted, however alive its client is.
    pub max_hold: Option<Millis>,
    /// How long the resource rests after an involuntary end.
    pub lock_delay: LockDelay,
    /// Whether the holder wants to hear when somebody it conflicts with begins to wait.
    pub hear_contended: bool,
    /// For people who ask who holds the lock.
    pub metadata: Metadata,
    /// The election's value from the first moment on.
    pub value: Option<Value>,
}

/// An administrator's act, with who and why for the audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Admin {
    /// Who acts.
    pub by: Principal,
    /// Why.
    pub reason: Reason,
    /// What is done.
    pub act: Act,
}

/// What an administrator can do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Ends a grant, whole. The old holder is told, not stopped: only fencing stops its writes.
    Break {
        /// By id, so that a repeat cannot hit the successor.
        grant: GrantId,
    },
    /// Ends a session. It may open another.
    Evict {
        /// Which.
        session: SessionId,
    },
    /// Ends a rest early.
    WaiveRest {
        /// The id of the grant that rests.
        grant: GrantId,
    },
    /// Lets new grants and upgrades wait.
    Freeze {
        /// Drawn by the caller.
        freeze: FreezeId,
        /// What is frozen.
        scope: Scope,
    },
    /// Ends one freeze.
    Thaw {
        /// Which.
        freeze: FreezeId,
    },
    /// Makes a name a semaphore for good, changes its limit, or takes the limit away.
    SetLimit {
        /// The semaphore.
        name: Name,
        /// The limit, or none.
        limit: Option<Permits>,
    },
}

/// What a freeze covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One name.
    Name(Name),
    /// Every name that begins with these bytes; the empty prefix is every name.
    Prefix(Box<[u8]>),
}
