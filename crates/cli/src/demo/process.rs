//! A process of ours: its lines, its signals, its end.
//!
//! It is dead when this is dropped, whether it ran, was paused or had ended by itself.

use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStdout;

/// Nothing that works takes so long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Process {
    child: Child,
    pub(crate) input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it, with its input and its output in our hands.
    pub(crate) fn start(command: &mut Command) -> Result<Process> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a process")?;
        let input = child.stdin.take().expect("it is piped");
        let output = ChildStdout::from_std(child.stdout.take().expect("it is piped"))?;
        Ok(Process { child, input, lines: BufReader::new(output).lines() })
    }

    /// Its next line.
    pub(crate) async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        line.context("a process of ours has said nothing for a minute")??.context("a process of ours has ended")
    }

    /// Stops it where it is, and sees to it that it stands still.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        // The signal is on its way when `kill` returns; it has arrived when the process is seen to be stopped.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.id()), flags)? {
            WaitStatus::Stopped(..) => Ok(()),
            other => bail!("a process of ours was to be paused, and instead: {other:?}"),
        }
    }

    /// Lets it go on.
    pub(crate) fn wake(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.id(), signal).with_context(|| format!("cannot send {signal} to a process of ours"))
    }

    fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("ids of processes are small"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}
