//! The service's messages, to the core's types and back: what a session sends on its stream, and what it receives. The messages of
//! observers, watchers and administrators are in the modules below.
//!
//! Unknown fields are allowed here, because a client may be newer than its server. Known fields are checked as everywhere: every word
//! goes through the core's own constructor.

pub mod admin;
pub mod observe;
pub mod status;
pub mod watch;

use fencepost_core::{
    Epoch, LogicalMs, Metadata, Open, Outcome, Principal, Push, Renewal, Repeat, Reply, Request, RequestNumber,
    SecretHash, SessionId, Ttl,
};

use crate::error::WireError;
use crate::secret::{SECRET_BYTES, SessionSecret};
use crate::v1;
use crate::{from_wire, to_wire};

/// The two halves of a 128-bit id, as messages carry it: high, then low.
pub fn halves(id: u128) -> (u64, u64) {
    to_wire::halves(id)
}

/// A 128-bit id from its two halves.
pub fn whole(high: u64, low: u64) -> u128 {
    from_wire::whole(high, low)
}

/// A client's request to open a session, for a principal. The caller hashes the secret, because the log must never contain it.
///
/// # Errors
/// [`WireError`] names the value that is not valid.
pub fn open_from_wire(
    open: &v1::OpenSession,
    principal: Principal,
    hash: impl FnOnce(&[u8]) -> SecretHash,
) -> Result<Open, WireError> {
    if open.secret.len() != SECRET_BYTES {
        let detail = format!("it has {} bytes instead of {SECRET_BYTES}", open.secret.len());
        return Err(WireError::Damaged { what: "the secret of a session", detail });
    }
    Ok(Open {
        session: SessionId(whole(open.session_high, open.session_low)),
        secret_hash: hash(&open.secret),
        principal,
        ttl: from_wire::ttl(open.ttl_ms)?,
        metadata: from_wire::metadata(&open.metadata)?,
    })
}

/// A client's request to open a session.
pub fn open_to_wire(session: SessionId, secret: &SessionSecret, ttl: Ttl, metadata: &Metadata) -> v1::OpenSession {
    let (session_high, session_low) = halves(session.0);
    v1::OpenSession {
        session_high,
        session_low,
        secret: secret.expose().to_vec(),
        ttl_ms: ttl.millis().get(),
        metadata: metadata.as_bytes().to_vec(),
    }
}

/// A client's request to attach a session. The caller hashes the secret, because the log must never contain it.
pub fn attach_from_wire(attach: &v1::AttachSession, hash: impl FnOnce(&[u8]) -> SecretHash) -> Renewal {
    Renewal::Attach {
        session: SessionId(whole(attach.session_high, attach.session_low)),
        secret_hash: hash(&attach.secret),
        seen: from_wire::seen(attach.seen_mark, &attach.seen_ranges),
    }
}

/// A client's request to attach a session.
pub fn attach_to_wire(session: SessionId, secret: &SessionSecret, seen: &fencepost_core::Seen) -> v1::AttachSession {
    let (session_high, session_low) = halves(session.0);
    v1::AttachSession {
        session_high,
        session_low,
        secret: secret.expose().to_vec(),
        seen_mark: seen.mark,
        seen_ranges: to_wire::seen_ranges(&seen.ranges),
    }
}

/// A keep-alive.
pub fn keep_alive_from_wire(keep_alive: &v1::KeepAlive) -> Renewal {
    Renewal::KeepAlive {
        session: SessionId(whole(keep_alive.session_high, keep_alive.session_low)),
        epoch: Epoch(keep_alive.epoch),
        seen: from_wire::seen(keep_alive.seen_mark, &keep_alive.seen_ranges),
    }
}

/// A keep-alive.
pub fn keep_alive_to_wire(session: SessionId, epoch: Epoch, seen: &fencepost_core::Seen) -> v1::KeepAlive {
    let (session_high, session_low) = halves(session.0);
    v1::KeepAlive {
        session_high,
        session_low,
        epoch: epoch.0,
        seen_mark: seen.mark,
        seen_ranges: to_wire::seen_ranges(&seen.ranges),
    }
}

