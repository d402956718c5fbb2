//! The state as a list of plain records: what a snapshot holds, what the state hash is made of, and nothing derived.
//!
//! Queues, indexes, timers and counts are not here: they follow from the records and are built again on restore.
//! The order is canonical: header, sessions by id (each followed by its answers by number), semaphores by name, freezes by
//! id, grants by id, rests by id, waiters by arrival. Equal states give equal lists, and each record needs only those
//! before it.

use crate::command::{Lock, Locks, Scope, Terms};
use crate::format_version::FormatVersion;
use crate::mode::LockMode;
use crate::outcome::{GrantEnd, Held, Outcome};
use crate::words::{
    Arrival, Epoch, FreezeId, GrantId, LogicalMs, Metadata, Name, OwnerName, Permits, Principal, Reason, RequestNumber,
    SecretHash, SessionId, Token, Ttl,
};

/// One piece of the state.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The numbers of the whole group; exactly one, first.
    Header(Header),
    /// A living session.
    Session(SessionRecord),
    /// An answer that its session has not said to have seen.
    Answer(AnswerRecord),
    /// A held lock or permits.
    Grant(GrantRecord),
    /// What is left of a grant that ended against its holder's will.
    Rest(RestRecord),
    /// A queued request.
    Waiter(WaiterRecord),
    /// A semaphore that is in use or has an administrator's limit.
    Semaphore(SemaphoreRecord),
    /// A freeze.
    Freeze(FreezeRecord),
    /// A record of the made-up version, right behind the header.
    #[cfg(feature = "made-up-version")]
    Remark(RemarkRecord),
}

/// The numbers of the whole group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// The active version: the whole cluster writes in it and decides by its rules.
    pub version: FormatVersion,
    /// The stamp of the last entry.
    pub stamp: LogicalMs,
    /// The last id or token given.
    pub last_token: u64,
    /// The last arrival number given.
    pub last_arrival: u64,
    /// The stamp of the last fail-over grace, if there was one.
    pub grace_at: Option<LogicalMs>,
}

/// A living session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionRecord {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub principal: Principal,
    /// What an attach must match.
    pub secret_hash: SecretHash,
    /// How long it lives without a sign of life.
    pub ttl: Ttl,
    /// What it says about itself.
    pub metadata: Metadata,
    /// When it was opened.
    pub opened_at: LogicalMs,
    /// The last token given before it was opened: no older grant can be its own.
    pub opened_after_token: u64,
    /// Which connection may act.
    pub epoch: Epoch,
    /// The last sign of life.
    pub renewed_at: LogicalMs,
    /// Every request number up to this one is done with.
    pub seen_mark: u64,
    /// Request numbers above the mark that are done with, as ranges with both ends included, rising and not touching.
    pub seen_ranges: Vec<(u64, u64)>,
    /// Its newest involuntary losses, by grant id.
    pub lost: Vec<(GrantId, GrantEnd)>,
}

/// An answer that its session has not said to have seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnswerRecord {
    /// Whose.
    pub session: SessionId,
    /// To which request.
    pub number: RequestNumber,
    /// The stamp of the entry that decided it.
    pub answered_at: LogicalMs,
    /// What was said.
    pub outcome: Outcome,
    /// A cancel has given back the count that this answer granted, so another cancel must not.
    pub given_back: bool,
}

/// A held lock or permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantRecord {
    /// Its id.
    pub id: GrantId,
    /// Its token; the id until it is upgraded.
    pub token: Token,
    /// Whose it is.
    pub session: SessionId,
    /// The unit of work that owns it, if it was named.
    pub owner: Option<OwnerName>,
    /// What it holds.
    pub held: Held,
    /// How often it is entered.
    pub count: u32,
    /// When it was granted.
    pub granted_at: LogicalMs,
    /// When its `max_hold` ends, if it has one.
    pub hold_until: Option<LogicalMs>,
    /// What it is like. Most are alike, and those share the default without an allocation.
    pub terms: Option<Box<Terms>>,
}

/// What is left of a grant that ended against its holder's will: a holder without a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RestRecord {
    /// The id of the grant that ended.
    pub grant: GrantId,
    /// Its last token.
    pub token: Token,
    /// What it keeps busy.
    pub held: Held,
    /// When the grant ended.
    pub since: LogicalMs,
    /// When the rest ends.
    pub until: LogicalMs,
}

/// A queued request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WaiterRecord {
    /// Its place in the order of the whole group.
    pub arrival: Arrival,
    /// Who waits.
    pub session: SessionId,
    /// The session's number for it.
    pub number: RequestNumber,
    /// The unit of work that waits, if it was named.
    pub owner: Option<OwnerName>,
    /// What it waits for.
    pub wants: Wants,
    /// Since when.
    pub queued_at: LogicalMs,
    /// When the wait times out, if it does.
    pub until: Option<LogicalMs>,
    /// What the grant will be like.
    pub terms: Option<Box<Terms>>,
    /// The deadlock search gave up on it.
    pub unchecked: bool,
}

/// What a queued request waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wants {
    /// New locks.
    Locks(Locks),
    /// A stronger mode on one resource of a grant.
    Conversion {
        /// The grant.
        grant: GrantId,
        /// The resource in it.
        name: Name,
        /// The mode it should have.
        mode: LockMode,
    },
    /// Permits.
    Permits {
        /// The semaphore.
        name: Name,
        /// How many.
        permits: Permits,
    },
}

impl Wants {
    /// What would be held, as far as this request is concerned.
    pub fn held(&self) -> Held {
        match self {
            Wants::Locks(locks) => Held::Locks(locks.clone()),
            Wants::Conversion { name, mode, .. } => {
                Held::Locks(Locks::from_buf([Lock { name: name.clone(), mode: *mode }]))
            }
            Wants::Permits { name, permits } => Held::Permits { name: name.clone(), permits: *permits },
        }
    }
}

/// A semaphore that is in use or has an administrator's limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SemaphoreRecord {
    /// The semaphore.
    pub name: Name,
    /// The limit in force.
    pub limit: Permits,
    /// An administrator set the limit, so that it stays when nobody uses the name.
    pub administered: bool,
}

/// A freeze.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FreezeRecord {
    /// Its id.
    pub id: FreezeId,
    /// What it covers.
    pub scope: Scope,
    /// Who froze.
    pub by: Principal,
    /// Why.
    pub reason: Reason,
    /// When.
    pub since: LogicalMs,
}

/// What was remarked last, in the made-up version.
#[cfg(feature = "made-up-version")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemarkRecord {
    /// The remark.
    pub text: Reason,
    /// When.
    pub since: LogicalMs,
}
