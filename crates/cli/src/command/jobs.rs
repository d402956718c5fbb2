//! `fencepost jobs`: lists what the cluster remembers of jobs. `job.rs` shows and changes one job.
//!
//! A listing has no results, checkpoints and error texts: they may be large.

use std::collections::BTreeMap;

use fencepost::{GrantView, JobKey, JobRecord, Name, ReadAt};
use fencepost_json::job::{self as json_of, attempt_end, since, state};
use serde_json::Value;

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
                Row::Remembered(job) => json_of::record(job, &at),
                Row::OnlyHeld(grant) => json_of::held_job(name, key, grant, &at),
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
