//! The state as a list of plain records: what a snapshot holds and what the state hash covers.
//!
//! Queues, indexes, timers and counts are not here: they are derived from the records, and a restore builds them again.
//! The order is canonical: header, sessions by id (each followed by its answers by number), semaphores by name, freezes by
//! id, grants by id, rests by id, jobs by name and key, waiters by arrival. Equal states give equal lists, and a record refers only to records
//! before it.

use crate::command::{Lock, Locks, Scope, Terms};
use crate::format_version::FormatVersion;
use crate::mode::LockMode;
use crate::outcome::{GrantEnd, Held, Outcome};
use crate::words::{
    Arrival, Epoch, FreezeId, GrantId, JobBytes, JobKey, LogicalMs, Metadata, Name, OwnerName, Permits, Principal,
    Reason, RequestNumber, SecretHash, SessionId, Token, Ttl,
};

/// One piece of the state.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The numbers of the whole group. Exactly one, and the first record.
    Header(Header),
    /// A living session.
    Session(SessionRecord),
    /// An answer that the client has not acknowledged.
    Answer(AnswerRecord),
    /// A held lock or held permits.
    Grant(GrantRecord),
    /// The rest of a grant that ended against its holder's will.
    Rest(RestRecord),
    /// What is remembered of a job.
    Job(JobRecord),
    /// A queued request.
    Waiter(WaiterRecord),
    /// A semaphore that is in use or has an administrator's limit.
    Semaphore(SemaphoreRecord),
    /// A freeze.
    Freeze(FreezeRecord),
    /// The record of the made-up version, directly after the header.
    #[cfg(feature = "made-up-version")]
    Remark(RemarkRecord),
}

/// The numbers of the whole group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// The active version. The whole cluster uses its formats and its rules.
    pub version: FormatVersion,
    /// The stamp of the last entry.
    pub stamp: LogicalMs,
    /// The last number that was given out as the id or the token of a grant.
    pub last_token: u64,
    /// The last arrival number that was given out.
    pub last_arrival: u64,
    /// The stamp of the last fail-over grace, if there was one.
    pub grace_at: Option<LogicalMs>,
    /// Whether acquires with a job key are refused, because a backup was restored and no administrator has allowed them since.
    pub jobs_refused: bool,
}

/// A living session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionRecord {
    /// Its id.
    pub id: SessionId,
    /// The principal that owns it.
    pub principal: Principal,
    /// The hash of its secret. An attach must show the same one.
    pub secret_hash: SecretHash,
    /// How long it lives without a renewal.
    pub ttl: Ttl,
    /// Text of the client about itself, for people.
    pub metadata: Metadata,
    /// When it was opened.
    pub opened_at: LogicalMs,
    /// The last token that was given out before the session was opened. No older grant can belong to the session.
    pub opened_after_token: u64,
    /// The epoch of the connection that may act.
    pub epoch: Epoch,
    /// The stamp of its last renewal.
    pub renewed_at: LogicalMs,
    /// The answers of all request numbers up to this one are acknowledged.
    pub seen_mark: u64,
    /// Request numbers above the mark whose answers are acknowledged: ranges with both ends included. Invariant: they rise,
    /// and touch neither each other nor the mark.
    pub seen_ranges: Vec<(u64, u64)>,
    /// Its newest lost grants, by grant id.
    pub lost: Vec<(GrantId, GrantEnd)>,
}

/// An answer that the client has not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AnswerRecord {
    /// The session.
    pub session: SessionId,
    /// The number of the request.
    pub number: RequestNumber,
    /// The stamp of the entry that decided it.
    pub answered_at: LogicalMs,
    /// The answer.
    pub outcome: Outcome,
    /// Whether a cancel has given back the count that this answer granted. A second cancel must not.
    pub given_back: bool,
}

/// A held lock or held permits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantRecord {
    /// Its id.
    pub id: GrantId,
    /// Its token. Equal to the id until the grant is upgraded.
    pub token: Token,
    /// The session that holds it.
    pub session: SessionId,
    /// The name of the unit of work that owns the grant. `None` if the owner has no name.
    pub owner: Option<OwnerName>,
    /// What it holds.
    pub held: Held,
    /// How many times it is entered.
    pub count: u32,
    /// When it was granted.
    pub granted_at: LogicalMs,
    /// When its `max_hold` ends, if it has one.
    pub hold_until: Option<LogicalMs>,
    /// The terms of the grant. `None` for the default terms, which most grants have and which need no allocation.
    pub terms: Option<Box<Terms>>,
}

