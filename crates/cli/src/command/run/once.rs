//! `run --once`: the command runs once for a key, however many hosts ask.
//!
//! The cluster decides which host works and whether the job is done. This file asks, begins the attempt, runs the command with its files,
//! and completes the job if the command succeeds. Anything but exit code 0 ends the attempt and leaves the job open.

use std::process::ExitStatus;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencepost::{Completion, Error, Job, JobKey, Turn};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;

use super::checkpoints;
use super::job_files::JobFiles;
use super::period::{self, Period};
use super::supervise::{self, Ended, Environment, supervise};
use super::{Acquired, Args, RELEASE_PATIENCE, Task, stopping};
use crate::connect;
use crate::failure::{self, Failure, Result};
use crate::nesting::Outer;
use crate::{duration, output, shown};

#[derive(Debug, clap::Args)]
pub(super) struct OnceArgs {
    /// Run the command once for this key, such as 2026-11: if it has succeeded before, here or on another host, it does not run
    #[arg(long, value_name = "KEY", value_parser = connect::job_key, help_heading = "Jobs")]
    once: Option<JobKey>,
    /// Run the command once in each hour, day, week, month, or part of a day such as 15m. The key is the beginning of the period in
    /// UTC, like 2026-11-18. For crontabs, where the % of `date +%F` is a new line
    #[arg(long, value_name = "PERIOD", value_parser = period::parse, conflicts_with = "once", help_heading = "Jobs")]
    once_per: Option<Period>,
    /// Exit with this code if the job was done before [default: 0]
    #[arg(long, value_name = "CODE", help_heading = "Jobs")]
    done_exit: Option<u8>,
    /// Do not say that the job was done before: cron would send it by mail. Everything else is still said
    #[arg(long, help_heading = "Jobs")]
    quiet: bool,
    /// Give up after this many attempts: the job is then completed as failed, and the exit code is 122 [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Jobs")]
    attempts: Option<u64>,
    /// How long the cluster remembers the job after its last attempt: a minute to a year [default: 30 days]
    #[arg(long, value_name = "DURATION", value_parser = keep, help_heading = "Jobs")]
    keep: Option<Duration>,
}

fn keep(text: &str) -> std::result::Result<Duration, String> {
    let keep = duration::parse(text)?;
    if keep < Duration::from_millis(fencepost_core::bounds::KEEP_MS_MIN) {
        return Err("a job is kept for at least a minute: write 1m or more".to_owned());
    }
    Ok(keep)
}

impl OnceArgs {
    /// The key of the job, if the command is one. It is computed once: the period is the one in which `run` started.
    pub(super) fn key(&self) -> Option<JobKey> {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let of_period = || Some(JobKey::new(&self.once_per?.key(now())).expect("a date is a valid key"));
        self.once.clone().or_else(of_period)
    }

    /// Why these arguments make no sense with the others, if they do not.
    pub(super) fn refused(&self, args: &Args) -> Option<&'static str> {
        if self.once.is_none() && self.once_per.is_none() {
            let only_for_jobs = [
                (self.done_exit.is_some(), "--done-exit is for jobs: give --once KEY or --once-per PERIOD, too"),
                (self.attempts.is_some(), "--attempts is for jobs: give --once KEY or --once-per PERIOD, too"),
                (self.quiet, "--quiet is for jobs: give --once KEY or --once-per PERIOD, too"),
                (self.keep.is_some(), "--keep is for jobs: give --once KEY or --once-per PERIOD, too"),
            ];
            return only_for_jobs.into_iter().find(|(is_given, _)| *is_given).map(|(_, why)| why);
        }
        let wrong = [
            (args.shared, "a job is done by one command at a time: leave -s out, or leave --once out"),
            (
                args.locks.len() > 1,
                "a job is the key of one lock: name one, and run another `fencepost run` inside of this one for the next",
            ),
            (
                args.permits.is_some() || args.limit.is_some(),
                "a job is the key of a lock: leave --permits and --limit out",
            ),
            (
                args.tier == super::TierArg::Efficiency,
                "the efficiency tier forgets, so it cannot know what is done: leave --tier out",
            ),
            (
                args.at_least.is_some(),
                "--at-least spaces runs that have no key. A job that succeeded is never run again, and its lock ends with its completion: \
                 leave --at-least out",
            ),
        ];
        wrong.into_iter().find(|(is_wrong, _)| *is_wrong).map(|(_, why)| why)
    }
}

