//! What `apply` returns: the reply to each command, pushes to sessions, and events for watchers.
//!
//! This file holds the types; `announce.rs` fills pushes and events. A refusal is data like every other outcome. Its text
//! says what was expected and what to do next.

use smallvec::SmallVec;

use crate::bounds::Bound;
use crate::command::Locks;
use crate::event::Event;
use crate::format_version::FormatVersion;
use crate::mode::Mode;
use crate::words::{
    Arrival, BadWord, Epoch, GrantId, JobKey, LogicalMs, Name, OwnerName, Permits, RequestNumber, SessionId, Token,
    ToldReason,
};

/// Everything that one entry caused. Each list is in the order in which things happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Exactly one reply for every renewal, then for every operation of the batch, in their order.
    pub replies: Vec<Reply>,
    /// Messages to sessions, besides the replies to this batch.
    pub pushes: Vec<Push>,
    /// Events for watchers. An event's ordinal is its index in this list.
    pub events: Vec<Event>,
    /// How long each request waited that was granted from a queue, in milliseconds of logical time. For metrics.
    pub waited_ms: SmallVec<[u64; 4]>,
}

/// The answer to one renewal or operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The renewal or operation that it answers.
    pub to: ReplyTo,
    /// The result.
    pub outcome: Outcome,
    /// Set if the request was answered before. Then `outcome` is the old answer.
    pub repeat: Option<Repeat>,
}

/// Which part of the batch a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyTo {
    /// `batch.renewals[i]`
    Renewal(usize),
    /// `batch.operations[i]`
    Operation(usize),
}

/// What a repeat is told besides the old answer. A client must not compute a deadline from such a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The stamp of the entry that decided the old answer.
    pub answered_at: LogicalMs,
    /// Whether the grant of the old answer still stands. False for an answer without a grant.
    pub stands: bool,
}

/// A message to a session that is not a reply. It goes to the connection that the session has now.
#[derive(Clone, Debug, PartialEq)]
pub enum Push {
    /// The wait of a request ended, with or without a grant.
    Ended {
        /// The session.
        session: SessionId,
        /// The number of the request.
        number: RequestNumber,
        /// How it ended.
        outcome: Outcome,
    },
    /// A grant ended against its holder's will while the session lives on.
    Lost {
        /// The session that held it.
        session: SessionId,
        /// The grant.
        grant: GrantId,
        /// How it ended.
        how: GrantEnd,
    },
    /// A request that conflicts with the grant began to wait, and the holder had asked to be told.
    Contended {
        /// The session that holds the grant.
        session: SessionId,
        /// The grant.
        grant: GrantId,
    },
    /// The session ended, with everything that it held and waited for.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// How it ended.
        how: SessionEnd,
    },
}