/// The rest of a grant that ended against its holder's will. It keeps the resources busy without an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RestRecord {
    /// The id of the grant that ended.
    pub grant: GrantId,
    /// Its last token.
    pub token: Token,
    /// The locks or permits that it keeps busy.
    pub held: Held,
    /// When the grant ended.
    pub since: LogicalMs,
    /// When the rest ends.
    pub until: LogicalMs,
}

/// What is remembered of a job: its attempts, its checkpoint and its completion. Made by the first begin, or by an
/// administrator who completes the job. A grant that begins nothing makes no record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobRecord {
    /// Its name: the name of the lock.
    pub name: Name,
    /// Its key.
    pub key: JobKey,
    /// How many attempts have begun.
    pub attempts: u64,
    /// The last attempt.
    pub last: Option<AttemptRecord>,
    /// The last checkpoint.
    pub checkpoint: Option<CheckpointRecord>,
    /// Set once the job is completed. Invariant: no attempt begins after it.
    pub completion: Option<CompletionRecord>,
    /// From when on the record counts as gone. `None` while a grant with the key stands.
    pub until: Option<LogicalMs>,
}

/// An attempt at a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptRecord {
    /// The grant that began it.
    pub grant: GrantId,
    /// The token of that grant.
    pub token: Token,
    /// The session that held the grant.
    pub session: SessionId,
    /// When it began.
    pub began_at: LogicalMs,
    /// How it ended without completing the job. `None` while it runs, and if it completed the job.
    pub ended: Option<AttemptEnd>,
}

/// How an attempt ended that did not complete its job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptEnd {
    /// When.
    pub at: LogicalMs,
    /// How its grant ended.
    pub how: GrantEnd,
    /// The text of the error, if the holder gave one.
    pub error: JobBytes,
}

/// How far a job has come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointRecord {
    /// The attempt that stored it.
    pub attempt: u64,
    /// When it was stored.
    pub at: LogicalMs,
    /// What it says.
    pub bytes: JobBytes,
}

/// The completion of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CompletionRecord {
    /// When.
    pub at: LogicalMs,
    /// Whether the job succeeded. Otherwise it has failed for good.
    pub succeeded: bool,
    /// The result.
    pub result: JobBytes,
    /// The token of the grant that completed it, which is the grant of the last attempt. `None` if an administrator did.
    pub token: Option<Token>,
    /// The administrator who completed it.
    pub by: Option<Principal>,
}

/// A queued request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WaiterRecord {
    /// Its place in the order of the whole group.
    pub arrival: Arrival,
    /// The session that waits.
    pub session: SessionId,
    /// The session's number for the request.
    pub number: RequestNumber,
    /// The name of the unit of work that waits. `None` if it has no name.
    pub owner: Option<OwnerName>,
    /// What it waits for.
    pub wants: Wants,
    /// When it began to wait.
    pub queued_at: LogicalMs,
    /// When the wait times out, if it has a limit.
    pub until: Option<LogicalMs>,
    /// The terms of the grant. `None` for the default terms.
    pub terms: Option<Box<Terms>>,
    /// Whether the deadlock search gave up on it.
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
        /// The resource.
        name: Name,
        /// The new mode.
        mode: LockMode,
    },
    /// Permits.
    Permits {
        /// The semaphore.
        name: Name,
        /// How many permits.
        permits: Permits,
    },
}

impl Wants {
    /// What the request would hold. For a conversion: only the converted resource.
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
    /// Whether an administrator set the limit. Such a limit stays when the name is not in use.
    pub administered: bool,
}

/// A freeze.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FreezeRecord {
    /// Its id.
    pub id: FreezeId,
    /// The names that it covers.
    pub scope: Scope,
    /// The administrator.
    pub by: Principal,
    /// The reason.
    pub reason: Reason,
    /// When it was set.
    pub since: LogicalMs,
}

/// The last remark, in the made-up version.
#[cfg(feature = "made-up-version")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemarkRecord {
    /// The remark.
    pub text: Reason,
    /// When it was set.
    pub since: LogicalMs,
}
