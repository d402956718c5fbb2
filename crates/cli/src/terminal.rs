//! Gives the terminal to the command of `fencepost run`, and takes it back.
//!
//! A command in its own process group can read the terminal and receive Ctrl-C only as the foreground group, so it becomes
//! that. Ctrl-Z is undone at once: a stopped command would outlive its lock, and continue without it.

use std::io::{IsTerminal, stdin};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};

use crate::output;

/// While this lives, another process group is the foreground of the terminal.
pub(crate) struct Foreground {
    watching: tokio::task::JoinHandle<()>,
}

impl Foreground {
    /// Makes a process group the foreground. `None` without a terminal, or if this process is not in the foreground.
    pub(crate) fn give_to(group: Pid) -> Option<Foreground> {
        if !stdin().is_terminal() || tcgetpgrp(stdin()) != Ok(getpgrp()) {
            return None;
        }
        tcsetpgrp(stdin(), group).ok()?;
        // It may have been stopped for reading the terminal too early.
        let _ = killpg(group, Signal::SIGCONT);
        Some(Foreground { watching: tokio::spawn(keep_going(group)) })
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        self.watching.abort();
        // A background process that changes the foreground gets SIGTTOU and stops, unless it blocks the signal.
        let blocked = SigSet::from(Signal::SIGTTOU);
        if blocked.thread_block().is_ok() {
            let _ = tcsetpgrp(stdin(), getpgrp());
            let _ = blocked.thread_unblock();
        }
    }
}

async fn keep_going(group: Pid) {
    let Ok(mut children) = signal(SignalKind::child()) else { return };
    while children.recv().await.is_some() {
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        if let Ok(WaitStatus::Stopped(..)) = waitid(Id::Pid(group), flags) {
            output::say("fencepost: resumed: a command under a lock cannot be suspended (Ctrl-C ends it)");
            let _ = killpg(group, Signal::SIGCONT);
        }
    }
}
