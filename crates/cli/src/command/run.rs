//! `fencepost run`: runs a command only while a lock is held.
//!
//! This file has the arguments, the wait for the lock, and the exit codes. `supervise.rs` runs the command while the lock is held.

mod supervise;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

use fencepost::{Client, Error, GrantId, Guard, Hold, LockRequest, Name, Refused};
use fencepost_core::bounds::{SESSION_TTL_MS_DEFAULT, TTL_MS_MIN};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::connect::{self, ServerArgs};
use crate::failure::{self, Result};
use crate::nesting::Outer;
use crate::{duration, output};
use supervise::{ShowsToken, supervise};

/// How long to wait for the answer to a release. The lock ends with its deadline at the latest.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);
/// After this time without the lock, a user at a terminal is told that it waits.
const SAY_AFTER: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
The command gets these environment variables:
  FENCEPOST_LOCK      the name of the lock
  FENCEPOST_TOKEN     the fencing token: send it to the store with every write (with -s: for reads only)
  FENCEPOST_DEADLINE  the end of the lease when the command started, in unix milliseconds of the wall clock: only a
                      hint, because renewals extend the lease
  FENCEPOST_GRANTS    the grants that the command runs under. A `fencepost run` inside of it that asks for the same lock
                      would wait for itself, so it is refused at once (-s inside -s is granted)
It does not get FENCEPOST_STORE_PASSWORD, which is a secret. Paths such as FENCEPOST_KEY are passed on.

It runs in its own process group. Before the lock's deadline the group gets TERM, and KILL at the deadline or when the lock
is lost, so that it is gone before the next holder starts. INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are passed on.
`fencepost run` does not wait for processes that the command leaves in the background. If `fencepost run` itself is killed,
so is the command (on Linux).

Exit codes: the command's own (128+N if signal N ended it), or
  2    wrong usage: fix the arguments or the settings
  123  the lock was lost, and the command was stopped
  124  the lock was not acquired (-E sets another code)
  125  fencepost failed: for example, the cluster cannot be reached
  126  the command cannot be executed
  127  the command was not found

Examples:
  fencepost run nightly -- ./backup.sh              wait for the lock, then run
  fencepost run -n nightly -- ./backup.sh           run if the lock is free, else exit with 124
  fencepost run -w 30s --max-hold 1h nightly -- ./backup.sh";

/// Run a command while holding a lock
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The lock; a name that begins with / is a path and covers everything below it
    #[arg(value_parser = connect::name)]
    lock: Name,
    /// Do not wait: exit with 124 if the lock is not free
    #[arg(short = 'n', long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Share the lock with other holders that use -s
    #[arg(short, long)]
    shared: bool,
    /// Exit with this code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = failure::NOT_ACQUIRED)]
    conflict_exit_code: u8,
    /// How long the lock stays held if this machine dies [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = ttl)]
    ttl: Option<Duration>,
    /// Stop the command this long after the lock was granted
    #[arg(long, value_name = "DURATION", value_parser = max_hold)]
    max_hold: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
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

/// Returns the exit code.
pub(crate) async fn run(args: Args) -> Result<u8> {
    let mut signals = signals()?;
    let (builder, nodes) = args.server.builder()?;
    let ttl = args.ttl.unwrap_or(Duration::from_millis(SESSION_TTL_MS_DEFAULT));
    let command = args.command[0].to_string_lossy().into_owned();
    let connecting =
        builder.session_ttl(ttl).name("fencepost run").label("command", output::printable(&command)).connect();
    let client = tokio::select! {
        connected = connecting => connected.map_err(|error| connect::unreachable(&nodes, error))?,
        signal = stopping(&mut signals) => return Ok(128 + signal as u8),
    };
    let request = client.lock(args.lock.as_str());
    let code = if args.shared {
        hold_and_run(&args, &client, signals, asked(&args, request.shared()), ttl).await
    } else {
        hold_and_run(&args, &client, signals, asked(&args, request), ttl).await
    };
    // Ends a wait that a signal broke off. A lock that was held is already released.
    let _ = tokio::time::timeout(RELEASE_PATIENCE, client.close()).await;
    code
}

fn asked<M>(args: &Args, mut request: LockRequest<M>) -> LockRequest<M> {
    request = match args.wait {
        Some(wait) => request.wait(wait),
        None => request.wait_forever(),
    };
    match args.max_hold {
        Some(max_hold) => request.max_hold(max_hold),
        None => request,
    }
}

/// The outcome of the acquire.
enum Acquired<M> {
    Yes(Guard<M>),
    /// An outer `run` holds the lock, and waits for this process to end.
    ByOuter(GrantId),
}

async fn hold_and_run<M: Clone>(
    args: &Args,
    client: &Client,
    mut signals: mpsc::Receiver<Signal>,
    request: LockRequest<M>,
    ttl: Duration,
) -> Result<u8>
where
    Hold<M>: ShowsToken,
{
    let outer = Outer::of_environment();
    let acquiring = async {
        if args.nonblock || !outer.is_empty() {
            match request.clone().try_acquire_or_busy().await? {
                Ok(guard) => return Ok(Acquired::Yes(guard)),
                Err(busy) => match outer.in_the_way(client, &busy).await? {
                    Some(grant) => return Ok(Acquired::ByOuter(grant)),
                    None if args.nonblock => return Err(Error::from(Refused::Busy(busy))),
                    None => {}
                },
            }
        }
        request.acquire().await.map(Acquired::Yes)
    };
    let acquired = tokio::select! {
        acquired = acquiring => acquired,
        signal = stopping(&mut signals) => return Ok(128 + signal as u8),
        () = say_that_it_waits(&args.lock) => unreachable!("it never returns"),
    };
    let guard = match acquired {
        Ok(Acquired::Yes(guard)) => guard,
        Ok(Acquired::ByOuter(grant)) => {
            output::say(&format!(
                "fencepost: {} was not acquired: an outer `fencepost run` holds it (grant {}) until this command ends, so it would wait \
                 for itself for ever. Remove the inner `run`, or use another lock there",
                args.lock, grant.0
            ));
            return Ok(args.conflict_exit_code);
        }
        Err(Error::Refused(Refused::Busy(_) | Refused::TimedOut { .. })) => {
            output::say(&format!(
                "fencepost: {} was not acquired: `fencepost why {0}` shows what blocks it",
                args.lock
            ));
            return Ok(args.conflict_exit_code);
        }
        Err(error @ Error::Refused(_)) => {
            output::say(&format!("fencepost: {} was not acquired: {error}", args.lock));
            return Ok(args.conflict_exit_code);
        }
        Err(error) => return Err(error.into()),
    };
    let least = args.max_hold.map_or(ttl, |max_hold| max_hold.min(ttl));
    let told = outer.and(client.cluster().unwrap_or_default(), guard.hold().grant());
    supervise(args, guard, told, &mut signals, least / 6).await
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

async fn say_that_it_waits(lock: &Name) {
    tokio::time::sleep(SAY_AFTER).await;
    if std::io::stderr().is_terminal() {
        output::say(&format!("fencepost: waiting for {lock}; `fencepost why {lock}` shows what blocks it"));
    }
    std::future::pending().await
}
