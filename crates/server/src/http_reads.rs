//! Reads of the lock state over HTTP, as JSON. The rows are those of the command line's `-o json`.
//!
//! One table has all paths, with what each takes. A read is linearizable; with `stale=true` any node answers at once from what it has
//! applied. Nothing here changes the state.

use std::collections::BTreeMap;

use axum::http::{StatusCode, Uri};
use fencepost_core::{Arrival, GrantId, JobKey, LockState, Name, SessionId, shortened};
use fencepost_wire::api::observe::{self, ReadAt};
use fencepost_wire::api::status::status_from_wire;
use serde_json::{Value, json};

use crate::bounds::{HTTP_QUERY_BYTES_MAX, HTTP_QUEUE_MAX, HTTP_ROWS_DEFAULT, HTTP_ROWS_MAX};
use crate::engine::{Engine, Shared};
use crate::observe_service::{read_at_for_people, status_to_wire};
use crate::problem::Problem;

/// What a path answers.
struct Read {
    path: &'static str,
    /// The parameters that it takes, beside `stale`.
    takes: &'static [&'static str],
    answer: fn(&Engine, &ReadAt, &Query) -> Result<Value, Problem>,
}

/// Every read, by its path.
const READS: &[Read] = &[
    Read { path: "/v1/locks", takes: &["prefix", "limit", "after_grant", "after_arrival"], answer: locks },
    Read { path: "/v1/lock", takes: &["name"], answer: lock },
    Read { path: "/v1/members", takes: &[], answer: members },
    Read { path: "/v1/sessions", takes: &["limit", "after"], answer: sessions },
    Read { path: "/v1/jobs", takes: &["prefix", "limit", "after_name", "after_key"], answer: jobs },
    Read { path: "/v1/job", takes: &["name", "key"], answer: job },
];

/// The paths, as a sentence names them.
pub(crate) fn paths() -> String {
    READS.iter().map(|read| read.path).collect::<Vec<_>>().join(", ")
}

/// Answers a GET.
pub(crate) async fn answer(shared: &Shared, uri: &Uri) -> Result<Value, Problem> {
    let Some(read) = READS.iter().find(|read| read.path == uri.path()) else {
        let detail = format!("nothing is at this path: try {}, /healthz, /readyz or /metrics", paths());
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-path", detail));
    };
    let query = Query::parse(uri.query().unwrap_or_default(), read.takes)?;
    if !query.switch("stale")? {
        shared.linearize().await?;
    }
    let engine = shared.engine();
    engine.check_member()?;
    let at = read_at_for_people(&engine);
    let mut answer = (read.answer)(&engine, &at, &query)?;
    let time = fencepost_json::rfc_3339(at.wall_clock_ms);
    answer["as_of"] = json!({ "index": at.index, "term": at.term, "stamp_ms": at.stamp.0, "time": time });
    Ok(answer)
}

// ---- The reads

/// Two pages: the grants, oldest first, and the waiting requests, by arrival.
fn locks(engine: &Engine, at: &ReadAt, query: &Query) -> Result<Value, Problem> {
    let state = engine.replica().state();
    let (prefix, limit) = (query.text("prefix"), query.limit()?);
    let held = state.list_grants(prefix, query.number("after_grant")?.map(GrantId), limit);
    let waiting = state.list_waiters(prefix, query.number("after_arrival")?.map(Arrival), limit);
    let grant = |grant: &fencepost_core::GrantView| {
        let attempt = grant.record.job().and_then(|(name, terms)| attempt(state, name, &terms.key, grant.record.id));
        fencepost_json::grant(grant, attempt, |session| client(state, session), at)
    };
    let waiter = |waiter| fencepost_json::waiter(waiter, |session| client(state, session), at);
    Ok(json!({
        "held": held.rows.iter().map(grant).collect::<Vec<Value>>(),
        "waiting": waiting.rows.iter().map(waiter).collect::<Vec<Value>>(),
        "next": { "after_grant": held.next.map(|it| it.0), "after_arrival": waiting.next.map(|it| it.0) },
    }))
}

/// Everything about one name. A name that is not in use is free: no holders, and no error.
fn lock(engine: &Engine, at: &ReadAt, query: &Query) -> Result<Value, Problem> {
    let state = engine.replica().state();
    let explained = state.explain(&query.name()?, HTTP_QUEUE_MAX);
    let attempt = |it: &fencepost_core::HolderView| {
        let name = it.covers_from.as_ref().unwrap_or(&explained.name);
        let grant = it.holder.grant;
        Some((grant, attempt(state, name, fencepost_json::job_of(&it.terms)?, grant)?))
    };
    let attempts: BTreeMap<GrantId, u64> = explained.holders.iter().filter_map(attempt).collect();
    Ok(fencepost_json::explanation(&explained, &attempts, |session| client(state, session), at))
}

/// The members as this node sees them: the leader knows most.
fn members(engine: &Engine, _: &ReadAt, _: &Query) -> Result<Value, Problem> {
    let status = status_from_wire(status_to_wire(engine));
    let status =
        status.map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
    Ok(fencepost_json::cluster(&status))
}

