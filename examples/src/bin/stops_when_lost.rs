//! A worker that stops when its lock is lost, and writes nothing after that.
//!
//! ```sh
//! fencepost dev --background
//! cargo run -p fencepost-examples --bin stops_when_lost
//! fencepost break nightly --yes --reason test    # in another terminal, within ten seconds
//! ```

use std::time::Duration;

use anyhow::Context;
use fencepost::{Client, Exclusive, FencingToken, Hold};

const PAGES: u32 = 50;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let client = Client::from_env()
        .await
        .context("no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER to yours")?;

    // `run` acquires the lock, does the work, and releases the lock. If the lock is lost, it drops the work at its next `.await`.
    match client.lock("nightly").run(write_report).await {
        Ok(()) => println!("done"),
        Err(error) => match error.lost() {
            Some(why) => anyhow::bail!("stopped before the report was finished: {why}"),
            None => return Err(error.into()),
        },
    }
    Ok(())
}

async fn write_report(lock: Hold<Exclusive>) {
    for number in 1..=PAGES {
        let page = compute_page(number).await;
        // `run` acts at an `.await` only. Code that has computed for long without one asks before it writes.
        if !lock.is_held() {
            return;
        }
        write_page(&page, lock.token());
    }
}

/// Stands for the real work. Work that blocks the thread belongs in `tokio::task::spawn_blocking`: on this runtime it would also
/// stop the keep-alives.
async fn compute_page(number: u32) -> String {
    tokio::time::sleep(Duration::from_millis(200)).await;
    format!("page {number}")
}

/// Stands for the store. A process that is paused between `is_held` and this line still writes, so a real store checks the token:
/// see fenced_postgres.
fn write_page(page: &str, token: FencingToken) {
    println!("{page} is written with token {token}");
}
