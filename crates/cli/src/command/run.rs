//! `fencepost run`: runs a command only while a lock is held.
//!
//! This file has the arguments, the wait for the lock, and the exit codes. `request.rs` has what can be asked for, `supervise.rs` runs the
//! command while the lock is held, and `once.rs` decides about jobs.

mod checkpoints;
mod job_files;
mod once;
mod period;
mod request;
mod supervise;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use fencepost::{
    BusyWhy, Client, Error, Exclusive, GrantId, Guard, Hold, LockMode, LockRequest, Name, Obstacle, OwnerName, Refusal,
    Refused, SemaphoreRequest, SessionId, Tier,
};
use fencepost_core::bounds::{SESSION_TTL_MS_DEFAULT, TTL_MS_MIN};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::connect::{self, ServerArgs};
use crate::failure::{self, Failure, Result};
use crate::nesting::{Outer, Wanted};
use crate::{duration, listing, output};
use once::OnceArgs;
use request::{Request, ShowsToken};
use supervise::{Ended, Environment, supervise};

pub(crate) use checkpoints::too_long as checkpoint_too_long;
pub(crate) use job_files::{SOCKET as CHECKPOINT_SOCKET, VARIABLES as JOB_VARIABLES};

/// How long to wait for the answer to a release. The lock ends with its deadline at the latest.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);
/// How long to look for the client behind the session that holds the lock.
const INTRODUCTION_PATIENCE: Duration = Duration::from_millis(500);
/// After this time without the lock, a user at a terminal is told that it waits.
const SAY_AFTER: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
The command gets these environment variables:
  FENCEPOST_LOCK      the names of the locks, or of the semaphore, one a line
  FENCEPOST_TOKEN     the fencing token: send it to the store with every write (with -s: for reads only). Several locks share
                      one token. Permits and locks of the efficiency tier have none; then the variable is not set
  FENCEPOST_DEADLINE  the end of the lease when the command started, in unix milliseconds of the wall clock: only a
                      hint, because renewals extend the lease
  FENCEPOST_SESSIONS  the sessions that the command runs under. A `fencepost run` inside of it that asks for the same lock
                      would wait for itself, so it is refused at once (-s inside -s is granted)
The command of a job (--once, --once-per) also gets:
  FENCEPOST_JOB_KEY   the key
  FENCEPOST_ATTEMPT   the number of this attempt, from 1. A later one may find work of an earlier one
  FENCEPOST_LAST_CHECKPOINT  a file with the last checkpoint of an earlier attempt; it is empty in the first attempt
  FENCEPOST_RESULT    an empty file: what it contains when the command succeeds is the result of the job, at most 4096 bytes
  FENCEPOST_CHECKPOINT_SOCKET  for `fencepost checkpoint TEXT`, which stores a checkpoint and returns when it is replicated
Exit code 0 completes the job, for ever or until --keep is over. Any other end leaves it open, and the next run tries again. The last write
of the command and the completion are not one step: a crash in between runs the command again. docs/guides/jobs.md says what the store can
do about that. The files are gone when `fencepost run` ends.

It does not get FENCEPOST_STORE_PASSWORD, which is a secret. Paths such as FENCEPOST_KEY are passed on.

It runs in its own process group. Before the lock's deadline the group gets TERM, and KILL at the deadline or when the lock
is lost, so that it is gone before the next holder starts. INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are passed on.
`fencepost run` does not wait for processes that the command leaves in the background. If `fencepost run` itself is killed,
so is the command (on Linux).

Exit codes: the command's own (128+N if signal N ended it), 0 if a job was done before (--done-exit sets another code), or
  1    refused for another reason than those below: for example, a semaphore without a limit
  2    wrong usage: fix the arguments or the settings. Also for a lock that is a semaphore, and the reverse
  121  a job: the command succeeded, but the cluster did not confirm the completion; `fencepost job show` tells
  122  a job: it has failed for good, now or before; the command did not run
  123  the lock was lost, and the command was stopped
  124  the lock was not acquired: it is busy or frozen, the wait is over, or waiting would be a deadlock (-E sets another code)
  125  fencepost failed: for example, the cluster cannot be reached
  126  the command cannot be executed
  127  the command was not found

