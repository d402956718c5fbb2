//! Who may read the terminal.
//!
//! A command in its own process group could neither read the terminal nor hear Ctrl-C, so it becomes the foreground, and the
//! terminal comes back when it has ended. Ctrl-Z is undone at once: a command that stands still while its lock runs out
//! would go on after it.

use std::io::{IsTerminal, stdin};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};

use crate::output;

/// The terminal is another group's until this is dropped.
pub(crate) struct Foreground {
    watching: tokio::task::JoinHandle<()>,
}

impl Foreground {
    /// Gives the terminal to a process group, if there is one and it is ours.
    pub(crate) fn give_to(group: Pid) -> Option<Foreground> {
        if !stdin().is_terminal() || tcgetpgrp(stdin()) != Ok(getpgrp()) {
            return None;
        }
        tcsetpgrp(stdin(), group).ok()?;
        // It may have tried to read before the terminal was its own.
        let _ = killpg(group, Signal::SIGCONT);
        Some(Foreground { watching: tokio::spawn(keep_going(group)) })
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        self.watching.abort();
        // Whoever is not the foreground is stopped for changing it, unless the signal is blocked.
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
            output::say("fencepost: goes on: a command under a lock cannot stand still (Ctrl-C ends it)");
            let _ = killpg(group, Signal::SIGCONT);
        }
    }
}
