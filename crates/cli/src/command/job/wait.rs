//! `fencepost job wait`: returns when a job is completed.
//!
//! It reads the job, then watches the events after that read, so no completion is missed and nothing is polled.

use std::time::Duration;

use fencepost::{AsOf, Client, Completion, Error, Event, JobFact, JobView, Position, Refused};

use super::Job;
use crate::connect::ServerArgs;
use crate::failure::{self, Failure, Result};
use crate::{duration, output};
use fencepost_json::job::state;

/// Wait until a job is completed
///
/// Also for a job whose first attempt has not begun. It does not run the job: `fencepost run --once` does.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0    the job has succeeded
  122  the job has failed for good
  124  the wait is over")]
pub(crate) struct Args {
    #[command(flatten)]
    job: Job,
    /// Wait at most this long: 30s, 1h30m, or a number of seconds [default: for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(args: Args) -> Result<u8> {
    let client = args.server.connect().await?;
    let completed = completed(&client, &args.job);
    let completion = match args.wait {
        None => completed.await?,
        Some(wait) => match tokio::time::timeout(wait, completed).await {
            Ok(completion) => completion?,
            Err(_) => {
                let message =
                    format!("{} is not completed after {}", args.job, duration::show(wait.as_millis() as u64));
                return Err(Failure { code: failure::NOT_ACQUIRED, message });
            }
        },
    };
    output::line(&output::printable(&format!(
        "{} has {}",
        args.job,
        if completion.succeeded { "succeeded" } else { "failed" }
    )))?;
    Ok(if completion.succeeded { 0 } else { failure::GAVE_UP })
}

async fn completed(client: &Client, job: &Job) -> Result<Completion> {
    let mut is_said = false;
    loop {
        let AsOf { at, what } = job.read(client).await?;
        let JobView { record, .. } = what;
        if let Some(completion) = record.clone().and_then(Completion::of) {
            return Ok(completion);
        }
        if !is_said {
            let now = record.as_ref().map_or("no attempt has begun".to_owned(), |record| state(record).words(record));
            output::say(&format!("fencepost: {}", output::printable(&format!("waiting for {job}: {now}"))));
            is_said = true;
        }
        // After everything that the read has seen.
        let after = Position { index: at.index, ordinal: u32::MAX };
        let mut watch = client.watch(job.name.as_str()).after(after).start().await?;
        loop {
            match watch.next().await {
                Some(Ok(event)) => {
                    if let Event::Job { name, key, what: JobFact::Completed { .. } } = &event.event
                        && (name, key) == (&job.name, &job.key)
                    {
                        break;
                    }
                }
                // The events since the read are gone: read again, and watch from there.
                Some(Err(Error::Refused(Refused::Compacted(_)))) | None => break,
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }
}