Examples:
  fencepost run nightly -- ./backup.sh              wait for the lock, then run
  fencepost run -n nightly -- ./backup.sh           run if the lock is free, else exit with 124
  fencepost run -w 30s --max-hold 1h30m nightly -- ./backup.sh
  fencepost run wallet:7 wallet:8 -- ./move.sh      both locks, or none
  fencepost run --limit 3 uploads -- ./upload.sh    at most three at a time
  fencepost run --tier efficiency thumbs -- ./thumbs.sh
  fencepost run --once 2026-11 billing -- ./bill.sh           once, on whichever host is first
  fencepost run --once-per day --quiet backup -- ./backup.sh  in the crontab of every host
  fencepost run -n --at-least 50s tidy -- ./tidy.sh           every minute on several hosts, but only on one";

/// Run a command while holding a lock
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, override_usage = "fencepost run [OPTIONS] <LOCK>... -- <COMMAND>...")]
pub(crate) struct Args {
    /// The lock. Several are granted together or not at all. A name that begins with / is a path and covers everything below it
    #[arg(required = true, value_name = "LOCK", value_parser = connect::name)]
    locks: Vec<Name>,
    /// Do not wait: exit with 124 if the lock is not free
    #[arg(short = 'n', long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait at most this long: 30s, 1h30m, or a number of seconds [default: for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Share the lock with other holders that use -s
    #[arg(short, long)]
    shared: bool,
    /// Take this many permits of a semaphore instead of a lock [default: 1 with --limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    permits: Option<u32>,
    /// The semaphore has this many permits in all. Not needed if `fencepost limit` has set it; if both are given, they must be
    /// equal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// How the lock is kept
    #[arg(long, value_enum, default_value = "correctness", value_name = "TIER")]
    tier: TierArg,
    /// The unit of work that holds the lock, for people who ask who holds it
    #[arg(long, value_name = "NAME", value_parser = owner)]
    owner: Option<OwnerName>,
    /// Exit with this code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = failure::NOT_ACQUIRED)]
    conflict_exit_code: u8,
    /// How long the lock stays held if this machine dies [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Duration>,
    /// Stop the command this long after the lock was granted
    #[arg(long, value_name = "DURATION", value_parser = max_hold)]
    max_hold: Option<Duration>,
    /// Keep the lock until this long after the command began, also if it ends sooner. Spaces runs on hosts whose clocks differ; ends
    /// with the lease if this machine dies
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    at_least: Option<Duration>,
    #[command(flatten)]
    job: OnceArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// The command and its arguments, after --
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How a lock is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TierArg {
    /// By a majority of the nodes, with a fencing token
    Correctness,
    /// In the leader's memory only: fast, without a token, and forgotten when the leader changes
    Efficiency,
}

fn owner(text: &str) -> std::result::Result<OwnerName, String> {
    OwnerName::new(text).map_err(|why| format!("{why}; choose another name"))
}

fn ttl(text: &str) -> std::result::Result<Duration, String> {
    let ttl = duration::parse(text)?;
    if ttl < Duration::from_millis(TTL_MS_MIN) {
        return Err("a time to live is at least one second: write 1s or more".to_owned());
    }
    Ok(ttl)
}

fn max_hold(text: &str) -> std::result::Result<Duration, String> {
    let max_hold = duration::parse(text)?;
    if max_hold.is_zero() {
        return Err("the command needs time to run: write 1s or more".to_owned());
    }
    Ok(max_hold)
}

impl Args {
    /// What to ask for.
    ///
    /// # Errors
    /// Arguments that make no sense together. The message says what to leave out.
    fn wanted(&self) -> Result<Wanted> {
        if self.command.is_empty() {
            return Err(Failure::usage(no_command(&self.locks)));
        }
        if let Some((_, twice)) = self.locks.iter().enumerate().find(|(at, lock)| self.locks[..*at].contains(lock)) {
            return Err(Failure::usage(format!("{twice} is named twice: name each lock once")));
        }
        if let Some(why) = self.job.refused(self) {
            return Err(Failure::usage(why));
        }
        if self.max_hold.zip(self.at_least).is_some_and(|(max_hold, at_least)| at_least > max_hold) {
            return Err(Failure::usage("--at-least is longer than --max-hold, which ends the lock: make it shorter"));
        }
        let mode = if self.shared { LockMode::Shared } else { LockMode::Exclusive };
        let tier = match self.tier {
            TierArg::Correctness => Tier::Correctness,
            TierArg::Efficiency => Tier::Efficiency,
        };
        if self.permits.is_none() && self.limit.is_none() {
            return Ok(Wanted::Locks { names: self.locks.clone(), mode, tier });
        }
        let (name, permits) = (self.locks[0].clone(), self.permits.unwrap_or(1));
        let refused = if self.locks.len() > 1 {
            "permits are taken of one semaphore: name one, and run another `fencepost run` inside of this one for the next"
        } else if self.shared {
            "a semaphore is shared by its nature: leave -s out"
        } else if self.owner.is_some() {
            "permits have no owner: leave --owner out"
        } else if tier == Tier::Efficiency {
            "the efficiency tier has no semaphores: leave --tier out"
        } else if name.as_str().starts_with('/') {
            "a path is a lock, never a semaphore: choose a name that does not begin with /"
        } else if self.limit.is_some_and(|limit| permits > limit) {
            "--permits is more than --limit: ask for fewer, or raise the limit"
        } else {
            return Ok(Wanted::Permits { name, permits });
        };
        Err(Failure::usage(refused))
    }

