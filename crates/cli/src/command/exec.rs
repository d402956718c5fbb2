//! What `fencepost run` starts: it asks the kernel to kill the command if `fencepost run` dies, and becomes the command.
//!
//! A process of its own, because between fork and exec only unsafe code could ask for it. Users never type it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use crate::failure::{self, Failure, Result};

/// The name of this command.
pub(crate) const NAME: &str = "become-command";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Who started it.
    parent: u32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// This program, even if its file was replaced since it began.
pub(crate) fn own_path() -> std::io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

pub(crate) fn run(args: &Args) -> Result {
    die_with(args.parent)?;
    let error = std::process::Command::new(&args.command[0]).args(&args.command[1..]).exec();
    let command = args.command[0].to_string_lossy();
    let (code, advice) = match error.kind() {
        std::io::ErrorKind::NotFound => {
            (failure::NOT_FOUND, "see whether it is spelt right and on the PATH (a shell's own words need `sh -c`)")
        }
        std::io::ErrorKind::PermissionDenied => (failure::CANNOT_EXECUTE, "see whether it is a program: chmod +x"),
        _ => (failure::CANNOT_EXECUTE, "see whether it is a program for this machine"),
    };
    Err(Failure { code, message: format!("cannot execute {command}: {error}; {advice}") })
}

#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> Result {
    use nix::sys::prctl::set_pdeathsig;
    use nix::sys::signal::Signal;
    set_pdeathsig(Signal::SIGKILL).map_err(|error| Failure::failed(format!("cannot be tied to the lock: {error}")))?;
    // It may have died before it was asked for.
    if u32::try_from(nix::unistd::getppid().as_raw()) != Ok(parent) {
        return Err(Failure::failed("`fencepost run` has died: the command is not started"));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with(_: u32) -> Result {
    Ok(())
}
