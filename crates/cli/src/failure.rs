//! How a command ends when it does not end well, and the exit code that says so.
//!
//! Three kinds, by who must act: whoever typed it, whoever holds what is in the way, whoever runs the cluster. Every text says
//! what to do next.

use std::fmt::Display;

/// Refused, or not found.
pub(crate) const REFUSED: u8 = 1;
/// What was typed cannot be understood.
pub(crate) const USAGE: u8 = 2;
/// `run`: the lock was lost while the command ran.
pub(crate) const LOST: u8 = 123;
/// `run`: the lock was not acquired.
pub(crate) const NOT_ACQUIRED: u8 = 124;
/// The cluster cannot be reached, a file cannot be written, and the like.
pub(crate) const FAILED: u8 = 125;
/// `run`: the command was found and cannot be executed.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// `run`: there is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// What `--help` says about exit codes.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    refused, or not found
  2    what was typed cannot be understood
  125  failed: the cluster cannot be reached, a file cannot be written, and the like
`fencepost run` has more of them: see `fencepost run --help`.";

/// A command did not end well.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Empty if all has been said.
    pub(crate) message: String,
}

pub(crate) type Result<Done = ()> = std::result::Result<Done, Failure>;

impl Failure {
    /// Another value or another spelling helps.
    pub(crate) fn usage(message: impl Display) -> Failure {
        Failure { code: USAGE, message: message.to_string() }
    }

    /// The cluster said no, or there is no such thing.
    pub(crate) fn refused(message: impl Display) -> Failure {
        Failure { code: REFUSED, message: message.to_string() }
    }

    /// Something around us does not work.
    pub(crate) fn failed(message: impl Display) -> Failure {
        Failure { code: FAILED, message: message.to_string() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::failed(format!("{error:#}"))
    }
}

/// Standard output was closed by who read it, as `| head` does: nothing is wrong, and nobody listens any more.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure { code: 0, message: String::new() },
            _ => Failure::failed(error),
        }
    }
}