    /// The names, for messages.
    fn shown(&self) -> String {
        self.locks.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
    }

    /// How to find out what blocks a name.
    fn advice(&self, name: &Name) -> String {
        match self.tier {
            TierArg::Correctness => format!("`fencepost why {name}` shows what blocks it"),
            TierArg::Efficiency => "the efficiency tier does not say what blocks it".to_owned(),
        }
    }
}

/// The refusal of a `run` without a command. Words that were meant as the command were read as locks.
fn no_command(locks: &[Name]) -> String {
    match locks {
        [lock, command @ ..] if !command.is_empty() => {
            let command: Vec<&str> = command.iter().map(Name::as_str).collect();
            format!(
                "there is no -- before the command: write `fencepost run {lock} -- {}`. Words before -- are locks",
                command.join(" ")
            )
        }
        _ => format!("the command is missing: write `fencepost run {} -- COMMAND`", locks[0]),
    }
}

/// Returns the exit code.
pub(crate) async fn run(mut args: Args) -> Result<u8> {
    let wanted = args.wanted()?;
    let job_key = args.job.key();
    let mut signals = signals()?;
    let (builder, nodes) = args.server.builder_that_waits(args.wait)?;
    let begun = Instant::now();
    let ttl = args.ttl.unwrap_or(Duration::from_millis(SESSION_TTL_MS_DEFAULT));
    let command = args.command[0].to_string_lossy().into_owned();
    let connecting =
        builder.session_ttl(ttl).name("fencepost run").label("command", output::printable(&command)).connect();
    let client = tokio::select! {
        connected = connecting => connected.map_err(|error| connect::unreachable(&nodes, error))?,
        signal = stopping(&mut signals) => return Ok(128 + signal as u8),
    };
    // The time that it took to connect counts, as if it had waited for the lock.
    args.wait = args.wait.map(|wait| wait.saturating_sub(begun.elapsed()));
    let task = Task { args: &args, client: &client, wanted: &wanted, ttl };
    let code = match &wanted {
        _ if let Some(key) = &job_key => task.run_once(signals, key).await,
        Wanted::Permits { name, permits } => task.run(signals, args.permits_of(&client, name, *permits)).await,
        Wanted::Locks { names, mode, tier } => {
            let request = args.locks_of(&client, names);
            match (mode, tier) {
                (LockMode::Shared, Tier::Correctness) => task.run(signals, request.shared()).await,
                (_, Tier::Correctness) => task.run(signals, request).await,
                (LockMode::Shared, Tier::Efficiency) => task.run(signals, request.shared().efficiency()).await,
                (_, Tier::Efficiency) => task.run(signals, request.efficiency()).await,
            }
        }
    };
    // Ends a wait that a signal broke off. A lock that was held is already released.
    let _ = tokio::time::timeout(RELEASE_PATIENCE, client.close()).await;
    code
}

impl Args {
    fn locks_of(&self, client: &Client, names: &[Name]) -> LockRequest<Exclusive> {
        let mut request = client.lock_all(names.iter().map(Name::as_str));
        request = match self.wait {
            Some(wait) => request.wait(wait),
            None => request.wait_forever(),
        };
        if let Some(max_hold) = self.max_hold {
            request = request.max_hold(max_hold);
        }
        match &self.owner {
            Some(owner) => request.owner(owner.as_str()),
            None => request,
        }
    }

