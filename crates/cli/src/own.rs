//! This program, started once more by itself, and the signals that mean to stop it: for commands that run nodes of their own.

use std::os::unix::process::CommandExt;
use std::process::Command;

use tokio::signal::unix::{SignalKind, signal};

use crate::command::exec;
use crate::failure::Result;

/// The exit code for the first signal that means to stop.
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

/// A command of this program that dies with this process, and hears nothing of this shell: neither Ctrl-C nor its settings.
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
