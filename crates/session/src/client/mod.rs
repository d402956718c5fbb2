//! The machines of the client: all that it decides, without I/O, clock, randomness or `async`.
//!
//! [`Connection`] is one stream with the sessions on it; [`Reconnect`] decides whom to dial and when. What happens goes in by
//! `handle_*` and by what users ask for; what is to be done comes out by `poll_*`, and `poll_timeout` says when to come back. The
//! driver does it, and the simulation drives the very same machines.

mod answers;
mod connection;
mod reconnect;
mod seen;
mod session;

#[cfg(test)]
mod tests;

use std::time::Duration;

use fencepost_core::{GrantEnd, GrantId, Outcome, RequestNumber, SessionEnd, SessionId};

pub use connection::{Connection, LetGo, NewSession};
pub use reconnect::{DialFailure, Reconnect, Step};

/// A request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// Whose.
    pub session: SessionId,
    /// Its number.
    pub number: RequestNumber,
}

/// A grant of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantKey {
    /// Whose.
    pub session: SessionId,
    /// Which.
    pub grant: GrantId,
}

/// What users are to be told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request is over. Exactly one for each that somebody listens to.
    Answered(RequestKey, Answer),
    /// A request has its place in a queue, and its answer may take long.
    Queued(RequestKey),
    /// Look at the state of this grant again.
    GrantChanged(GrantKey),
    /// Look at the state of every grant of this session again.
    SessionChanged(SessionId),
}

/// How a request ended, for who asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// What the cluster decided.
    Decided(Outcome),
    /// Nothing was done, and nothing will be.
    Failed(Failure),
    /// It was sent, and no answer came in time.
    // Rule: unknown-is-said
    Unknown,
    /// The session is over, and with it whatever the request may have got.
    SessionEnded {
        /// How, if the cluster has said it.
        how: Option<SessionEnd>,
        /// The request had a place in a queue.
        queued: bool,
    },
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// No node could be reached.
    Unreachable,
    /// The cluster did not take it.
    NotTaken {
        /// What it says.
        message: String,
        /// Asking again can help: when.
        retry_after: Option<Duration>,
    },
    /// The lock was granted, but its time was over when the answer came. It was given back.
    GrantedTooLate,
    /// Too many requests of this session are not over.
    TooManyPending,
    /// The client is shut down.
    ShutDown,
}

/// What a holder may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantState {
    /// The lock is held.
    Held,
    /// It is held, but its deadline comes near: no renewal was confirmed for long, or its longest hold is nearly over.
    Jeopardy,
    /// It is not held any more, and never will be again.
    Lost(Lost),
}

/// Why a lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its deadline passed before a renewal was confirmed. The cluster may not have given it away yet, but it may at any time.
    DeadlinePassed,
    /// The cluster ended it.
    Ended(GrantEnd),
    /// It is gone, and the cluster no longer knows how.
    Gone,
    /// It was given back.
    Released,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Lost::DeadlinePassed => "its deadline passed before a renewal was confirmed",
            Lost::Ended(GrantEnd::Released) | Lost::Released => "it was given back",
            Lost::Ended(GrantEnd::Session(SessionEnd::Closed)) => "its session was closed",
            Lost::Ended(GrantEnd::Session(SessionEnd::Expired)) => "its session expired",
            Lost::Ended(GrantEnd::Session(SessionEnd::Evicted)) => "an administrator evicted its session",
            Lost::Ended(GrantEnd::Session(SessionEnd::Restored)) => "the cluster was restored from a backup",
            Lost::Ended(GrantEnd::Ttl) => "its own TTL ran out",
            Lost::Ended(GrantEnd::MaxHold) => "its longest hold was over",
            Lost::Ended(GrantEnd::Broken) => "an administrator broke it",
            Lost::Gone => "its session is gone",
        })
    }
}