    fn permits_of(&self, client: &Client, name: &Name, permits: u32) -> SemaphoreRequest {
        let mut request = client.semaphore(name.as_str()).permits(permits);
        request = match self.wait {
            Some(wait) => request.wait(wait),
            None => request.wait_forever(),
        };
        if let Some(max_hold) = self.max_hold {
            request = request.max_hold(max_hold);
        }
        match self.limit {
            Some(limit) => request.limit(limit),
            None => request,
        }
    }
}

/// The outcome of the acquire.
enum Acquired<Got> {
    Yes(Got),
    /// The exit code. The user was told why.
    No(u8),
}

/// What is to be done, once connected.
struct Task<'a> {
    args: &'a Args,
    client: &'a Client,
    wanted: &'a Wanted,
    ttl: Duration,
}

impl Task<'_> {
    /// Waits for the lock, then runs the command under it. Returns the exit code.
    async fn run<M, R: Request<Got = Guard<M>>>(&self, mut signals: mpsc::Receiver<Signal>, request: R) -> Result<u8>
    where
        Hold<M>: ShowsToken,
    {
        let args = self.args;
        let outer = Outer::of_environment();
        let guard = match self.acquire(&outer, &mut signals, request).await? {
            Acquired::Yes(guard) => guard,
            Acquired::No(code) => return Ok(code),
        };
        let hold = guard.hold();
        let environment = Environment {
            locks: args.locks.iter().map(Name::as_str).collect::<Vec<_>>().join("\n"),
            token: hold.shown_token(),
            sessions: outer.and(hold.session()),
            job: Vec::new(),
        };
        let begun = Instant::now();
        let ended = supervise(args, &hold, &environment, &mut signals, self.grace()).await;
        let was_held_on = match (&ended, args.at_least) {
            (Ok(Ended { stopped: None, .. }), Some(at_least)) => {
                supervise::hold_on(args, &hold, begun + at_least, &mut signals).await
            }
            _ => false,
        };
        let released = tokio::time::timeout(RELEASE_PATIENCE, guard.release()).await;
        let Ended { status, stopped } = ended?;
        let lost = match (stopped, released) {
            (Some(why), _) => Some(why),
            // A lock that is lost after the command has ended did no harm.
            (None, Ok(Err(error))) if !was_held_on => error.lost().map(|_| error.to_string()),
            _ => None,
        };
        match lost {
            Some(why) => {
                output::say(&format!("fencepost: {} was lost while the command ran: {why}", args.shown()));
                Ok(failure::LOST)
            }
            None => Ok(supervise::code_of(status)),
        }
    }

    /// How long before the deadline of the lock the command is told to end.
    fn grace(&self) -> Duration {
        self.args.max_hold.map_or(self.ttl, |max_hold| max_hold.min(self.ttl)) / 6
    }

    /// Waits for what is asked for.
    async fn acquire<R: Request>(
        &self,
        outer: &Outer,
        signals: &mut mpsc::Receiver<Signal>,
        request: R,
    ) -> Result<Acquired<R::Got>> {
        let Task { args, client, wanted, .. } = *self;
        /// An outer `run` holds the lock, and waits for this process to end.
        struct ByOuter(GrantId);
        let acquiring = async {
            if args.nonblock || !outer.is_empty() {
                match request.clone().try_once().await? {
                    Ok(got) => return Ok(Ok(got)),
                    Err(busy) => match outer.in_the_way(client, wanted, &busy).await? {
                        Some(grant) => return Ok(Err(ByOuter(grant))),
                        None if args.nonblock => return Err(Error::from(Refused::Busy(busy))),
                        None => {}
                    },
                }
            }
            request.wait().await.map(Ok)
        };
        let acquired = tokio::select! {
            acquired = acquiring => acquired,
            signal = stopping(signals) => return Ok(Acquired::No(128 + signal as u8)),
            () = say_that_it_waits(args) => unreachable!("it never returns"),
        };
        let why_not = match acquired {
            Ok(Ok(got)) => return Ok(Acquired::Yes(got)),
            Ok(Err(ByOuter(grant))) => format!(
                "{} was not acquired: an outer `fencepost run` holds it (grant {}) until this command ends, so it would wait for itself for \
                 ever. Remove the inner `run`, or use another lock there",
                args.shown(),
                grant.0
            ),
            Err(error) => {
                let holder = holder_of(&error);
                output::say(&format!("fencepost: {}", output::printable(&not_acquired(args, error)?)));
                if let Some(holder) = holder {
                    introduce(client, holder).await;
                }
                return Ok(Acquired::No(args.conflict_exit_code));
            }
        };
        output::say(&format!("fencepost: {why_not}"));
        Ok(Acquired::No(args.conflict_exit_code))
    }
}

