//! `fencepost demo`: shows why a lock needs a guard, with real processes, in 15 seconds.
//!
//! Three nodes, two workers, one account. Nothing is staged: every line is printed when it has happened, and the balances at the
//! end show whether all went as expected. All child processes end with this process, even if it is killed.

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
Exit codes: 0 if all went as expected, 1 if not, 125 if the demo could not run.";

/// See why a lock needs a guard: a demo with real processes, in 15 seconds
///
/// Starts three nodes and two workers that withdraw from one account. A worker is paused past its lease: with the lock alone
/// the money is wrong, with the guard it is right. Then the leader is killed. Everything runs in a temporary directory and on
/// free ports of this machine, and is gone at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Leave the guard out of the second act, to see that the demo notices.
    #[arg(long, hide = true)]
    without_guard: bool,
}

pub(crate) async fn run(args: Args) -> Result {
    let directory = tempfile::Builder::new()
        .prefix("fencepost-demo-")
        .tempdir()
        .context("cannot create a temporary directory: set TMPDIR to one that this user can write to")?;
    let mut interrupted = std::pin::pin!(interrupted()?);
    // Either way `tell` is dropped and ends its processes; after that the directory is removed.
    tokio::select! {
        told = story::tell(directory.path(), !args.without_guard) => told,
        code = &mut interrupted => Err(Failure { code, message: String::new() }),
    }
}
