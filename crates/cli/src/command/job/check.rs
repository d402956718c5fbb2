//! `fencepost job check`: has a job run in time? For monitors, which read an exit code and one line.

use std::time::Duration;

use fencepost::{Client, CompletionRecord, JobKey, JobRecord, Name, ReadAt};
use serde_json::json;

use crate::connect::{self, ServerArgs};
use crate::failure::{self, Result};
use crate::output::{self, Format, OutputArgs};
use crate::{duration, shown};

/// Check that a job of a name has succeeded lately; for monitors
///
/// Looks at every key of exactly this name. By the wall clock; a time that the cluster no longer knows counts as not in time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "\
Exit codes:
  0    a job of this name has succeeded in that time
  1    none has
  125  the cluster could not be asked

Example, for a job that runs each night and may take up to two hours:
  fencepost job check billing --within 26h",
    override_usage = "fencepost job check [OPTIONS] --within <DURATION> <JOB>"
)]
pub(crate) struct Args {
    /// The jobs' name
    #[arg(value_name = "JOB", value_parser = connect::name)]
    name: Name,
    /// How long ago it may be, such as 26h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    within: Duration,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) async fn run(args: Args) -> Result<u8> {
    let client = args.server.connect().await?;
    let (last, at) = last_success(&client, &args.name).await?;
    let age = last.as_ref().and_then(|(_, done)| at.age(done.at));
    let in_time = age.is_some_and(|age| age <= args.within);
    let within = duration::show(args.within.as_millis() as u64);
    let said = match &last {
        None => format!("{}: no job of this name has succeeded, or none is remembered", args.name),
        Some((key, done)) => {
            let by = if done.by.is_some() { " by an administrator" } else { "" };
            let key = format!("{key} was completed{by}");
            match (age, in_time) {
                (None, _) => {
                    format!("{}: not in time ({within}): {key} at a time that is not known any more", args.name)
                }
                (Some(_), true) => format!("{}: in time: {key} {}", args.name, when(&at, done)),
                (Some(_), false) => format!("{}: not in time ({within}): {key} {}", args.name, when(&at, done)),
            }
        }
    };
    match args.output.output {
        Format::Table => output::line(&output::printable(&said))?,
        Format::Json => output::json(&json!({
            "name": args.name.as_str(),
            "in_time": in_time,
            "within_ms": args.within.as_millis() as u64,
            "key": last.as_ref().map(|(key, _)| key.as_str()),
            "completed": last.as_ref().and_then(|(_, done)| at.wall_clock.at(done.at)).map(fencepost_json::rfc_3339),
            "age_ms": age.map(|age| age.as_millis() as u64),
            "by_administrator": last.as_ref().is_some_and(|(_, done)| done.by.is_some()),
        }))?,
    }
    Ok(if in_time { 0 } else { failure::REFUSED })
}

fn when(at: &ReadAt, done: &CompletionRecord) -> String {
    format!("{} ago, at {}", shown::age(at, done.at), shown::time(at, done.at))
}

/// A job that is completed: its key, and its completion.
type Done = (JobKey, CompletionRecord);

/// The last job of this name that has succeeded.
async fn last_success(client: &Client, name: &Name) -> Result<(Option<Done>, ReadAt)> {
    let (mut last, mut after): (Option<Done>, Option<(Name, JobKey)>) = (None, None);
    loop {
        let page = client.jobs(name.as_str(), after.as_ref()).await?;
        // Names are in order, so longer names with this prefix come after all keys of this one.
        let is_over = page.what.rows.last().is_some_and(|job| job.name != *name);
        let succeeded = |JobRecord { key, completion, .. }| Some((key, completion?)).filter(|(_, it)| it.succeeded);
        let of_name = page.what.rows.into_iter().filter(|job| job.name == *name);
        last = of_name.filter_map(succeeded).chain(last).max_by_key(|(_, it): &Done| it.at);
        after = page.what.next;
        if is_over || after.is_none() {
            return Ok((last, page.at));
        }
    }
}