/// The session that held the lock when the wait was over, if that is known.
fn holder_of(error: &Error) -> Option<SessionId> {
    match error {
        Error::Refused(Refused::TimedOut { obstacle: Obstacle::Explained(explained), .. }) => {
            explained.what.holders.first()?.holder.session
        }
        _ => None,
    }
}

/// Says which client is behind a session, and on which machine. Nothing if the cluster does not say it in time.
async fn introduce(client: &Client, holder: SessionId) {
    let people = tokio::time::timeout(INTRODUCTION_PATIENCE, listing::people(client, [holder])).await;
    if let Ok(Ok(people)) = people {
        output::say(&output::printable(&format!("fencepost: the holder is {}", people.who(holder, None))));
    }
}

/// Why the lock is not free now, or would not be in time.
///
/// # Errors
/// Every other failure: the cluster cannot be reached, or it refuses what no wait would change.
fn not_acquired(args: &Args, error: Error) -> Result<String> {
    let Error::Refused(refused) = &error else { return Err(error.into()) };
    match refused {
        Refused::Busy(busy) if busy.why == BusyWhy::Frozen => {
            Ok(format!("{} was not acquired: {} is frozen: {}", args.shown(), busy.name, args.advice(&busy.name)))
        }
        Refused::Busy(busy) => Ok(format!("{} was not acquired: {}", args.shown(), args.advice(&busy.name))),
        Refused::Deadlock(_) => Ok(format!("{} was not acquired: {error}", args.shown())),
        // It names the locks, and what is in the way.
        Refused::TimedOut { .. } => Ok(error.to_string()),
        Refused::Rule(Refusal::IsSemaphore(name)) => Err(Failure::usage(format!(
            "{name} is a semaphore: give --permits 1 to take a permit of it, or use another name"
        ))),
        Refused::Rule(Refusal::IsLock(name)) => Err(Failure::usage(format!(
            "{name} is in use as a lock: leave --permits and --limit out to take the lock, or use another name"
        ))),
        Refused::Rule(Refusal::NoLimit(name)) => Err(Failure::refused(format!(
            "{name} has no limit yet: give --limit N, or let an administrator set it with `fencepost limit {name} N`"
        ))),
        Refused::Rule(Refusal::LimitDiffers { name, live }) => Err(Failure::refused(format!(
            "{name} has the limit {}: give --limit {0}, or leave --limit out",
            live.get()
        ))),
        Refused::Rule(Refusal::MoreThanLimit { name, limit }) => Err(Failure::refused(format!(
            "{name} has only {} permits in all: ask for fewer, or raise the limit with `fencepost limit {name} N`",
            limit.get()
        ))),
        _ => Err(error.into()),
    }
}