/// The result of a command: one flat list for all kinds of commands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The session is open.
    Opened {
        /// The epoch of the connection that opened it.
        epoch: Epoch,
    },
    /// The session was renewed, with everything that it holds.
    Renewed,
    /// This connection has taken the session over.
    Attached(Box<Attached>),
    /// The session is closed.
    Closed,

    /// The lock or the permits are held.
    Granted {
        /// The grant's id, for release, extend and convert.
        grant: GrantId,
        /// Its fencing token. Permits have one too, but it fences nothing.
        token: Token,
        /// How many times the grant is entered now. Above one only after a re-entry.
        count: u32,
    },
    /// The request waits. A push will say how the wait ended.
    Queued {
        /// Its place in the order of the whole group.
        arrival: Arrival,
        /// The deadlock search gave up, so the wait may be part of a cycle.
        unchecked: bool,
    },
    /// The request cannot be granted now and would not wait.
    Busy(Box<Busy>),
    /// The wait reached its time limit.
    TimedOut,
    /// The wait was cancelled, or the request was cancelled before it arrived.
    Cancelled,
    /// The request would close, or its wait has closed, a cycle of owners that wait for each other.
    Deadlock(Box<Cycle>),
    /// The session ended during the wait.
    SessionEnded(SessionEnd),
    /// The grant ended during the wait for its conversion.
    GrantEnded(GrantEnd),

    /// The grant has the requested mode.
    Converted {
        /// The grant.
        grant: GrantId,
        /// Its token: a new one if the mode became stronger.
        token: Token,
    },

    /// The job is completed: nothing is granted for it any more. Also the answer to the release that completed it.
    Completed {
        /// The token of the grant that completed it. `None` if an administrator did.
        token: Option<Token>,
        /// Whether it succeeded. Otherwise it has failed for good.
        succeeded: bool,
    },
    /// The attempt at the job has begun, now or before.
    Begun {
        /// Its number, counted from one.
        attempt: u64,
    },
    /// The checkpoint is stored.
    Checkpointed {
        /// The number of the attempt that stored it.
        attempt: u64,
    },

    /// One count of the grant was given back.
    Released {
        /// How many times the grant is still entered. Zero means that the grant has ended.
        count_left: u32,
    },
    /// The grant belongs to another session, is older than this session, or never existed.
    NotOwner,
    /// The session has already given this grant back.
    AlreadyReleased,
    /// The grant ended against its holder's will.
    Expired(GrantEnd),
    /// The end of the grant's `max_hold` was moved.
    Extended {
        /// The new end.
        until: LogicalMs,
    },
    /// The election's value is set.
    ValueSet,
    /// The cancel came after the answer. It changed nothing.
    CancelTooLate(Late),
    /// The cancel came after the grant and gave one count of it back.
    CancelReleased {
        /// The grant.
        grant: GrantId,
        /// How many times the grant is still entered.
        count_left: u32,
    },

    /// The administrator's act took effect, now or before.
    Done,
    /// What the administrator named does not exist: it has ended, or it never existed.
    NotFound,

    /// The command was refused, for this reason.
    Refused(Refusal),
}

/// What happened to a request before its cancel came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Late {
    /// It was granted.
    Granted {
        /// The grant.
        grant: GrantId,
        /// Whether the grant still stands.
        stands: bool,
    },
    /// It was a conversion and took effect.
    Converted {
        /// The grant.
        grant: GrantId,
        /// Whether the grant still stands.
        stands: bool,
    },
    /// It ended without a grant, or was not a request for one.
    Ended,
}

