//! Grants, waiting requests and sessions, one row each.

use fencepost_core::{GrantView, Held, JobKey, SessionId, Terms, WaiterRecord};
use fencepost_wire::api::observe::{ReadAt, Session};
use serde_json::{Value, json};

use crate::client;
use crate::time::with_since;
use crate::words::{lock_mode, session_id};

/// The names that are held or wanted.
pub(crate) fn held(held: &Held) -> Value {
    match held {
        Held::Permits { name, permits } => json!([{ "name": name.as_str(), "permits": permits.get() }]),
        Held::Locks(locks) => {
            locks.iter().map(|lock| json!({ "name": lock.name.as_str(), "mode": lock_mode(lock.mode) })).collect()
        }
    }
}

/// The key of the job that a grant or a request with these terms is for.
pub fn job_of(terms: &Option<Box<Terms>>) -> Option<&JobKey> {
    Some(&terms.as_ref()?.job.as_ref()?.key)
}

/// The job that a grant or a request is for. Null if it is for none.
pub(crate) fn job(key: Option<&JobKey>, attempt: Option<u64>) -> Value {
    key.map_or(Value::Null, |key| json!({ "key": key.as_str(), "attempt": attempt }))
}

/// A grant. `attempt` is the number of the attempt that it has begun, if it is for a job; `client_of` the client behind a session.
pub fn grant(
    GrantView { record, deadline }: &GrantView,
    attempt: Option<u64>,
    client_of: impl Fn(SessionId) -> Value,
    at: &ReadAt,
) -> Value {
    let row = json!({
        "grant": record.id.0,
        "token": record.token.0,
        "locks": held(&record.held),
        "session": session_id(record.session),
        "client": client_of(record.session),
        "owner": record.owner.as_ref().map(|owner| owner.as_str()),
        "job": job(job_of(&record.terms), attempt),
        "count": record.count,
        "remaining_ms": deadline.0.saturating_sub(at.stamp.0),
    });
    with_since(row, at, record.granted_at)
}

/// A waiting request.
pub fn waiter(waiter: &WaiterRecord, client_of: impl Fn(SessionId) -> Value, at: &ReadAt) -> Value {
    let row = json!({
        "arrival": waiter.arrival.0,
        "locks": held(&waiter.wants.held()),
        "session": session_id(waiter.session),
        "client": client_of(waiter.session),
        "owner": waiter.owner.as_ref().map(|owner| owner.as_str()),
        "job": job(job_of(&waiter.terms), None),
        "remaining_ms": waiter.until.map(|until| until.0.saturating_sub(at.stamp.0)),
    });
    with_since(row, at, waiter.queued_at)
}

/// A session.
pub fn session(session: &Session, at: &ReadAt) -> Value {
    let row = json!({
        "session": session_id(session.id),
        "principal": session.principal.as_str(),
        "client": client::client(&client::metadata(session.metadata.as_bytes())),
        "grants": session.grants,
        "waits": session.waits,
        "ttl_ms": session.ttl.millis().get(),
        "remaining_ms": session.deadline.0.saturating_sub(at.stamp.0),
    });
    with_since(row, at, session.opened_at)
}
