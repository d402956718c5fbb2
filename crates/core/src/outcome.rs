//! What comes out of `apply`: the answer to each command, what sessions are told unasked, and the facts for the event log.
//!
//! A refusal is data like every other outcome. Its text says what was expected and what to do next.

use crate::bounds::Bound;
use crate::command::Locks;
use crate::event::Event;
use crate::format_version::FormatVersion;
use crate::mode::Mode;
use crate::words::{
    Arrival, BadWord, Epoch, GrantId, LogicalMs, Name, OwnerName, Permits, RequestNumber, SessionId, Token,
};

/// Everything that one entry caused, in the order in which it happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// Exactly one for every renewal and operation of the batch, in their order.
    pub replies: Vec<Reply>,
    /// What sessions are told beyond the replies to this batch.
    pub pushes: Vec<Push>,
    /// Facts for watchers. An event's ordinal is its place in this list.
    pub events: Vec<Event>,
}

/// The answer to one renewal or operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Which one.
    pub to: ReplyTo,
    /// What came of it.
    pub outcome: Outcome,
    /// Set if this request was answered before, and `outcome` is what was said then.
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

/// What a repeat is told besides the old answer. It anchors no deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// The stamp of the entry that decided it.
    pub answered_at: LogicalMs,
    /// Whether the grant that the old answer gave still stands; false if it gave none.
    pub stands: bool,
}

/// What a session is told unasked, on whatever connection it has.
#[derive(Clone, Debug, PartialEq)]
pub enum Push {
    /// A request that was queued has ended.
    Ended {
        /// Whose.
        session: SessionId,
        /// Which.
        number: RequestNumber,
        /// How.
        outcome: Outcome,
    },
    /// A grant ended against its holder's will while the session lives on.
    Lost {
        /// Whose.
        session: SessionId,
        /// Which.
        grant: GrantId,
        /// How.
        how: GrantEnd,
    },
    /// Somebody that conflicts with the grant began to wait, and the holder had asked to hear it.
    Contended {
        /// Whose.
        session: SessionId,
        /// Which.
        grant: GrantId,
    },
    /// The session ended, and with it all that it held and waited for.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// How.
        how: SessionEnd,
    },
}

/// What came of a command: one flat list for all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The session is open.
    Opened {
        /// The epoch of the connection that opened it.
        epoch: Epoch,
    },
    /// The session was renewed, with all that it holds.
    Renewed,
    /// The session goes on here.
    Attached(Box<Attached>),
    /// The session is closed.
    Closed,

    /// The lock or the permits are held.
    Granted {
        /// The grant's id, for release, extend and convert.
        grant: GrantId,
        /// Its fencing token. Permits have one too, but it fences nothing.
        token: Token,
        /// How often the grant is entered now; above one only for a re-entry.
        count: u32,
    },
    /// The request waits. A push says how it ends.
    Queued {
        /// Its place in the order of the whole group.
        arrival: Arrival,
        /// The deadlock search gave up, so there may be a cycle.
        unchecked: bool,
    },
    /// Not without waiting.
    Busy(Box<Busy>),
    /// The wait was longer than was asked for.
    TimedOut,
    /// The wait was cancelled, or the request was void before it arrived.
    Cancelled,
    /// The request would have closed a cycle of owners that wait for each other.
    Deadlock(Box<Cycle>),
    /// The session ended during the wait.
    SessionEnded(SessionEnd),
    /// The grant ended during the wait for its conversion.
    GrantEnded(GrantEnd),

    /// The grant has the mode asked for.
    Converted {
        /// Which.
        grant: GrantId,
        /// Its token: risen if the mode became stronger.
        token: Token,
    },

    /// One count was given back.
    Released {
        /// How many are left; zero means that the resource is free of this grant.
        count_left: u32,
    },
    /// The grant belongs to another session, or there never was one.
    NotOwner,
    /// The session has given this grant back before.
    AlreadyReleased,
    /// The grant ended against its holder's will.
    Expired(GrantEnd),
    /// The end of the grant's `max_hold` was moved.
    Extended {
        /// Where to.
        until: LogicalMs,
    },
    /// The election's value is set.
    ValueSet,
    /// A cancel that came after the answer; nothing was changed.
    CancelTooLate(Late),
    /// A cancel that came after the grant, and gave it back.
    CancelReleased {
        /// The grant.
        grant: GrantId,
        /// How many counts it has left.
        count_left: u32,
    },

    /// The administrator's act is done, or was done before.
    Done,
    /// What the administrator named is not there: never was, or no longer.
    NotFound,

    /// Nothing was changed, for this reason.
    Refused(Refusal),
}

