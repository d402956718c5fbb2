//! Starts this program again as a child process, and waits for the signals that ask to stop.
//!
//! For `demo`, which runs nodes and workers, and for `bench`, which only needs the signals.

use std::os::unix::process::CommandExt;
use std::process::Command;

use tokio::signal::unix::{SignalKind, signal};

use crate::command::exec;
use crate::failure::Result;

/// Waits for INT, TERM or HUP. Returns the exit code for the first of them.
pub(crate) fn interrupted() -> Result<impl Future<Output = u8>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => 130,
            _ = terminate.recv() => 143,
            _ = hang_up.recv() => 129,
        }
    })
}

/// A command of this program as a child that dies with this process. It gets neither Ctrl-C nor `FENCEPOST_*` settings from this shell.
pub(crate) fn own_command(name: &str) -> std::io::Result<Command> {
    let program = exec::own_path()?;
    let mut command = Command::new(&program);
    let settings = std::env::vars_os().map(|(name, _)| name);
    for setting in settings.filter(|name| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(setting);
    }
    command.arg(exec::NAME).arg(std::process::id().to_string()).arg(program).arg(name).process_group(0);
    Ok(command)
}
