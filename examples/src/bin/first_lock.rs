//! The shortest whole program: takes a lock, shows its token and how long it is certainly held, and releases it.
//!
//! ```sh
//! fencepost dev --background
//! cargo run -p fencepost-examples --bin first_lock
//! ```

use std::time::Duration;

use anyhow::Context;
use fencepost::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let client = Client::from_env()
        .await
        .context("no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER to yours")?;

    // Waits for at most 5 s while another client holds the lock.
    let lock = match client.lock("wallet:7").wait(Duration::from_secs(5)).acquire().await {
        Ok(lock) => lock,
        Err(error) if error.is_timed_out() => {
            anyhow::bail!("wallet:7 was busy for 5 s: `fencepost why wallet:7` shows the holder")
        }
        Err(error) => return Err(error.into()),
    };

    // Give the token to the store with every write, so that the store can refuse a late one: see fenced_postgres.
    println!("wallet:7 is held with token {}", lock.token());
    // Keep-alives extend this time in the background, for as long as the program runs.
    println!("certainly held for {} more seconds", lock.remaining().as_secs());

    // Dropping the guard releases the lock, too. `release` also waits for the answer.
    lock.release().await?;
    println!("released");
    Ok(())
}
