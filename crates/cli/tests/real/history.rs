//! The history of one run: the requests and answers of every client, the cluster's own event log, and the decisions of the fenced
//! store. All instants are nanoseconds of one clock, from the start of the run.
//!
//! These types do not use those of the library, so that tests of the checker can write histories by hand.

use std::collections::BTreeMap;

/// Nanoseconds since the run began.
pub(crate) type Instant = u64;

/// One run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The cluster's events, in the order in which they were watched.
    pub(crate) events: Vec<LogEvent>,
    /// The same events, read once more at the end, from each node that has them all.
    pub(crate) replayed: Vec<Vec<LogEvent>>,
    pub(crate) asks: Vec<Ask>,
    pub(crate) holds: Vec<Hold>,
    pub(crate) stalls: Vec<Stall>,
    pub(crate) samples: Vec<Sample>,
    /// The store's own record, in the order of its transactions.
    pub(crate) attempts: Vec<Attempt>,
    /// The grants that are held at the end, by a linearizable read.
    pub(crate) grants_at_end: Vec<u64>,
    /// How many permits each semaphore has.
    pub(crate) limits: BTreeMap<String, u32>,
}

/// The mode in which a resource is taken. A stronger mode is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Shared,
    Update,
    Exclusive,
    /// This many permits. They conflict with no other mode; they are counted.
    Permits(u32),
}

/// What one grant takes, by name.
pub(crate) type Taken = Vec<(String, Mode)>;

impl Mode {
    pub(crate) fn permits(self) -> u32 {
        match self {
            Mode::Permits(permits) => permits,
            _ => 0,
        }
    }

    /// Whether both modes can be held at the same time.
    // Rule: exclusion
    pub(crate) fn goes_with(self, other: Mode) -> bool {
        !matches!((self, other), (Mode::Exclusive, _) | (_, Mode::Exclusive) | (Mode::Update, Mode::Update))
    }
}

/// An event of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogEvent {
    pub(crate) index: u64,
    pub(crate) ordinal: u32,
    pub(crate) stamp_ms: u64,
    /// When the watcher received it. It happened before that.
    pub(crate) seen_at: Instant,
    pub(crate) what: What,
}

/// A request: the session, and the number that the session gave it.
pub(crate) type Request = (u128, u64);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    SessionOpened { session: u128 },
    SessionEnded { session: u128, expired: bool },
    Queued { request: Request, converts: Option<u64> },
    Granted { request: Request, taken: Taken, grant: u64, token: u64 },
    NotGranted { request: Request },
    Converted { grant: u64, token: u64, mode: Mode },
    Ended { grant: u64, session: u128, how: End },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    /// With its session.
    Session,
    /// At its own TTL.
    Ttl,
    Other,
}

/// A request of a client, and the answer.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "the client's name is only printed with a violation")]
pub(crate) struct Ask {
    pub(crate) client: String,
    pub(crate) session: u128,
    pub(crate) what: LockOperation,
    pub(crate) asked_at: Instant,
    pub(crate) answered_at: Instant,
    pub(crate) answer: Answer,
}

/// What a client asks the cluster for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockOperation {
    Acquire(Taken),
    /// To a stronger mode, or to a weaker one.
    Convert {
        grant: u64,
        mode: Mode,
    },
    Release {
        grant: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Granted {
        grant: u64,
        token: u64,
    },
    Released,
    /// Refused, and nothing was changed.
    Refused(String),
    /// Not done, and never will be.
    Failed(String),
    /// Granted too late to be used. The client gave it back.
    TooLate,
    Unknown(String),
}

/// What a client believed that it held. One entry for each name.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "the client's name is only printed with a violation")]
pub(crate) struct Hold {
    pub(crate) client: String,
    pub(crate) session: u128,
    pub(crate) resource: String,
    pub(crate) mode: Mode,
    pub(crate) grant: u64,
    pub(crate) token: u64,
    /// When the client learnt of the grant.
    pub(crate) from: Instant,
    /// The latest instant for which the SDK said that the lock is certainly held.
    pub(crate) believed_until: Instant,
    /// When the client began to release or convert the lock, if it did.
    pub(crate) gave_up_at: Option<Instant>,
}

impl Hold {
    /// The instant up to which its holder relied on it.
    pub(crate) fn until(&self) -> Instant {
        self.gave_up_at.map_or(self.believed_until, |gave_up| gave_up.min(self.believed_until))
    }
}

/// A time during which a client's whole runtime stood still, with its keep-alives.
#[derive(Clone, Debug)]
pub(crate) struct Stall {
    pub(crate) session: u128,
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

/// What ends if the client does not renew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    Session(u128),
    /// A grant with a TTL of its own.
    Grant(u64),
}

/// A lease as a linearizable read showed it.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) asked_at: Instant,
    pub(crate) lease: Lease,
    pub(crate) ttl_ms: u64,
    pub(crate) renewed_ms: u64,
    pub(crate) deadline_ms: u64,
    pub(crate) stamp_ms: u64,
    pub(crate) term: u64,
}

/// An access to the store with a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) resource: String,
    pub(crate) token: u64,
    pub(crate) kind: Kind,
    pub(crate) accepted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Raises the floor and reads.
    Claim,
    /// Writes this number, which is the number that was read plus one.
    Write(i64),
    /// Writes without a read before. Only the store's decision counts.
    Late,
}
