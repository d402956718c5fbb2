//! `fencepost demo`: why a lock needs a guard, as a story of real processes that is told in a quarter of a minute.
//!
//! Three nodes, two workers, one account. The story is played, not recited: every line is printed when it has happened, and at
//! the end the balances say whether it held. Whatever was started ends with this process, even if it is killed.

mod actor;
mod cluster;
mod orders;
mod process;
mod stage;
mod store;
mod story;
pub(crate) mod worker;

use anyhow::Context;

use crate::failure::{Failure, Result};
use crate::own::interrupted;

const AFTER_HELP: &str = "\
Exit codes: 0 if the story held, 1 if it did not, 125 if it could not be played.";

/// See why a lock needs a guard: a story of real processes, in a quarter of a minute
///
/// Starts three nodes and two workers that withdraw from one account. A worker is paused past its lease: with the lock alone
/// the money is wrong, with the guard it is right. Then the leader is killed. All of it is in a temporary directory and on
/// free ports of this machine, and gone at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Leave the guard out of the second act, to see that the story notices.
    #[arg(long, hide = true)]
    without_guard: bool,
}

pub(crate) async fn run(args: Args) -> Result {
    let directory = tempfile::Builder::new()
        .prefix("fencepost-demo-")
        .tempdir()
        .context("cannot make a temporary directory: set TMPDIR to one where this user may write")?;
    let mut interrupted = std::pin::pin!(interrupted()?);
    // Whichever comes first: the processes end when the story is dropped, and the directory after them.
    tokio::select! {
        told = story::tell(directory.path(), !args.without_guard) => told,
        code = &mut interrupted => Err(Failure { code, message: String::new() }),
    }
}
