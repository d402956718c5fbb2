//! At most two uploads at a time, across all processes that use the same semaphore.
//!
//! ```sh
//! fencepost dev --background
//! cargo run -p fencepost-examples --bin semaphore
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context;
use fencepost::Client;
use tokio::task::JoinSet;

const UPLOADS: u32 = 6;
/// All programs must give the same limit. `fencepost limit` can set it at the server instead.
const AT_A_TIME: u32 = 2;

/// How many uploads of this process run now, and how many ran at the same time at most.
static RUNNING: AtomicU32 = AtomicU32::new(0);
static MOST: AtomicU32 = AtomicU32::new(0);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let client = Client::from_env()
        .await
        .context("no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER to yours")?;

    let mut uploads = JoinSet::new();
    for number in 1..=UPLOADS {
        uploads.spawn(upload(client.clone(), number));
    }
    while let Some(done) = uploads.join_next().await {
        println!("upload {} is done", done??);
    }
    println!("{UPLOADS} uploads, at most {} at a time", MOST.load(Ordering::Relaxed));
    Ok(())
}

async fn upload(client: Client, number: u32) -> Result<u32, fencepost::Error> {
    // Requests are granted in the order in which they came. A permit has no fencing token, because several clients hold one at a
    // time: a semaphore limits load, it does not protect data.
    let permit = client.semaphore("uploads").limit(AT_A_TIME).wait(Duration::from_secs(60)).acquire().await?;
    let running = RUNNING.fetch_add(1, Ordering::Relaxed) + 1;
    MOST.fetch_max(running, Ordering::Relaxed);
    // Stands for the upload. If the permit is lost meanwhile, another process may have it: stop.
    let sent = tokio::select! {
        why = permit.lost() => Err(why.into()),
        () = tokio::time::sleep(Duration::from_millis(100)) => Ok(number),
    };
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    permit.release().await?;
    sent
}