/// A request of a session.
///
/// # Errors
/// [`WireError`] names the value that is not valid.
pub fn request_from_wire(request: v1::Request) -> Result<Request, WireError> {
    from_wire::request(request)
}

/// A request of a session.
pub fn request_to_wire(request: &Request) -> v1::Request {
    to_wire::request(request)
}

/// The outcome of a command.
///
/// # Errors
/// [`WireError`] if this version does not know it.
pub fn outcome_from_wire(outcome: Option<v1::Outcome>) -> Result<Outcome, WireError> {
    from_wire::outcome(outcome)
}

/// The outcome of a command.
pub fn outcome_to_wire(outcome: &Outcome) -> v1::Outcome {
    to_wire::outcome(outcome)
}

/// An answer to a session. `number` is `None` for an open, an attach or a keep-alive.
pub fn answer_to_wire(session: SessionId, number: Option<RequestNumber>, reply: &Reply) -> v1::Answer {
    let (session_high, session_low) = halves(session.0);
    let repeat = |repeat: Repeat| v1::Repeat { answered_at_ms: repeat.answered_at.0, stands: repeat.stands };
    v1::Answer {
        session_high,
        session_low,
        number: number.map_or(0, |number| number.0),
        outcome: Some(to_wire::outcome(&reply.outcome)),
        repeat: reply.repeat.map(repeat),
    }
}

/// An answer, as a client receives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The session.
    pub session: SessionId,
    /// The request. `None` for an open, an attach or a keep-alive.
    pub number: Option<RequestNumber>,
    /// The outcome.
    pub outcome: Outcome,
    /// Set if the request was answered before.
    pub repeat: Option<Repeat>,
}

/// An answer, as a client receives it.
///
/// # Errors
/// [`WireError`] if this version does not know the outcome.
pub fn answer_from_wire(answer: v1::Answer) -> Result<Answer, WireError> {
    let repeat = |repeat: v1::Repeat| Repeat { answered_at: LogicalMs(repeat.answered_at_ms), stands: repeat.stands };
    Ok(Answer {
        session: SessionId(whole(answer.session_high, answer.session_low)),
        number: (answer.number != 0).then_some(RequestNumber(answer.number)),
        outcome: from_wire::outcome(answer.outcome)?,
        repeat: answer.repeat.map(repeat),
    })
}

/// The session that a push is for.
pub fn push_session(push: &Push) -> SessionId {
    match push {
        Push::Ended { session, .. }
        | Push::Lost { session, .. }
        | Push::Contended { session, .. }
        | Push::SessionEnded { session, .. } => *session,
    }
}

/// A push to a session.
pub fn push_to_wire(push: &Push) -> v1::Push {
    use v1::push::What;
    let (session_high, session_low) = halves(push_session(push).0);
    let what = match push {
        Push::Ended { number, outcome, .. } => {
            What::Ended(v1::WaitEnded { number: number.0, outcome: Some(to_wire::outcome(outcome)) })
        }
        Push::Lost { grant, how, .. } => What::Lost(to_wire::lost_grant(*grant, how)),
        Push::Contended { grant, .. } => What::ContendedGrant(grant.0),
        Push::SessionEnded { how, .. } => What::SessionEnded(to_wire::session_end(how)),
    };
    v1::Push { session_high, session_low, what: Some(what) }
}

/// A push to a session.
///
/// # Errors
/// [`WireError`] if this version does not know the push.
pub fn push_from_wire(push: v1::Push) -> Result<Push, WireError> {
    use fencepost_core::GrantId;
    use v1::push::What;
    let session = SessionId(whole(push.session_high, push.session_low));
    Ok(match from_wire::known("a push", push.what)? {
        What::Ended(v1::WaitEnded { number, outcome }) => {
            Push::Ended { session, number: RequestNumber(number), outcome: from_wire::outcome(outcome)? }
        }
        What::Lost(lost) => {
            let (grant, how) = from_wire::lost_grant(lost)?;
            Push::Lost { session, grant, how }
        }
        What::ContendedGrant(grant) => Push::Contended { session, grant: GrantId(grant) },
        What::SessionEnded(how) => Push::SessionEnded { session, how: from_wire::session_end(Some(how))? },
    })
}