impl Task<'_> {
    /// Waits for the job, then runs the command if it is to run. Returns the exit code.
    pub(super) async fn run_once(&self, mut signals: mpsc::Receiver<Signal>, key: &JobKey) -> Result<u8> {
        let Task { args, client, .. } = *self;
        let mut request = args.locks_of(client, &args.locks).once(key.as_str());
        if let Some(keep) = args.job.keep {
            request = request.keep(keep);
        }
        let outer = Outer::of_environment();
        let this = This { args, key, shown: format!("{} {key}", args.shown()) };
        let mut job = match self.acquire(&outer, &mut signals, request).await? {
            Acquired::No(code) => return Ok(code),
            Acquired::Yes(Turn::Completed(completion)) => return Ok(this.completed_before(&completion)),
            Acquired::Yes(Turn::Yours(job)) => job,
        };
        let begun = tokio::select! {
            begun = this.begin(&mut job) => begun?,
            // The lock is given back when the job is dropped.
            signal = stopping(&mut signals) => return Ok(128 + signal as u8),
        };
        let (files, attempt) = match begun {
            Begun::Attempt(files, attempt) => (files, attempt),
            Begun::GaveUp(code) => return Ok(code),
        };
        let environment = Environment {
            locks: args.shown(),
            token: Some(job.token().get()),
            sessions: outer.and(job.session()),
            job: files.variables(key, attempt),
        };
        let hold = job.hold();
        let ended = tokio::select! {
            ended = supervise(args, &hold, &environment, &mut signals, self.grace()) => ended,
            () = checkpoints::serve(files.listener(), &hold) => unreachable!("it never returns"),
        };
        let ended = match ended {
            Ok(ended) => ended,
            Err(failure) => {
                this.leave_open(&mut job, "the command could not be started").await;
                return Err(failure);
            }
        };
        this.finish(job, attempt, ended, &files, &mut signals).await
    }
}

/// The attempt that has begun, or the exit code if there was one too many.
enum Begun {
    Attempt(JobFiles, u64),
    GaveUp(u8),
}

/// The job of this `run`, for messages.
struct This<'a> {
    args: &'a Args,
    key: &'a JobKey,
    /// `billing 2026-11`
    shown: String,
}

