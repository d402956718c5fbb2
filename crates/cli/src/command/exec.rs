//! `fencepost become-command`: asks the kernel to kill this process if its parent dies, then becomes the command.
//!
//! `fencepost run` starts its command through it, and `demo` its processes. A separate process, because between fork and exec
//! only unsafe code could ask the kernel. Users never type it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use crate::failure::{self, Failure, Result};

/// The name of this command.
pub(crate) const NAME: &str = "become-command";

/// Become a command that dies with its parent; for `fencepost run`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process id of the parent
    parent: u32,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The path of this program, also if its file was replaced after the start.
pub(crate) fn own_path() -> std::io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

pub(crate) fn run(args: &Args) -> Result {
    die_with(args.parent)?;
    let error = std::process::Command::new(&args.command[0]).args(&args.command[1..]).exec();
    let command = args.command[0].to_string_lossy();
    let (code, advice) = match error.kind() {
        std::io::ErrorKind::NotFound => {
            (failure::NOT_FOUND, "check the spelling and the PATH (builtins of a shell need `sh -c`)")
        }
        std::io::ErrorKind::PermissionDenied => {
            (failure::CANNOT_EXECUTE, "check that it is a program, and executable: chmod +x")
        }
        _ => (failure::CANNOT_EXECUTE, "check that it is a program for this machine"),
    };
    Err(Failure { code, message: format!("cannot execute {command}: {error}; {advice}") })
}

#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> Result {
    use nix::sys::prctl::set_pdeathsig;
    use nix::sys::signal::Signal;
    set_pdeathsig(Signal::SIGKILL)
        .map_err(|error| Failure::failed(format!("cannot tie the command to its lock: {error}")))?;
    // The parent may have died before the call above.
    if u32::try_from(nix::unistd::getppid().as_raw()) != Ok(parent) {
        return Err(Failure::failed("`fencepost run` has died: the command is not started"));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with(_: u32) -> Result {
    Ok(())
}
