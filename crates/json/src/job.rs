//! Jobs that run once.

use fencepost_core::{GrantEnd, GrantView, JobKey, JobRecord, JobView, LogicalMs, Name, SessionId};
use fencepost_wire::api::observe::ReadAt;
use serde_json::{Value, json};

use crate::time::with_since;
use crate::words::{grant_end, session_id};

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No session holds it, and it is not completed.
    Open,
    /// A session holds it, and has begun no attempt.
    Held,
    /// An attempt runs.
    Running,
    /// An attempt has completed it.
    Completed,
    /// An administrator has completed it.
    CompletedByAdministrator,
    /// It was completed as failed.
    Failed,
}

/// How far a job has come, by its record.
pub fn state(job: &JobRecord) -> State {
    match (&job.completion, job.until, &job.last) {
        (Some(completion), ..) if !completion.succeeded => State::Failed,
        (Some(completion), ..) if completion.by.is_some() => State::CompletedByAdministrator,
        (Some(_), ..) => State::Completed,
        // While a grant of the job stands, the record has no end.
        (None, None, Some(last)) if last.ended.is_none() => State::Running,
        (None, None, _) => State::Held,
        (None, Some(_), _) => State::Open,
    }
}

impl State {
    /// The words for people.
    pub fn words(self, job: &JobRecord) -> String {
        match self {
            State::Open => "open".to_owned(),
            State::Held => "held".to_owned(),
            State::Running => format!("running attempt {}", job.attempts),
            State::Completed => "completed".to_owned(),
            State::CompletedByAdministrator => "completed by an administrator".to_owned(),
            State::Failed => "failed".to_owned(),
        }
    }

    /// The word for programs.
    pub fn code(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Held => "held",
            State::Running => "running",
            State::Completed | State::CompletedByAdministrator => "completed",
            State::Failed => "failed",
        }
    }
}

/// Since when the job is in its state, as far as its record says.
pub fn since(job: &JobRecord) -> Option<LogicalMs> {
    let completed = job.completion.as_ref().map(|it| it.at);
    let attempt = job.last.as_ref().map(|last| last.ended.as_ref().map_or(last.began_at, |ended| ended.at));
    completed.or(attempt)
}

/// How an attempt ended that did not complete its job.
pub fn attempt_end(how: &GrantEnd) -> &'static str {
    match how {
        // The holder gave the lock back: because of an error, or to try again later.
        GrantEnd::Released => "failed",
        other => grant_end(other),
    }
}

/// A job as JSON, without what it stores.
pub fn record(job: &JobRecord, at: &ReadAt) -> Value {
    let state = state(job);
    let completion = job.completion.as_ref().map(|it| {
        let row = json!({
            "succeeded": it.succeeded,
            "token": it.token.map(|token| token.0),
            "by_administrator": it.by.as_ref().map(|by| by.as_str()),
        });
        with_since(row, at, it.at)
    });
    let checkpoint = job.checkpoint.as_ref().map(|it| with_since(json!({ "attempt": it.attempt }), at, it.at));
    let last_attempt = job.last.as_ref().map(|last| {
        let ended =
            last.ended.as_ref().map(|ended| with_since(json!({ "how": attempt_end(&ended.how) }), at, ended.at));
        let row = json!({
            "attempt": job.attempts,
            "grant": last.grant.0,
            "token": last.token.0,
            "session": session_id(last.session),
            "ended": ended,
        });
        with_since(row, at, last.began_at)
    });
    let row = json!({
        "name": job.name.as_str(),
        "key": job.key.as_str(),
        "state": state.code(),
        "is_completed": job.completion.is_some(),
        "is_held": matches!(state, State::Held | State::Running),
        "attempts": job.attempts,
        "completion": completion,
        "checkpoint": checkpoint,
        "last_attempt": last_attempt,
        "kept_for_ms": job.until.map(|until| until.0.saturating_sub(at.stamp.0)),
    });
    match since(job) {
        Some(since) => with_since(row, at, since),
        None => row,
    }
}

/// A job that is held and not begun, as JSON.
pub fn held_job(name: &Name, key: &JobKey, grant: &GrantView, at: &ReadAt) -> Value {
    let row = json!({
        "name": name.as_str(),
        "key": key.as_str(),
        "state": State::Held.code(),
        "is_completed": false,
        "is_held": true,
        "attempts": 0,
        "completion": null,
        "checkpoint": null,
        "last_attempt": null,
        "kept_for_ms": null,
    });
    with_since(row, at, grant.record.granted_at)
}

/// What a job stores.
pub struct Bytes<'a> {
    /// Its result.
    pub result: Option<&'a [u8]>,
    /// Its checkpoint.
    pub checkpoint: Option<&'a [u8]>,
    /// The error of its last attempt.
    pub error: Option<&'a [u8]>,
}

impl Bytes<'_> {
    /// What is stored of a job.
    pub fn of(view: &JobView) -> Bytes<'_> {
        let job = view.record.as_ref();
        let ended = job.and_then(|job| job.last.as_ref()?.ended.as_ref());
        Bytes {
            result: job.and_then(|job| Some(job.completion.as_ref()?.result.as_bytes())),
            checkpoint: job.and_then(|job| Some(job.checkpoint.as_ref()?.bytes.as_bytes())),
            error: ended.map(|ended| ended.error.as_bytes()).filter(|it| !it.is_empty()),
        }
    }
}

/// Bytes in hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Text if the bytes are UTF-8, else hex.
fn bytes_json(bytes: Option<&[u8]>) -> Value {
    bytes.map_or(Value::Null, |bytes| match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "bytes": bytes.len(), "text": text }),
        Err(_) => json!({ "bytes": bytes.len(), "hex": hex(bytes) }),
    })
}

/// A job, with what it stores.
pub fn whole(name: &Name, key: &JobKey, what: &JobView, client_of: impl Fn(SessionId) -> Value, at: &ReadAt) -> Value {
    let mut json = match &what.record {
        Some(record) => self::record(record, at),
        None => json!({
            "name": name.as_str(),
            "key": key.as_str(),
            "state": if what.holder.is_some() { "held" } else { "open" },
            "is_completed": false,
            "is_held": what.holder.is_some(),
            "attempts": 0,
        }),
    };
    let bytes = Bytes::of(what);
    // Beside what a listing has: what the job stores.
    for (pointer, field, bytes) in [
        ("/completion", "result", bytes.result),
        ("/checkpoint", "content", bytes.checkpoint),
        ("/last_attempt/ended", "error", bytes.error),
    ] {
        if let Some(Value::Object(object)) = json.pointer_mut(pointer) {
            object.insert(field.to_owned(), bytes_json(bytes));
        }
    }
    json["waiting_count"] = what.waiting.into();
    json["holder"] = what.holder.as_ref().map_or(Value::Null, |holder| {
        let row = json!({
            "grant": holder.grant.0,
            "token": holder.token.0,
            "session": holder.session.map(session_id),
            "client": holder.session.map(&client_of),
        });
        with_since(row, at, holder.since)
    });
    json
}
