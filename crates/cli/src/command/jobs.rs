//! `fencepost jobs`: lists what the cluster remembers of jobs. `job.rs` shows and changes one job.
//!
//! A listing has no results, checkpoints and error texts: they may be large.

use std::collections::BTreeMap;

use fencepost::{GrantView, JobKey, JobRecord, Name, ReadAt};
use serde_json::{Value, json};

use crate::connect::ServerArgs;
use crate::failure::Result;
use crate::listing;
use crate::output::{self, Format, OutputArgs};
use crate::shown;

/// List jobs: their state, their attempts, and how the last attempt ended
///
/// A job is a name and a key, such as billing and 2026-11. See `fencepost run --once` for what makes one, and `fencepost job show` for
/// its result and its checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only names with this prefix
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) async fn run(args: Args) -> Result {
    let client = args.server.connect().await?;
    // Grants first: the attempt of a grant that is in the list has begun at the latest when the jobs are read.
    let (grants, _) = listing::grants(&client, &args.prefix).await?;
    let (jobs, at) = listing::jobs(&client, &args.prefix).await?;
    let mut rows: BTreeMap<(Name, JobKey), Row<'_>> = BTreeMap::new();
    for job in &jobs {
        rows.insert((job.name.clone(), job.key.clone()), Row::Remembered(job));
    }
    for grant in &grants {
        if let Some((name, terms)) = grant.record.job().filter(|(name, _)| name.as_str().starts_with(&args.prefix)) {
            rows.entry((name.clone(), terms.key.clone())).or_insert(Row::OnlyHeld(grant));
        }
    }
    if client.status().await?.counts.jobs_refused {
        output::say("fencepost: jobs are refused since this cluster was restored: see `fencepost job allow --help`");
    }
    match args.output.output {
        Format::Json => {
            let json = |((name, key), row): (&(Name, JobKey), &Row<'_>)| match row {
                Row::Remembered(job) => job_json(job, &at),
                Row::OnlyHeld(grant) => held_json(name, key, grant, &at),
            };
            output::json(&rows.iter().map(json).collect::<Vec<Value>>())
        }
        Format::Table => {
            let cells: Vec<[String; 8]> = rows.iter().map(|((name, key), row)| row.cells(name, key, &at)).collect();
            let heading = ["JOB", "KEY", "STATE", "ATTEMPTS", "CHECKPOINT", "LAST ERROR", "SINCE", "AGE"];
            output::table(heading, &cells, &nothing(&args.prefix))
        }
    }
}

fn nothing(prefix: &str) -> String {
    match prefix {
        "" => "fencepost: there are no jobs".to_owned(),
        _ => format!("fencepost: there are no jobs of names that begin with {prefix:?}"),
    }
}

enum Row<'a> {
    Remembered(&'a JobRecord),
    /// A job is remembered from its first attempt on. Its first holder has not begun one yet.
    OnlyHeld(&'a GrantView),
}

impl Row<'_> {
    fn cells(&self, name: &Name, key: &JobKey, at: &ReadAt) -> [String; 8] {
        let dash = || "-".to_owned();
        let (state, attempts, checkpoint, error, since) = match self {
            Row::OnlyHeld(grant) => ("held".to_owned(), 0, dash(), dash(), Some(grant.record.granted_at)),
            Row::Remembered(job) => {
                let checkpoint =
                    job.checkpoint.as_ref().map_or_else(dash, |it| format!("{} ago", shown::age(at, it.at)));
                let error = job.last.as_ref().and_then(|last| last.ended.as_ref());
                let error = error.map_or_else(dash, |ended| attempt_end(&ended.how).to_owned());
                (state(job).words(job), job.attempts, checkpoint, error, since(job))
            }
        };
        let (time, age) =
            since.map_or_else(|| (dash(), dash()), |since| (shown::time(at, since), shown::age(at, since)));
        [name.to_string(), key.to_string(), state, attempts.to_string(), checkpoint, error, time, age]
    }
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    Held,
    Running,
    Completed,
    CompletedByAdministrator,
    Failed,
}

pub(crate) fn state(job: &JobRecord) -> State {
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
    pub(crate) fn words(self, job: &JobRecord) -> String {
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
    pub(crate) fn code(self) -> &'static str {
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
pub(crate) fn since(job: &JobRecord) -> Option<fencepost::LogicalMs> {
    let completed = job.completion.as_ref().map(|it| it.at);
    let attempt = job.last.as_ref().map(|last| last.ended.as_ref().map_or(last.began_at, |ended| ended.at));
    completed.or(attempt)
}

/// How an attempt ended that did not complete its job.
pub(crate) fn attempt_end(how: &fencepost::GrantEnd) -> &'static str {
    match how {
        // The holder gave the lock back: because of an error, or to try again later.
        fencepost::GrantEnd::Released => "failed",
        other => shown::grant_end(other),
    }
}

/// A job as JSON, without what it stores.
pub(crate) fn job_json(job: &JobRecord, at: &ReadAt) -> Value {
    let state = state(job);
    let completion = job.completion.as_ref().map(|it| {
        let row = json!({
            "succeeded": it.succeeded,
            "token": it.token.map(|token| token.0),
            "by_administrator": it.by.as_ref().map(|by| by.as_str()),
        });
        shown::with_since(row, at, it.at)
    });
    let checkpoint = job.checkpoint.as_ref().map(|it| shown::with_since(json!({ "attempt": it.attempt }), at, it.at));
    let last_attempt = job.last.as_ref().map(|last| {
        let ended =
            last.ended.as_ref().map(|ended| shown::with_since(json!({ "how": attempt_end(&ended.how) }), at, ended.at));
        let row = json!({
            "attempt": job.attempts,
            "grant": last.grant.0,
            "token": last.token.0,
            "session": shown::session_id(last.session),
            "ended": ended,
        });
        shown::with_since(row, at, last.began_at)
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
        Some(since) => shown::with_since(row, at, since),
        None => row,
    }
}

/// A job that is held and not begun, as JSON.
fn held_json(name: &Name, key: &JobKey, grant: &GrantView, at: &ReadAt) -> Value {
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
    shown::with_since(row, at, grant.record.granted_at)
}