/// What a cancel came too late for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Late {
    /// The request was granted.
    Granted {
        /// The grant.
        grant: GrantId,
        /// Whether it still stands.
        stands: bool,
    },
    /// The conversion was made.
    Converted {
        /// The grant.
        grant: GrantId,
        /// Whether it still stands.
        stands: bool,
    },
    /// The request had ended without a grant, or was none that waits.
    Ended,
}

/// Why a command was refused. It changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// No such session lives.
    #[error("the session has ended or never was: open a new one")]
    NoSession,
    /// The session id is taken.
    #[error("another session has this id: draw a new one")]
    SessionExists,
    /// The secret does not match.
    #[error("the secret does not belong to this session")]
    WrongSecret,
    /// The session was attached from elsewhere since.
    #[error("the session was attached elsewhere (epoch {}): this connection must stop", current.0)]
    WrongEpoch {
        /// The epoch that may act.
        current: Epoch,
    },
    /// The answer to this number was seen and is forgotten.
    #[error("the answer to this request number was seen before: use a new number")]
    AlreadySeen,
    /// The message claims to have seen the answer of a request that has none yet.
    #[error("request {} still waits, so its answer cannot have been seen", .0.0)]
    SeenWhileWaiting(RequestNumber),
    /// A bound was reached.
    #[error("{0}")]
    Bound(Bound),
    /// Something in the command was no valid word.
    #[error("{0}")]
    BadWord(BadWord),
    /// Request numbers count from one; ranges run upwards.
    #[error("request numbers count from 1 and ranges of seen numbers run upwards")]
    BadNumber,
    /// A cancel named itself.
    #[error("a request cannot cancel itself")]
    CancelsItself,
    /// A request names a resource twice.
    #[error("{0} is named twice in one request")]
    NamedTwice(Name),
    /// The owner already waits.
    #[error("this owner already waits for a request: wait for it or cancel it first")]
    OwnerWaits,
    /// The owner holds the resource in a weaker mode.
    #[error("this owner holds {name} already in a weaker mode (grant {}): upgrade that grant", grant.0)]
    UseUpgrade {
        /// The resource.
        name: Name,
        /// The grant to upgrade.
        grant: GrantId,
    },
    /// A multi-lock names what its owner already holds.
    #[error("this owner holds {name} already (grant {}): leave it out of the multi-lock", grant.0)]
    AlreadyHeld {
        /// The resource.
        name: Name,
        /// The grant that holds or covers it.
        grant: GrantId,
    },
    /// The grant has been entered more than once.
    #[error("the grant has been entered more than once: release the inner entries before changing its mode")]
    CountAboveOne,
    /// The grant does not hold this name.
    #[error("the grant does not hold {0}")]
    NotInGrant(Name),
    /// Another owner means to upgrade, too.
    #[error("another owner holds {0} for update or waits to upgrade there: release and acquire in update mode")]
    UpgradeConflict(Name),
    /// The grant is one of permits.
    #[error("permits have no mode and no value")]
    NotALock,
    /// Only an exclusive lock on one resource is an election.
    #[error("only an exclusive lock on one resource carries a value")]
    NotAnElection,
    /// The grant has no `max_hold`.
    #[error("the grant has no max-hold to extend: it lives as long as its session renews it")]
    NothingToExtend,
    /// The name is a semaphore.
    #[error("{0} is a semaphore: take permits of it")]
    IsSemaphore(Name),
    /// The name is in use as a lock.
    #[error("{0} is in use as a lock: it cannot be a semaphore at the same time")]
    IsLock(Name),
    /// A path cannot be a semaphore.
    #[error("{0} is a path: a semaphore takes no part in a hierarchy, so its name cannot begin with '/'")]
    PathSemaphore(Name),
    /// Nobody has said how many permits there are.
    #[error("{0} has no limit: say one with the request, or let an administrator set it")]
    NoLimit(Name),
    /// The request believes in another limit.
    #[error("{name} has the limit {}", live.get())]
    LimitDiffers {
        /// The semaphore.
        name: Name,
        /// The limit in force.
        live: Permits,
    },
    /// More permits than there will ever be.
    #[error("{name} has only {} permits in all", limit.get())]
    MoreThanLimit {
        /// The semaphore.
        name: Name,
        /// The limit in force.
        limit: Permits,
    },
    /// The freeze id is taken by a freeze of another scope.
    #[error("another freeze has this id: draw a new one")]
    FreezeExists,
    /// The active version does not have what was asked for.
    #[error(
        "this needs format version {needs}: not before every node is upgraded; `fencepost members` shows which is not"
    )]
    NotYet {
        /// The oldest version that has it.
        needs: FormatVersion,
    },
}