/// Why a command was refused. A refused command changes neither grants nor waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// There is no living session with this id.
    #[error("the session has ended or never existed: open a new one")]
    NoSession,
    /// Another session has this id.
    #[error("another session has this id: draw a new one")]
    SessionExists,
    /// The secret does not match.
    #[error("the secret does not belong to this session")]
    WrongSecret,
    /// Another connection has taken the session over.
    #[error("the session was attached elsewhere (epoch {}): this connection must stop", current.0)]
    WrongEpoch {
        /// The session's current epoch. Only its connection may act.
        current: Epoch,
    },
    /// The client has acknowledged the answer to this number, so it is forgotten.
    #[error("the answer to this request number was seen before: use a new number")]
    AlreadySeen,
    /// The message acknowledges the answer of a request that still waits.
    #[error("request {} still waits, so its answer cannot have been seen", .0.0)]
    SeenWhileWaiting(RequestNumber),
    /// A bound was reached.
    #[error("{0}")]
    Bound(Bound),
    /// A name, number or duration in the command is invalid.
    #[error("{0}")]
    BadWord(BadWord),
    /// A request number is zero, or a range of seen request numbers is empty or begins at zero.
    #[error("request numbers count from 1, and a range of seen request numbers is not empty")]
    BadNumber,
    /// A cancel names itself.
    #[error("a request cannot cancel itself")]
    CancelsItself,
    /// A request names a resource twice.
    #[error("{0} is named twice in one request")]
    NamedTwice(Name),
    /// The owner already waits for another request.
    #[error("this owner already waits for a request: wait for it or cancel it first")]
    OwnerWaits,
    /// The owner already holds the resource in a weaker mode.
    #[error("this owner holds {name} already in a weaker mode (grant {}): upgrade that grant", grant.0)]
    UseUpgrade {
        /// The resource.
        name: Name,
        /// The grant to upgrade.
        grant: GrantId,
    },
    /// A multi-lock names a resource that its owner already holds.
    #[error("this owner holds {name} already (grant {}): leave it out of the multi-lock", grant.0)]
    AlreadyHeld {
        /// The resource.
        name: Name,
        /// The grant that holds the resource or covers it.
        grant: GrantId,
    },
    /// The grant has been entered more than once.
    #[error("the grant has been entered more than once: release the inner entries first")]
    CountAboveOne,
    /// The grant does not hold this name.
    #[error("the grant does not hold {0}")]
    NotInGrant(Name),
    /// Another owner holds the resource for update or waits to upgrade there.
    #[error("another owner holds {0} for update or waits to upgrade there: release and acquire in update mode")]
    UpgradeConflict(Name),
    /// The grant holds permits, not locks.
    #[error("the permits of a semaphore have no mode to convert and no election value: only locks have them")]
    NotALock,
    /// The lock is not an election: only an exclusive lock on one resource is.
    #[error("only an exclusive lock on one resource carries a value")]
    NotAnElection,
    /// The grant has no `max_hold`.
    #[error("the grant has no max-hold to extend: it lives as long as its session renews it")]
    NothingToExtend,
    /// A lock was requested on a name that is a semaphore.
    #[error("{0} is a semaphore: take permits of it")]
    IsSemaphore(Name),
    /// Permits were requested of a name that is in use as a lock.
    #[error("{0} is in use as a lock: it cannot be a semaphore at the same time")]
    IsLock(Name),
    /// A path cannot be a semaphore.
    #[error("{0} is a path: a semaphore takes no part in a hierarchy, so its name cannot begin with '/'")]
    PathSemaphore(Name),
    /// The semaphore has no limit yet, and the request names none.
    #[error("{0} has no limit: say one with the request, or let an administrator set it")]
    NoLimit(Name),
    /// The request expects another limit than the semaphore has.
    #[error("{name} has the limit {}", live.get())]
    LimitDiffers {
        /// The semaphore.
        name: Name,
        /// The limit in force.
        live: Permits,
    },
    /// The request wants more permits than the limit.
    #[error("{name} has only {} permits in all", limit.get())]
    MoreThanLimit {
        /// The semaphore.
        name: Name,
        /// The limit in force.
        limit: Permits,
    },
    /// While the request waited, an administrator lowered the limit below what it wants.
    #[error("an administrator lowered the limit of {name} to {}{reason}", limit.get())]
    LimitLowered {
        /// The semaphore.
        name: Name,
        /// The limit in force.
        limit: Permits,
        /// What the administrator gave as the reason.
        reason: ToldReason,
    },
    /// A job key with anything but an exclusive lock on one resource.
    #[error("only an exclusive lock on one name carries a job key: leave the key out, or lock that name alone")]
    KeyNeedsExclusive,
    /// A keyed acquire of an owner that holds the resource already.
    #[error("this owner holds {name} already (grant {}), and a job has a grant of its own: release that one first", grant.0)]
    KeyedReentry {
        /// The resource.
        name: Name,
        /// The grant that holds the resource or covers it.
        grant: GrantId,
    },
    /// A conversion of a keyed grant.
    #[error("the grant is for a job: its mode cannot be changed")]
    KeyedGrant,
    /// The grant is for no job.
    #[error("the grant is for no job: acquire it with a job key")]
    NoJob,
    /// The group was restored from a backup, and no administrator has allowed jobs since.
    #[error(
        "jobs are refused, because this cluster was restored from a backup and may have forgotten completions: \
         an operator allows them again with `fencepost job allow`"
    )]
    JobsNotAllowed,
    /// The job to forget is held.
    #[error("the job is held (grant {}): break that grant first", grant.0)]
    JobHeld {
        /// The grant.
        grant: GrantId,
    },
    /// A freeze with this id and another scope exists.
    #[error("another freeze has this id: draw a new one")]
    FreezeExists,
    /// The active format version does not have this operation.
    #[error(
        "this needs format version {needs}: not before every node is upgraded; `fencepost members` shows which is not"
    )]
    NotYet {
        /// The oldest version that has the operation.
        needs: FormatVersion,
    },
}

/// What is in the way of a request that would not wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Busy {
    /// The first resource, in name order, where the request is blocked.
    pub name: Name,
    /// Why it is blocked there.
    pub why: BusyWhy,
    /// The holders in the way there, oldest grant first, at most 16.
    pub holders: Vec<Holder>,
    /// The number of all holders in the way there.
    pub holder_count: u32,
}

