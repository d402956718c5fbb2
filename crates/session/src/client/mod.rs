//! The client's side of the session protocol: all its decisions, without I/O, clock, randomness or `async`.
//!
//! [`Connection`] is one stream with the sessions on it; [`Reconnect`] decides which node to dial and when. Input goes in by `handle_*`
//! and by the calls of users. Output comes from `poll_*`; `poll_timeout` says when to call `handle_timeout`. The client library and the
//! simulation drive the same machines.

mod answers;
mod connection;
mod reconnect;
mod seen;
mod session;

#[cfg(test)]
mod tests;

use std::time::Duration;

use fencepost_core::{GrantEnd, GrantId, Held, Nanos, Outcome, RequestNumber, SessionEnd, SessionId, Token};

pub use connection::{Connection, LetGo, NewSession};
pub use reconnect::{DialFailure, Reconnect, Step};

/// Names a request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// The session.
    pub session: SessionId,
    /// The request's number.
    pub number: RequestNumber,
}

/// Names a grant of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantKey {
    /// The session.
    pub session: SessionId,
    /// The grant.
    pub grant: GrantId,
}

/// An event for users.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request is over. Each request with a listener gets exactly one of these.
    Answered(RequestKey, Answer),
    /// A request waits in a queue, so its answer may take long.
    Queued(RequestKey),
    /// The state of this grant may have changed: read it again.
    GrantChanged(GrantKey),
    /// The state of every grant of this session may have changed: read them again.
    SessionChanged(SessionId),
    /// A grant that has guards is lost. Comes once for each grant, beside the event that says to read its state again.
    Lost(Box<HeldGrant>, Lost),
    /// The session ended, and its client did not close it. [`Event::Lost`] follows for each grant that it held. `None` if the cluster
    /// no longer knows how it ended.
    SessionEnded(SessionId, Option<SessionEnd>),
    /// Grants are in jeopardy. Comes once until the danger is over.
    Jeopardy(Jeopardy),
    /// A keep-alive was answered, this long after it was sent.
    KeptAlive(Duration),
}

/// A grant that has guards.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldGrant {
    /// Its key.
    pub key: GrantKey,
    /// Its token.
    pub token: Token,
    /// What it holds, in the modes of the request.
    pub held: Held,
    /// When the client learnt of it.
    pub since: Nanos,
}

/// Grants of one session that are in jeopardy for one reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Jeopardy {
    /// The session.
    pub session: SessionId,
    /// The grants, by id.
    pub grants: Vec<HeldGrant>,
    /// When the first of them is lost, if nothing happens.
    pub until: Nanos,
    /// Whether a longest hold is nearly over. Otherwise no renewal was confirmed for long.
    pub is_max_hold: bool,
}

/// How a request ended, for the caller.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The cluster's decision.
    Decided(Outcome),
    /// The request was not carried out, and will not be.
    Failed(Failure),
    /// The request was sent, and no answer came in time.
    // Rule: unknown-is-said
    Unknown,
    /// The session is over. If the request got a grant, that is over, too.
    SessionEnded {
        /// How the session ended, if the cluster has said so.
        how: Option<SessionEnd>,
        /// The request was waiting in a queue at some time.
        queued: bool,
    },
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// No node could be reached.
    Unreachable,
    /// The cluster did not take the request.
    NotTaken {
        /// The server's message.
        message: String,
        /// The pause after which a retry can succeed. `None` if a retry does not help.
        retry_after: Option<Duration>,
    },
    /// The lock was granted, but its deadline had passed when the answer came. It was given back.
    GrantedTooLate,
    /// The session has too many pending requests.
    TooManyPending,
    /// The client is shut down.
    ShutDown,
}

/// What a holder may believe about its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantState {
    /// The lock is held.
    Held,
    /// The lock is held, but its deadline is near: no renewal was confirmed for long, or its longest hold is nearly over.
    Jeopardy,
    /// The lock is not held any more. This state is final.
    Lost(Lost),
}

/// Why a lock is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its deadline passed before a renewal was confirmed. From now on the cluster may grant it to another client at any time.
    DeadlinePassed,
    /// The cluster ended it.
    Ended(GrantEnd),
    /// It is gone, and the cluster no longer knows why.
    Gone,
    /// The holder gave it back.
    Released,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = match self {
            Lost::DeadlinePassed => "its deadline passed before a renewal was confirmed",
            Lost::Ended(GrantEnd::Released) | Lost::Released => "it was given back",
            Lost::Ended(GrantEnd::Session(SessionEnd::Closed)) => "its session was closed",
            Lost::Ended(GrantEnd::Session(SessionEnd::Expired)) => "its session expired",
            Lost::Ended(GrantEnd::Session(SessionEnd::Evicted(reason))) => {
                return write!(f, "an administrator evicted its session{reason}");
            }
            Lost::Ended(GrantEnd::Session(SessionEnd::Restored)) => "the cluster was restored from a backup",
            Lost::Ended(GrantEnd::Ttl) => "its own TTL ran out",
            Lost::Ended(GrantEnd::MaxHold) => "its longest hold was over",
            Lost::Ended(GrantEnd::Broken(reason)) => return write!(f, "an administrator broke it{reason}"),
            Lost::Gone => "its session is gone",
        };
        f.write_str(why)
    }
}
