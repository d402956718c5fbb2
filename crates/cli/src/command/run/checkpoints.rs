//! The socket of `run --once` on which `fencepost checkpoint` stores a checkpoint.
//!
//! A request is the number of bytes in decimal, a new line, and the bytes. The answer is one line: an exit code, a space, and a message.
//! The length comes first, so that a command that is killed while it sends stores nothing. Programs of the command are not trusted to be
//! quick: input is bounded and has a time limit, and few connections are served at a time.

use std::time::Duration;

use fencepost::{Error, JobHold};
use fencepost_core::bounds::JOB_BYTES_MAX;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::failure;

/// How many connections are served at a time. A command has few processes that store checkpoints.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may take to send its request, or to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// After a connection could not be accepted, for example because too many files are open.
const PAUSE: Duration = Duration::from_millis(100);
/// The number and its new line.
const LENGTH_CHARS_MAX: u64 = 16;

/// What is wrong with a checkpoint that is too long, and what to do.
pub(crate) fn too_long() -> String {
    format!(
        "a checkpoint has at most {JOB_BYTES_MAX} bytes: store how far the work has come, such as the last id, and the data itself in your \
         store"
    )
}

/// Serves until it is dropped.
pub(super) async fn serve(listener: &UnixListener, hold: &JobHold) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_one(stream, hold.clone()));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve_one(mut stream: UnixStream, hold: JobHold) {
    let (code, message) = match tokio::time::timeout(PATIENCE, request(&mut stream)).await {
        Ok(Ok(Some(bytes))) => store(&hold, &bytes).await,
        Ok(Ok(None)) => (failure::USAGE, too_long()),
        Ok(Err(_)) | Err(_) => return,
    };
    // The program may be gone. What was stored stays stored.
    let answer = format!("{code} {}\n", message.replace('\n', " "));
    let _ = tokio::time::timeout(PATIENCE, stream.write_all(answer.as_bytes())).await;
}

/// The bytes of a request. `None` if they are too many.
async fn request(stream: &mut UnixStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut stream = BufReader::new(stream);
    let mut length = String::new();
    (&mut stream).take(LENGTH_CHARS_MAX).read_line(&mut length).await?;
    let length = length.strip_suffix('\n').and_then(|length| length.parse::<usize>().ok());
    let length = length.ok_or_else(|| std::io::Error::other("no length"))?;
    if length > JOB_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(Some(bytes))
}

/// Returns when the checkpoint is replicated, or when it is certain that it is not: at the latest when the lock is lost.
async fn store(hold: &JobHold, bytes: &[u8]) -> (u8, String) {
    match hold.checkpoint(bytes).await {
        Ok(()) => (0, String::new()),
        Err(error) => match (error.lost(), &error) {
            (Some(why), _) => (
                failure::LOST,
                format!(
                    "the checkpoint is not stored, because the lock is lost: {why}. End this work: another attempt may begin"
                ),
            ),
            (None, Error::Refused(_)) => (failure::REFUSED, format!("the checkpoint is not stored: {error}")),
            (None, _) => {
                (failure::FAILED, format!("it is not known whether the checkpoint is stored: {error}; try again"))
            }
        },
    }
}