/// Why a request is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusyWhy {
    /// The name is frozen.
    Frozen,
    /// Another owner holds it in a conflicting mode, or too few permits are left.
    Held,
    /// Only rests are in the way: grants that ended involuntarily.
    Resting,
    /// No holder is in the way, but an earlier conflicting request waits.
    Queued,
}

/// A grant on a resource, or the rest of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The id of the grant.
    pub grant: GrantId,
    /// What it takes of this resource.
    pub takes: Takes,
    /// Its token.
    pub token: Token,
    /// When it was granted; for a rest, when the grant ended.
    pub since: LogicalMs,
    /// The session that holds it; `None` for a rest.
    pub session: Option<SessionId>,
    /// The owner's name, if it has one.
    pub owner: Option<OwnerName>,
}

/// What a grant takes, or a request wants, of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Takes {
    /// A mode.
    Mode(Mode),
    /// Permits.
    Permits(Permits),
}

/// A cycle of owners: each waits for the next, and the last for the first. The first link is the request that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cycle {
    /// The owners on the cycle.
    pub links: Vec<CycleLink>,
}

/// One owner on a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CycleLink {
    /// Its session.
    pub session: SessionId,
    /// Its name; `None` for a request that is an owner of its own.
    pub owner: Option<OwnerName>,
    /// Its waiting request.
    pub number: RequestNumber,
    /// The resource where it waits for the next owner.
    pub waits_for: Name,
    /// The mode that it wants there.
    pub wants: Mode,
    /// The grant of the next owner there; `None` if the next owner only waits there, ahead of this one.
    pub blocked_by: Option<GrantId>,
}

/// The state of a session, as an attach reports it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attached {
    /// The epoch of this connection. Connections with older epochs may no longer act.
    pub epoch: Epoch,
    /// The grants that it holds, by grant id.
    pub grants: Vec<AttachedGrant>,
    /// The requests that wait, by request number.
    pub waits: Vec<AttachedWait>,
    /// The answers that the client has not acknowledged, by request number.
    pub unseen: Vec<UnseenAnswer>,
    /// The grants that it lost, by grant id. The client may not know of them.
    pub lost: Vec<(GrantId, GrantEnd)>,
}

/// A grant that an attached session holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachedGrant {
    /// Its id.
    pub grant: GrantId,
    /// Its token.
    pub token: Token,
    /// How many times it is entered.
    pub count: u32,
    /// What it holds.
    pub held: Held,
    /// The job that it is for.
    pub job: Option<AttachedJob>,
}

/// The job of a grant that an attached session holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachedJob {
    /// Its key.
    pub key: JobKey,
    /// The number of the attempt that this grant has begun. `None` if it has begun none.
    pub attempt: Option<u64>,
}

/// A request of an attached session that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachedWait {
    /// Its number.
    pub number: RequestNumber,
    /// Its place in the order of the whole group.
    pub arrival: Arrival,
    /// The key of the job that it is for.
    pub job_key: Option<JobKey>,
}

/// What a grant holds: locks or permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Locks, in their present modes.
    Locks(Locks),
    /// Permits of a semaphore.
    Permits {
        /// The semaphore.
        name: Name,
        /// How many permits.
        permits: Permits,
    },
}

/// An answer that the client has not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnseenAnswer {
    /// The request.
    pub number: RequestNumber,
    /// The stamp of the entry that decided it.
    pub answered_at: LogicalMs,
    /// The answer.
    pub outcome: Outcome,
    /// Whether its grant still stands.
    pub stands: bool,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was not renewed within its TTL.
    Expired,
    /// An administrator evicted it, for this reason.
    Evicted(ToldReason),
    /// A backup was restored, which keeps no session.
    Restored,
}

/// How a grant ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GrantEnd {
    /// Its holder released it.
    Released,
    /// Its session ended.
    Session(SessionEnd),
    /// It was not renewed within its own TTL.
    Ttl,
    /// It reached its `max_hold`.
    MaxHold,
    /// An administrator broke it, for this reason.
    Broken(ToldReason),
}

impl GrantEnd {
    /// Whether the grant ended against its holder's will. Only then does its lock delay apply.
    // Rule: lock-delay
    pub fn involuntary(&self) -> bool {
        !matches!(self, GrantEnd::Released | GrantEnd::Session(SessionEnd::Closed))
    }
}