impl This<'_> {
    /// `fencepost job show billing 2026-11`
    fn command(&self, what: &str) -> String {
        shown::job_command(what, &self.args.locks[0], self.key)
    }

    fn say(&self, what: &str) {
        output::say(&format!("fencepost: {}", output::printable(&format!("{} {what}", self.shown))));
    }

    /// The exit code for a job that was completed before this `run` got it.
    fn completed_before(&self, completion: &Completion) -> u8 {
        let by = match (&completion.by, completion.attempts) {
            (Some(by), _) => format!(", completed by the administrator {}", by.as_str()),
            (None, 0) => String::new(),
            (None, attempts) => format!(" by attempt {attempts}"),
        };
        if completion.succeeded {
            if !self.args.job.quiet {
                self.say(&format!("was done before{by}: the command is not run. See {}", self.command("show")));
            }
            return self.args.job.done_exit.unwrap_or(0);
        }
        self.gave_up("has failed for good")
    }

    fn gave_up(&self, what: &str) -> u8 {
        let (show, forget) = (self.command("show"), self.command("forget"));
        self.say(&format!("{what}: the command is not run. See {show}. {forget} lets it run again"));
        failure::GAVE_UP
    }

    /// Prepares what the command gets, then begins the attempt. What fails before the attempt has begun is not counted as one.
    async fn begin(&self, job: &mut Job) -> Result<Begun> {
        let checkpoint = job.last_checkpoint().await.map_err(not_begun)?;
        let files = JobFiles::create(checkpoint.map(|it| it.bytes).unwrap_or_default())?;
        let attempt = job.begin().await.map_err(not_begun)?;
        match self.args.job.attempts.filter(|max| attempt > *max) {
            None => Ok(Begun::Attempt(files, attempt)),
            Some(max) => {
                job.complete_failed(format!("gave up after {max} attempts")).await.map_err(not_begun)?;
                Ok(Begun::GaveUp(self.gave_up(&format!("has used up its attempts ({max}) and has failed for good"))))
            }
        }
    }

    /// Ends the attempt as the command ended. Returns the exit code.
    async fn finish(
        &self,
        mut job: Job,
        attempt: u64,
        ended: Ended,
        files: &JobFiles,
        signals: &mut mpsc::Receiver<Signal>,
    ) -> Result<u8> {
        let Ended { status, stopped } = ended;
        if let Some(why) = stopped {
            // Arrives only if the lock is not lost yet. Then the record says why the attempt ended.
            self.leave_open(&mut job, &why).await;
            return Ok(self.lost(attempt, &why));
        }
        if status.success() {
            return Ok(self.complete(&mut job, attempt, files.result(), signals).await);
        }
        let how = how_it_ended(status);
        if let Some(lost) = self.leave_open(&mut job, &how).await {
            return Ok(self.lost(attempt, &lost));
        }
        self.say(&format!("stays open: attempt {attempt} ended with {how}"));
        Ok(supervise::code_of(status))
    }

    /// Completes the job as succeeded, however long that takes. A signal limits the wait, and what was sent may still arrive.
    async fn complete(&self, job: &mut Job, attempt: u64, result: Vec<u8>, signals: &mut mpsc::Receiver<Signal>) -> u8 {
        let mut completing = std::pin::pin!(job.complete(result));
        let completed = tokio::select! {
            biased;
            completed = &mut completing => Some(completed),
            _ = stopping(signals) => tokio::time::timeout(RELEASE_PATIENCE, completing).await.ok(),
        };
        match completed {
            Some(Ok(_)) => 0,
            Some(Err(error)) if matches!(error, Error::Refused(_)) => {
                let why = error.lost().map_or(error.to_string(), |why| why.to_string());
                self.say(&format!(
                    "is not completed: the lock was lost before the completion arrived, so another attempt runs the command again. \
                     Attempt {attempt} had ended with success: {why}"
                ));
                failure::LOST
            }
            unknown => {
                let why = match unknown {
                    Some(Err(error)) => error.to_string(),
                    _ => "a signal ended the wait for the answer".to_owned(),
                };
                self.say(&format!(
                    "may be completed or not: the command ended with success, but the cluster did not confirm it ({why}). {} tells it. If \
                     the job is open, the next run runs the command again",
                    self.command("show")
                ));
                failure::UNKNOWN
            }
        }
    }

    /// Ends the attempt, and gives the lock back. Returns why the lock was lost, if it was lost before.
    async fn leave_open(&self, job: &mut Job, error: &str) -> Option<String> {
        // If it does not arrive in time, the lock ends with its session, and the attempt with it.
        match tokio::time::timeout(RELEASE_PATIENCE, job.fail(error)).await {
            Ok(Err(error)) if error.lost().is_some() => Some(error.to_string()),
            _ => None,
        }
    }

    fn lost(&self, attempt: u64, why: &str) -> u8 {
        self.say(&format!("was lost while attempt {attempt} ran, and stays open: {why}"));
        failure::LOST
    }
}

/// The command did not run, so every error is a failure, also a lost lock.
fn not_begun(error: Error) -> Failure {
    Failure::failed(format!("the attempt did not begin, and the command did not run: {error}; try again"))
}

/// `exit code 3` or `signal 9`: the text that stays with the job. Nothing of the command's output: it may have secrets.
fn how_it_ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}
