//! `fencepost job ...`: shows one job, waits for it, changes it as an administrator, and checks for monitors that jobs run.

mod check;
mod wait;

use fencepost::{AsOf, Client, JobKey, JobView, Name};

use crate::command::administer::{ActArgs, confirm};
use crate::connect::{self, ServerArgs};
use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::{listing, shown};
use fencepost_json::job::{Bytes, attempt_end, hex, since, state};

/// Show, wait for, complete and forget jobs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Show(ShowArgs),
    Wait(wait::Args),
    Check(check::Args),
    Complete(CompleteArgs),
    Forget(ForgetArgs),
    Allow(AllowArgs),
}

/// The name and the key of a job.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Job {
    /// The job's name, which is the name of its lock
    #[arg(id = "job_name", value_name = "JOB", value_parser = connect::name)]
    pub(crate) name: Name,
    /// The job's key, such as 2026-11
    // `key` is a flag: the TLS key.
    #[arg(id = "job_key", value_name = "KEY", value_parser = connect::job_key)]
    pub(crate) key: JobKey,
}

impl std::fmt::Display for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.key)
    }
}

impl Job {
    async fn read(&self, client: &Client) -> Result<AsOf<JobView>> {
        Ok(client.job(self.name.as_str(), self.key.as_str()).await?)
    }
}

/// Show one job: its state, its result, its checkpoint, and how its last attempt ended
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    job: Job,
    /// Print only the result, as it is: for a file or a program
    #[arg(long, conflicts_with_all = ["checkpoint", "error", "output"])]
    result: bool,
    /// Print only the last checkpoint, as it is
    #[arg(long, conflicts_with_all = ["error", "output"])]
    checkpoint: bool,
    /// Print only the error text of the last attempt, as it is
    #[arg(long, conflicts_with = "output")]
    error: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Complete a job as succeeded without running it, so that it is skipped
///
/// A command that works on it loses its lock and is stopped. Requests that wait for the job are answered that it is done. Asks first,
/// unless you pass --yes.
#[derive(Debug, clap::Args)]
pub(crate) struct CompleteArgs {
    #[command(flatten)]
    job: Job,
    #[command(flatten)]
    act: ActArgs,
}

/// Forget a job that is not held, so that it can run again
///
/// Its result, its checkpoint and the count of its attempts are forgotten, too. Asks first, unless you pass --yes.
#[derive(Debug, clap::Args)]
pub(crate) struct ForgetArgs {
    #[command(flatten)]
    job: Job,
    #[command(flatten)]
    act: ActArgs,
}

/// Allow jobs again after a backup was restored
///
/// The backup does not know what was completed after it was made, so a restored cluster would run those jobs again. It refuses jobs
/// until you have looked: find the jobs that ran since then, complete them with `fencepost job complete`, then allow jobs.
#[derive(Debug, clap::Args)]
pub(crate) struct AllowArgs {
    #[command(flatten)]
    act: ActArgs,
}

pub(crate) async fn run(args: Args) -> Result<u8> {
    match args.what {
        What::Show(args) => show(args).await.map(|()| 0),
        What::Wait(args) => wait::run(args).await,
        What::Check(args) => check::run(args).await,
        What::Complete(args) => complete(args).await.map(|()| 0),
        What::Forget(args) => forget(args).await.map(|()| 0),
        What::Allow(args) => allow(args).await.map(|()| 0),
    }
}

async fn show(args: ShowArgs) -> Result {
    let client = args.server.connect().await?;
    let seen = args.job.read(&client).await?;
    let AsOf { at, what } = &seen;
    if what.record.is_none() && what.holder.is_none() && what.waiting == 0 {
        return Err(not_remembered(&args.job));
    }
    let bytes = Bytes::of(what);
    for (is_wanted, bytes, what) in [
        (args.result, bytes.result, "result"),
        (args.checkpoint, bytes.checkpoint, "checkpoint"),
        (args.error, bytes.error, "error text"),
    ] {
        if is_wanted {
            let bytes = bytes.ok_or_else(|| {
                Failure::refused(format!(
                    "{} has no {what}: see {}",
                    args.job,
                    shown::job_command("show", &args.job.name, &args.job.key)
                ))
            })?;
            return Ok(std::io::Write::write_all(&mut std::io::stdout(), bytes)?);
        }
    }
    let sessions = what.holder.iter().filter_map(|holder| holder.session);
    let sessions = sessions.chain(what.record.iter().filter_map(|job| Some(job.last.as_ref()?.session)));
    let people = listing::people(&client, sessions).await?;
    if args.output.output == Format::Json {
        return output::json(&fencepost_json::job::whole(
            &args.job.name,
            &args.job.key,
            &seen.what,
            |it| people.json(it),
            &seen.at,
        ));
    }
    let line =
        |heading: &str, text: &str| output::line(format!("{heading:<10}  {}", output::printable(text)).trim_end());
    line("job", args.job.name.as_str())?;
    line("key", args.job.key.as_str())?;
    let Some(job) = &what.record else {
        line("state", if what.holder.is_some() { "held, and no attempt has begun" } else { "no attempt has begun" })?;
        return waiting(what.waiting);
    };
    let when = since(job)
        .map_or(String::new(), |since| format!(", since {} ({} ago)", shown::time(at, since), shown::age(at, since)));
    line("state", &format!("{}{when}", state(job).words(job)))?;
    line("attempts", &job.attempts.to_string())?;
    if let Some(last) = &job.last {
        let who = people.who(last.session, None);
        let (time, token) = (shown::time(at, last.began_at), last.token.0);
        line("last", &format!("attempt {} began {time} with token {token}, by {who}", job.attempts))?;
        if let Some(ended) = &last.ended {
            let (how, time) = (attempt_end(&ended.how), shown::time(at, ended.at));
            line("", &format!("it ended {time}: {how}"))?;
        }
    }
    if let Some(by) = job.completion.as_ref().and_then(|completion| completion.by.as_ref()) {
        line("by", by.as_str())?;
    }
    if let Some(until) = job.until {
        line("kept for", &shown::left(until, at.stamp))?;
    }
    for (heading, bytes, more) in [
        ("error", bytes.error, String::new()),
        (
            "checkpoint",
            bytes.checkpoint,
            job.checkpoint
                .as_ref()
                .map_or(String::new(), |it| format!("of attempt {}, {} ago", it.attempt, shown::age(at, it.at))),
        ),
        ("result", bytes.result, String::new()),
    ] {
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty() || heading == "checkpoint") else { continue };
        let text = lines(bytes);
        match (text.as_slice(), more.is_empty()) {
            ([one], true) => line(heading, one)?,
            (all, _) => {
                line(heading, &more)?;
                all.iter().try_for_each(|text| line("", text))?;
            }
        }
    }
    waiting(what.waiting)
}