/// Who is in the way of a request that would not wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Busy {
    /// The first resource in name order where the request could not pass.
    pub name: Name,
    /// What is in the way there.
    pub why: BusyWhy,
    /// Who is in the way there, oldest grant first, at most 16.
    pub holders: Vec<Holder>,
    /// How many there are in all.
    pub holder_count: u32,
}

/// What is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BusyWhy {
    /// The name is frozen.
    Frozen,
    /// Somebody holds it in a mode that conflicts, or too many permits are out.
    Held,
    /// Nobody holds it any more, but it rests after an involuntary end.
    Resting,
    /// Nobody in the way holds it, but an earlier request that conflicts waits.
    Queued,
}

/// Somebody who holds a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The grant, or what is left of it.
    pub grant: GrantId,
    /// What it takes on this resource.
    pub takes: Takes,
    /// Its token.
    pub token: Token,
    /// Since when.
    pub since: LogicalMs,
    /// Who; none for a rest.
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

/// A cycle of owners, each waiting for the next and the last for the first. The first is the request that was refused.
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
    /// Its name; none for a request that is an owner of its own.
    pub owner: Option<OwnerName>,
    /// The request of it that waits.
    pub number: RequestNumber,
    /// Where it waits for the next owner.
    pub waits_for: Name,
    /// The mode it wants there.
    pub wants: Mode,
    /// What the next owner holds there, or none if it only waits there earlier.
    pub blocked_by: Option<GrantId>,
}

/// What a session finds when it is attached again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attached {
    /// The epoch of this connection; older ones may no longer act.
    pub epoch: Epoch,
    /// What it holds, by grant id.
    pub grants: Vec<AttachedGrant>,
    /// What it waits for, by request number.
    pub waits: Vec<(RequestNumber, Arrival)>,
    /// The answers that it has not said to have seen, by request number.
    pub unseen: Vec<UnseenAnswer>,
    /// What it lost and may not know of, by grant id.
    pub lost: Vec<(GrantId, GrantEnd)>,
}

/// A grant that an attached session holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachedGrant {
    /// Its id.
    pub grant: GrantId,
    /// Its token.
    pub token: Token,
    /// How often it is entered.
    pub count: u32,
    /// What it holds.
    pub held: Held,
}

/// What a grant holds: locks or permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Locks, as they were asked for and converted since.
    Locks(Locks),
    /// Permits of a semaphore.
    Permits {
        /// The semaphore.
        name: Name,
        /// How many.
        permits: Permits,
    },
}

/// An answer that a session has not said to have seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UnseenAnswer {
    /// The request.
    pub number: RequestNumber,
    /// The stamp of the entry that decided it.
    pub answered_at: LogicalMs,
    /// What was said.
    pub outcome: Outcome,
    /// Whether the grant it gave still stands.
    pub stands: bool,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionEnd {
    /// By its own will.
    Closed,
    /// No sign of life for as long as its TTL.
    Expired,
    /// By an administrator.
    Evicted,
    /// By restoring a backup, which keeps no session.
    Restored,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrantEnd {
    /// Released by its holder.
    Released,
    /// With its session.
    Session(SessionEnd),
    /// At its own TTL.
    Ttl,
    /// At its `max_hold`.
    MaxHold,
    /// By an administrator.
    Broken,
}

impl GrantEnd {
    /// Whether the holder did not want it: then a lock delay begins to count.
    // Rule: lock-delay
    pub fn involuntary(self) -> bool {
        !matches!(self, GrantEnd::Released | GrantEnd::Session(SessionEnd::Closed))
    }
}
