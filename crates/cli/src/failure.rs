//! How a command fails: an exit code and a message.
//!
//! Three kinds, by who must act: the user who typed the command (`usage`), the holder of a lock or an administrator (`refused`), the
//! operator of the cluster or of this machine (`failed`). Every message says what to do next.

use std::fmt::Display;

/// The cluster refused, or the named thing was not found.
pub(crate) const REFUSED: u8 = 1;
/// Wrong usage: an argument or a setting is not valid.
pub(crate) const USAGE: u8 = 2;
/// `run`: the command of a job succeeded, and it is not known whether the job is completed.
pub(crate) const UNKNOWN: u8 = 121;
/// `run` and `job wait`: the job has failed for good.
pub(crate) const GAVE_UP: u8 = 122;
/// `run`: the lock was lost while the command ran.
pub(crate) const LOST: u8 = 123;
/// `run`: the lock was not acquired. `job wait`: the wait is over.
pub(crate) const NOT_ACQUIRED: u8 = 124;
/// For example, the cluster cannot be reached or a file cannot be written.
pub(crate) const FAILED: u8 = 125;
/// `run`: the command was found, but cannot be executed.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// `run`: the command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// What `--help` says about exit codes.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    refused, or not found
  2    wrong usage: fix the arguments or the settings
  125  failed: for example, the cluster cannot be reached or a file cannot be written
`fencepost run`, `checkpoint` and `job wait` have more exit codes: see their --help.";

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Empty if there is nothing to print.
    pub(crate) message: String,
}

pub(crate) type Result<Done = ()> = std::result::Result<Done, Failure>;

impl Failure {
    /// The user must change an argument or a setting.
    pub(crate) fn usage(message: impl Display) -> Failure {
        Failure { code: USAGE, message: message.to_string() }
    }

    /// The cluster refused, or the named thing does not exist.
    pub(crate) fn refused(message: impl Display) -> Failure {
        Failure { code: REFUSED, message: message.to_string() }
    }

    /// Something outside of this program failed: the network, a disk, a process.
    pub(crate) fn failed(message: impl Display) -> Failure {
        Failure { code: FAILED, message: message.to_string() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::failed(format!("{error:#}"))
    }
}

/// A closed standard output, as with `| head`, is not a failure: the command ends silently with code 0.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure { code: 0, message: String::new() },
            _ => Failure::failed(error),
        }
    }
}