fn sessions(engine: &Engine, at: &ReadAt, query: &Query) -> Result<Value, Problem> {
    let state = engine.replica().state();
    let after = query.given("after").map(session_id).transpose()?;
    let page = state.list_sessions(after, query.limit()?);
    let session = |it| fencepost_json::session(&observe::Session::from(it), at);
    Ok(json!({
        "sessions": page.rows.iter().map(session).collect::<Vec<Value>>(),
        "next": { "after": page.next.map(fencepost_json::session_id) },
    }))
}

fn jobs(engine: &Engine, at: &ReadAt, query: &Query) -> Result<Value, Problem> {
    let state = engine.replica().state();
    let after = match (query.given("after_name"), query.given("after_key")) {
        (None, None) => None,
        (Some(name), Some(key)) => Some((name_of("after_name", name)?, key_named("after_key", key)?)),
        _ => return Err(Problem::invalid("after_name and after_key belong together: give both, as `next` has them")),
    };
    let page = state.list_jobs(query.text("prefix"), after.as_ref(), query.limit()?);
    let next = page.next.as_ref();
    Ok(json!({
        "jobs": page.rows.iter().map(|it| fencepost_json::job::record(it, at)).collect::<Vec<Value>>(),
        "next": { "after_name": next.map(|(name, _)| name.as_str()), "after_key": next.map(|(_, key)| key.as_str()) },
    }))
}

/// One job. A job that is not remembered is open, and no error.
fn job(engine: &Engine, at: &ReadAt, query: &Query) -> Result<Value, Problem> {
    let state = engine.replica().state();
    let (name, key) = (query.name()?, key_named("key", query.required("key")?)?);
    let view = state.job(&name, &key);
    Ok(fencepost_json::job::whole(&name, &key, &view, |session| client(state, session), at))
}

// ---- Parts of rows

/// The client behind a session. Null if the session has ended.
fn client(state: &LockState, session: SessionId) -> Value {
    let metadata = state.session(session).map(|it| fencepost_json::metadata(it.record.metadata.as_bytes()));
    metadata.map_or(Value::Null, |metadata| fencepost_json::client(&metadata))
}

/// The number of the attempt that a grant of a job has begun.
fn attempt(state: &LockState, name: &Name, key: &JobKey, grant: GrantId) -> Option<u64> {
    let job = state.job(name, key).record?;
    (job.last?.grant == grant).then_some(job.attempts)
}

// ---- The query

/// The parameters of a call. Each comes at most once, and none is skipped.
#[derive(Debug)]
struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(text: &str, takes: &[&str]) -> Result<Query, Problem> {
        if text.len() > HTTP_QUERY_BYTES_MAX {
            return Err(Problem::invalid(format!(
                "the query has {} bytes: at most {HTTP_QUERY_BYTES_MAX}",
                text.len()
            )));
        }
        let mut query = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(text.as_bytes()) {
            if key != "stale" && !takes.contains(&key.as_ref()) {
                let known: Vec<&str> = takes.iter().copied().chain(["stale"]).collect();
                let (key, known) = (shortened(&key), known.join(", "));
                return Err(Problem::invalid(format!("{key:?} is no parameter of this path: it takes {known}")));
            }
            if query.insert(key.to_string(), value.into_owned()).is_some() {
                return Err(Problem::invalid(format!("{key} comes twice: give it once")));
            }
        }
        Ok(Query(query))
    }

    fn given(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn text(&self, key: &str) -> &str {
        self.given(key).unwrap_or_default()
    }

    fn required(&self, key: &str) -> Result<&str, Problem> {
        self.given(key).ok_or_else(|| Problem::invalid(format!("{key} is missing: add ?{key}=... to the path")))
    }

    fn name(&self) -> Result<Name, Problem> {
        name_of("name", self.required("name")?)
    }

    fn number(&self, key: &str) -> Result<Option<u64>, Problem> {
        let parse = |text: &str| {
            let wrong = || Problem::invalid(format!("{key}={:?} is not a whole number", shortened(text)));
            text.parse().map_err(|_| wrong())
        };
        self.given(key).map(parse).transpose()
    }

    fn limit(&self) -> Result<usize, Problem> {
        match self.number("limit")? {
            None => Ok(HTTP_ROWS_DEFAULT),
            Some(rows) if (1..=HTTP_ROWS_MAX as u64).contains(&rows) => Ok(rows as usize),
            Some(rows) => Err(Problem::invalid(format!("limit={rows} is not between 1 and {HTTP_ROWS_MAX}"))),
        }
    }

    fn switch(&self, key: &str) -> Result<bool, Problem> {
        match self.given(key) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(Problem::invalid(format!("{key}={:?} is neither true nor false", shortened(other)))),
        }
    }
}

fn name_of(key: &str, text: &str) -> Result<Name, Problem> {
    Name::new(text).map_err(|why| Problem::invalid(format!("{key}={:?}: {why}", shortened(text))))
}

fn key_named(key: &str, text: &str) -> Result<JobKey, Problem> {
    JobKey::new(text).map_err(|why| Problem::invalid(format!("{key}={:?}: {why}", shortened(text))))
}

/// A session's id as answers show it: 32 hex digits.
fn session_id(text: &str) -> Result<SessionId, Problem> {
    let is_hex = text.len() == 32 && text.bytes().all(|it| it.is_ascii_hexdigit());
    let id = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
    id.map(SessionId)
        .ok_or_else(|| Problem::invalid(format!("after={:?} is no session: give 32 hex digits", shortened(text))))
}
