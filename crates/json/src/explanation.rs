//! Everything about one name: its holders, its queue, and what is in the way.

use std::collections::BTreeMap;

use fencepost_core::{
    BlockedBy, Blocker, CycleLink, Explanation, FreezeRecord, GrantId, HolderView, Name, QueueView, RestRecord, Scope,
    SessionId,
};
use fencepost_wire::api::observe::ReadAt;
use serde_json::{Value, json};

use crate::lock::{job, job_of};
use crate::time::with_since;
use crate::words::{freeze_id, mode, session_id, takes};

/// Everything about one name. `attempts` has the attempts that holders for jobs have begun, and `client_of` the client behind a session.
pub fn explanation(
    what: &Explanation,
    attempts: &BTreeMap<GrantId, u64>,
    client_of: impl Fn(SessionId) -> Value,
    at: &ReadAt,
) -> Value {
    let now = at.stamp;
    let holder = |it: &HolderView| {
        let row = json!({
            "grant": it.holder.grant.0,
            "token": it.holder.token.0,
            "takes": takes(it.holder.takes),
            "session": it.holder.session.map(session_id),
            "client": it.holder.session.map(&client_of),
            "owner": it.holder.owner.as_ref().map(|owner| owner.as_str()),
            "job": job(job_of(&it.terms), attempts.get(&it.holder.grant).copied()),
            "covers_from": it.covers_from.as_ref().map(Name::as_str),
            "remaining_ms": it.deadline.0.saturating_sub(now.0),
        });
        with_since(row, at, it.holder.since)
    };
    let waiter = |it: &QueueView| {
        let row = json!({
            "place": it.position,
            "wants": takes(it.wants),
            "converts": it.converts,
            "session": session_id(it.waiter.session),
            "client": client_of(it.waiter.session),
            "owner": it.waiter.owner.as_ref().map(|owner| owner.as_str()),
            "job": job(job_of(&it.waiter.terms), None),
            "remaining_ms": it.waiter.until.map(|until| until.0.saturating_sub(now.0)),
        });
        with_since(row, at, it.waiter.queued_at)
    };
    let rest = |it: &RestRecord| {
        let left_ms = it.until.0.saturating_sub(now.0);
        let row = json!({ "grant": it.grant.0, "token": it.token.0, "remaining_ms": left_ms });
        with_since(row, at, it.since)
    };
    let semaphore = what.semaphore.as_ref().map(|(semaphore, out)| {
        json!({ "limit": semaphore.limit.get(), "out": out, "administered": semaphore.administered })
    });
    json!({
        "lock": what.name.as_str(),
        "index": at.index,
        "holders": what.holders.iter().map(holder).collect::<Vec<Value>>(),
        "waiting": what.queue.iter().map(waiter).collect::<Vec<Value>>(),
        "waiting_count": what.queue_len,
        "freezes": what.freezes.iter().map(|it| freeze(it, at)).collect::<Vec<Value>>(),
        "rests": what.rests.iter().map(rest).collect::<Vec<Value>>(),
        "semaphore": semaphore,
        "blockers": what.chain.iter().map(blocker).collect::<Vec<Value>>(),
        "suspected_deadlock": what.suspected.as_ref().map(|cycle| cycle.links.iter().map(link).collect::<Vec<Value>>()),
    })
}

/// A freeze as JSON.
pub fn freeze(freeze: &FreezeRecord, at: &ReadAt) -> Value {
    let row = json!({
        "freeze": freeze_id(freeze.id),
        "scope": scope(&freeze.scope),
        "by": freeze.by.as_str(),
        "reason": freeze.reason.as_str(),
    });
    with_since(row, at, freeze.since)
}

fn scope(scope: &Scope) -> Value {
    match scope {
        Scope::Name(name) => json!({ "name": name.as_str() }),
        Scope::Prefix(prefix) => json!({ "prefix": String::from_utf8_lossy(prefix) }),
    }
}

fn link(link: &CycleLink) -> Value {
    json!({
        "session": session_id(link.session),
        "owner": link.owner.as_ref().map(|owner| owner.as_str()),
        "waits_for": link.waits_for.as_str(),
        "wants": mode(link.wants),
        "blocked_by_grant": link.blocked_by.map(|grant| grant.0),
    })
}

fn blocker(blocker: &Blocker) -> Value {
    let by = match &blocker.by {
        BlockedBy::Grant(holder) => {
            json!({ "grant": holder.grant.0, "session": holder.session.map(session_id) })
        }
        BlockedBy::Rest(holder) => json!({ "rest": holder.grant.0 }),
        BlockedBy::Waiter(arrival) => json!({ "waiter": arrival.0 }),
        BlockedBy::Freeze(freeze) => json!({ "freeze": freeze_id(freeze.id) }),
        BlockedBy::Permits => json!({ "permits": true }),
    };
    json!({
        "session": session_id(blocker.session),
        "owner": blocker.owner.as_ref().map(|owner| owner.as_str()),
        "waits_for": blocker.name.as_str(),
        "blocked_by": by,
    })
}