fn waiting(count: usize) -> Result {
    if count > 0 {
        output::line(&format!("{:<10}  {count}", "waiting"))?;
    }
    Ok(())
}

fn not_remembered(job: &Job) -> Failure {
    Failure::refused(format!(
        "nothing is remembered of {job}: no attempt has begun, or it was forgotten, or the time to keep it is over; `fencepost jobs` lists \
         what is remembered"
    ))
}

/// What a job stores. `None` for what it does not have.
/// Text as it is, line by line, if people can read it, else bytes in hex.
fn lines(bytes: &[u8]) -> Vec<String> {
    let is_readable = |text: &&str| !text.chars().any(|it| it.is_control() && !matches!(it, '\n' | '\t' | '\r'));
    match std::str::from_utf8(bytes).ok().filter(is_readable) {
        Some("") => vec!["(empty)".to_owned()],
        Some(text) => text.lines().map(|line| line.replace('\t', "    ")).collect(),
        None => bytes.chunks(32).map(hex).collect(),
    }
}

async fn complete(args: CompleteArgs) -> Result {
    let CompleteArgs { job, act } = args;
    let client = act.server.connect().await?;
    let AsOf { at, what } = job.read(&client).await?;
    if let Some(record) = what.record.as_ref().filter(|record| record.completion.is_some()) {
        output::say(&format!("fencepost: {job} is {} already: nothing was done", state(record).words(record)));
        return Ok(());
    }
    let people = listing::people(&client, what.holder.iter().filter_map(|holder| holder.session)).await?;
    let consequence = match &what.holder {
        Some(holder) => {
            let who = holder.session.map_or("a session that has ended".to_owned(), |it| people.who(it, None));
            format!(". It loses its lock: {who}, which has held it for {}", shown::age(&at, holder.since))
        }
        None => String::new(),
    };
    confirm(&format!("This will complete {job} without running it{consequence}"), act.yes)?;
    client.admin().reason(&act.reason).complete_job(job.name.as_str(), job.key.as_str()).await?;
    output::say(&format!("fencepost: completed: {}", output::printable(&format!("{job}{consequence}"))));
    Ok(())
}

async fn forget(args: ForgetArgs) -> Result {
    let ForgetArgs { job, act } = args;
    let client = act.server.connect().await?;
    let AsOf { what, .. } = job.read(&client).await?;
    if let Some(holder) = &what.holder {
        return Err(Failure::refused(format!(
            "{job} is held: end it with `fencepost break --grant {}`, then forget it",
            holder.grant.0
        )));
    }
    let record = what.record.ok_or_else(|| not_remembered(&job))?;
    let shown = format!("{job}, which was {} after {} attempts", state(&record).words(&record), record.attempts);
    confirm(&format!("This will forget {shown}: it can run again"), act.yes)?;
    client.admin().reason(&act.reason).forget_job(job.name.as_str(), job.key.as_str()).await?;
    output::say(&format!("fencepost: forgotten: {}", output::printable(&shown)));
    Ok(())
}

async fn allow(args: AllowArgs) -> Result {
    let client = args.act.server.connect().await?;
    if !client.status().await?.counts.jobs_refused {
        output::say("fencepost: jobs are allowed already: nothing was done");
        return Ok(());
    }
    confirm(
        "This will allow jobs. A job that was completed after the backup was made runs again, unless you complete it first with \
         `fencepost job complete`",
        args.act.yes,
    )?;
    client.admin().reason(&args.act.reason).allow_jobs().await?;
    output::say("fencepost: jobs are allowed");
    Ok(())
}
