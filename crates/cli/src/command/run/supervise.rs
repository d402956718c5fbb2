//! Runs a command while its lock is held, and stops it when the lock ends.
//!
//! The command gets its own process group. When the lock nears its deadline the group gets TERM, and KILL at the deadline or
//! when the lock is lost, so that it is gone before the next holder starts. The command starts through `exec.rs`, which makes
//! the kernel kill it if this process is killed: then no process would watch the deadline.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fencepost::Hold;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::{Args, job_files, stopping};
use crate::command::exec;
use crate::failure::{self, Failure, Result};
use crate::{duration, nesting, output, settings, terminal};

/// How often the remaining time is checked: a timer may stand still while the machine is suspended.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What the command learns about its lock.
pub(super) struct Environment {
    /// The names, one a line.
    pub(super) locks: String,
    /// `None` if such a lock has no token. Then the command must not see one: an inherited one belongs to an outer `run`.
    pub(super) token: Option<u64>,
    /// The sessions that the command runs under: see `nesting.rs`.
    pub(super) sessions: String,
    /// What only the command of a job gets. Other commands must not see these variables: inherited ones belong to an outer `run`.
    pub(super) job: Vec<(&'static str, OsString)>,
}

/// How the command ended.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Why it was stopped, if it was: the lock is lost, or its deadline was near.
    pub(super) stopped: Option<String>,
}

/// Runs the command while the lock is held, and stops it when the lock ends. The caller gives the lock back.
///
/// # Errors
/// The command could not be started.
pub(super) async fn supervise<M>(
    args: &Args,
    hold: &Hold<M>,
    environment: &Environment,
    signals: &mut mpsc::Receiver<Signal>,
    grace: Duration,
) -> Result<Ended> {
    let mut child = spawn(args, hold.remaining(), environment).map_err(|error| {
        Failure::failed(format!("cannot start another process: {error}; free some memory or processes"))
    })?;
    let group =
        Pid::from_raw(child.id().and_then(|id| i32::try_from(id).ok()).expect("the child was not waited for yet"));
    let foreground = terminal::Foreground::give_to(group);
    let (status, stopped) = watch_over(&mut child, group, hold, signals, grace).await?;
    drop(foreground);
    if stopped.is_some() {
        // Processes of the group that outlived the command must be gone before the next holder starts.
        let _ = killpg(group, Signal::SIGKILL);
    }
    Ok(Ended { status, stopped })
}

/// Keeps the lock until this instant, or until it is lost, or a signal asks to stop. Returns false if the instant has passed.
pub(super) async fn hold_on<M>(
    args: &Args,
    hold: &Hold<M>,
    until: Instant,
    signals: &mut mpsc::Receiver<Signal>,
) -> bool {
    let left = || until.saturating_duration_since(Instant::now());
    if left().is_zero() {
        return false;
    }
    if std::io::stderr().is_terminal() {
        let left = duration::show(left().as_millis() as u64);
        output::say(&format!(
            "fencepost: the command has ended; {} stays held for {left} more (--at-least)",
            args.shown()
        ));
    }
    while !left().is_zero() {
        tokio::select! {
            why = hold.lost() => {
                output::say(&format!("fencepost: {} was lost before --at-least was over: {why}", args.shown()));
                break;
            }
            _ = stopping(signals) => break,
            () = tokio::time::sleep(left().min(LOOK_AGAIN)) => {}
        }
    }
    true
}

/// Waits for the command to end, and stops it when the lock ends. Returns its status, and why it was stopped, if it was.
async fn watch_over<M>(
    child: &mut Child,
    group: Pid,
    hold: &Hold<M>,
    signals: &mut mpsc::Receiver<Signal>,
    grace: Duration,
) -> Result<(ExitStatus, Option<String>)> {
    let mut stopped = None;
    let mut is_killed = false;
    loop {
        let remaining = hold.remaining();
        let until = if stopped.is_none() { remaining.saturating_sub(grace) } else { remaining };
        tokio::select! {
            biased;
            why = hold.lost(), if !is_killed => {
                let _ = killpg(group, Signal::SIGKILL);
                is_killed = true;
                stopped = Some(why.to_string());
            }
            status = child.wait() => return Ok((status?, stopped)),
            Some(signal) = signals.recv() => {
                // It may just have ended.
                let _ = killpg(group, signal);
            }
            () = tokio::time::sleep(until.min(LOOK_AGAIN)), if !is_killed => {
                let remaining = hold.remaining();
                if remaining.is_zero() {
                    let _ = killpg(group, Signal::SIGKILL);
                    is_killed = true;
                } else if remaining <= grace && stopped.is_none() {
                    let _ = killpg(group, Signal::SIGTERM);
                    // A stopped process receives TERM only after CONT.
                    let _ = killpg(group, Signal::SIGCONT);
                    stopped = Some("the deadline of the lock was near, so fencepost told the command to end".to_owned());
                }
            }
        }
    }
}

fn spawn(args: &Args, remaining: Duration, environment: &Environment) -> std::io::Result<Child> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let deadline_ms = (now + remaining).as_millis();
    let mut command = Command::new(exec::own_path()?);
    command
        .arg(exec::NAME)
        .arg(std::process::id().to_string())
        .args(&args.command)
        .env("FENCEPOST_LOCK", &environment.locks)
        .env("FENCEPOST_DEADLINE", deadline_ms.to_string())
        .env(nesting::VARIABLE, &environment.sessions)
        .process_group(0);
    match environment.token {
        Some(token) => command.env("FENCEPOST_TOKEN", token.to_string()),
        None => command.env_remove("FENCEPOST_TOKEN"),
    };
    for of_outer_job in job_files::VARIABLES {
        command.env_remove(of_outer_job);
    }
    command.envs(environment.job.iter().map(|(name, value)| (name, value)));
    // Secrets are for this program only: neither the command nor anything that it starts may have them.
    for secret in settings::secret_variables() {
        command.env_remove(secret);
    }
    command.spawn()
}

/// The exit code for a command that ended by itself.
pub(super) fn code_of(status: ExitStatus) -> u8 {
    let by_signal = || status.signal().map(|signal| 128 + signal);
    u8::try_from(status.code().or_else(by_signal).unwrap_or(i32::from(failure::FAILED))).unwrap_or(failure::FAILED)
}