/// The signals that are passed on to the command.
fn signals() -> Result<mpsc::Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel(16);
    let passed_on = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGWINCH,
    ];
    for passed in passed_on {
        let mut arrived = signal(SignalKind::from_raw(passed as i32))?;
        let sender = sender.clone();
        tokio::spawn(async move { while arrived.recv().await.is_some() && sender.send(passed).await.is_ok() {} });
    }
    Ok(receiver)
}

/// Waits for a signal that asks to stop. Drops the others: there is no command yet to pass them on to.
async fn stopping(signals: &mut mpsc::Receiver<Signal>) -> Signal {
    loop {
        match signals.recv().await {
            Some(Signal::SIGWINCH | Signal::SIGUSR1 | Signal::SIGUSR2) => {}
            Some(signal) => return signal,
            // Cannot happen: the sending tasks live as long as the runtime.
            None => std::future::pending().await,
        }
    }
}

async fn say_that_it_waits(args: &Args) {
    tokio::time::sleep(SAY_AFTER).await;
    if std::io::stderr().is_terminal() {
        output::say(&format!("fencepost: waiting for {}; {}", args.shown(), args.advice(&args.locks[0])));
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches};
    use fencepost::{Busy, Cycle, Failed, Unknown};

    use super::*;

    /// Two runs cannot deadlock, because each asks once. A cluster may still say so one day, so the code is decided here.
    #[test]
    fn busy_timed_out_and_deadlock_are_not_acquired_and_every_other_error_is_a_failure() {
        let command = Args::augment_args(clap::Command::new("run"));
        let args =
            Args::from_arg_matches(&command.get_matches_from(["run", "a", "--", "true"])).expect("valid arguments");
        let name = || Name::new("a").expect("a valid name");
        let busy = Busy { name: name(), why: BusyWhy::Held, holders: Vec::new(), holder_count: 1 };
        let table: [(Error, Option<u8>); 8] = [
            (Refused::Busy(Box::new(busy)).into(), None),
            (Refused::TimedOut { names: vec![name()], obstacle: Obstacle::NotExplained, suspected: None }.into(), None),
            (Refused::Deadlock(Box::new(Cycle { links: Vec::new() })).into(), None),
            (Refused::Rule(Refusal::IsSemaphore(name())).into(), Some(failure::USAGE)),
            (Refused::Rule(Refusal::IsLock(name())).into(), Some(failure::USAGE)),
            (Refused::Rule(Refusal::OwnerWaits).into(), Some(failure::REFUSED)),
            (Failed::GrantedTooLate.into(), Some(failure::FAILED)),
            (Unknown::NoAnswer.into(), Some(failure::FAILED)),
        ];
        for (error, code) in table {
            let shown = error.to_string();
            assert_eq!(not_acquired(&args, error).err().map(|failure| failure.code), code, "{shown}");
        }
    }
}
