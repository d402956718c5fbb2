//! A child process: reads its lines, sends it signals, and kills it when dropped.
//!
//! After the drop it is dead, whether it ran, was paused or had ended by itself.

use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::ChildStdout;

/// How long to wait for a line. A process that works is faster, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Process {
    child: Child,
    pub(crate) input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it, with pipes for its input and its output.
    pub(crate) fn start(command: &mut Command) -> Result<Process> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a process")?;
        let input = child.stdin.take().expect("it is piped");
        let output = ChildStdout::from_std(child.stdout.take().expect("it is piped"))?;
        Ok(Process { child, input, lines: BufReader::new(output).lines() })
    }

    /// Waits for its next line.
    pub(crate) async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        line.context("a child process printed nothing for a minute")??.context("a child process has ended")
    }

    /// Sends SIGSTOP, and waits until the process is stopped.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        // When `kill` returns, the signal may still be on its way. `waitid` returns when the process is stopped.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.id()), flags)? {
            WaitStatus::Stopped(..) => Ok(()),
            other => bail!("a child process did not pause: {other:?}"),
        }
    }

    /// Sends SIGCONT.
    pub(crate) fn wake(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.id(), signal).with_context(|| format!("cannot send {signal} to a child process"))
    }

    fn id(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids fit into an i32"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}
