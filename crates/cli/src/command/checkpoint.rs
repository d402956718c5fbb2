//! `fencepost checkpoint`: stores how far a job has come, from inside of the command of `fencepost run --once`.
//!
//! It talks to that `run` on a socket, not to the cluster: only the session that holds the lock may store a checkpoint.
//! `run/checkpoints.rs` has the other end.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write, stdin};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;

use fencepost_core::bounds::JOB_BYTES_MAX;

use crate::command::run::{CHECKPOINT_SOCKET, checkpoint_too_long};
use crate::failure::{self, Failure, Result};

/// Bytes of an answer: an exit code and a sentence.
const ANSWER_BYTES_MAX: u64 = 4 * 1024;

/// Store how far a job has come, from inside of `fencepost run --once`
///
/// Returns when the checkpoint is replicated. If this attempt fails, the next one finds it in the file $FENCEPOST_LAST_CHECKPOINT. Each
/// checkpoint replaces the one before. At most 4096 bytes: store a position, such as the last id that was done.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0    stored
  2    it is too long, or this is not the command of a job
  123  the lock is lost: end the work, because another attempt may begin
  125  failed

Example, in a script that `fencepost run --once 2026-11 billing -- ./bill.sh` starts:
  last=$(cat \"$FENCEPOST_LAST_CHECKPOINT\")            # empty in the first attempt
  for id in $(./invoices-after \"${last:-0}\"); do ./bill-one \"$id\" && fencepost checkpoint \"$id\" || exit 1; done")]
pub(crate) struct Args {
    /// The checkpoint; - or nothing reads it from standard input
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<OsString>,
}

pub(crate) fn run(args: Args) -> Result<u8> {
    let socket = std::env::var_os(CHECKPOINT_SOCKET).filter(|socket| !socket.is_empty()).ok_or_else(|| {
        Failure::usage(format!(
            "this is not the command of a job ({CHECKPOINT_SOCKET} is not set): start it with `fencepost run --once KEY NAME -- COMMAND`"
        ))
    })?;
    let bytes = match args.text {
        Some(text) if text != "-" => text.into_vec(),
        None if stdin().is_terminal() => {
            return Err(Failure::usage("the checkpoint is missing: write `fencepost checkpoint TEXT`"));
        }
        _ => {
            let mut bytes = Vec::new();
            stdin().take(JOB_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
            bytes
        }
    };
    if bytes.len() > JOB_BYTES_MAX {
        return Err(Failure::usage(checkpoint_too_long()));
    }
    let answer = ask(&socket, &bytes).unwrap_or_default();
    let (code, message) = answer.trim_end().split_once(' ').unwrap_or((answer.trim_end(), ""));
    match code.parse() {
        Ok(0) => Ok(0),
        Ok(code) => Err(Failure { code, message: message.to_owned() }),
        Err(_) => Err(Failure {
            code: failure::LOST,
            message: "the checkpoint is not stored: the `fencepost run --once` of this job has ended, and its lock with it. End this work"
                .to_owned(),
        }),
    }
}

/// The answer. Empty if `run` has ended.
fn ask(socket: &OsString, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(format!("{}\n", bytes.len()).as_bytes())?;
    stream.write_all(bytes)?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}
