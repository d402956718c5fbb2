//! A lock that only saves work, from the Redis that you already run. Redis refuses a lock that data depends on.
//!
//! It needs no Fencepost server. `FENCEPOST_REDIS` is the address of the Redis.
//!
//! ```sh
//! redis-server &
//! cargo run -p fencepost-examples --bin efficiency_over_redis
//! ```

use anyhow::Context;
use fencepost_backends::{Client, Error};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let address = std::env::var("FENCEPOST_REDIS").unwrap_or("redis://127.0.0.1:6379/".to_owned());
    // Not in the message: an address may contain a password.
    let client = Client::connect(&address)
        .await
        .context("no connection to Redis: start a server with `redis-server`, or set FENCEPOST_REDIS to yours")?;

    // Two workers that draw the same thumbnail waste time, and do no harm. A fail-over of Redis can lead to that.
    let lock = client.lock("thumbnails/42").efficiency().acquire().await?;
    println!("thumbnails/42 is held: {}", lock.is_held());

    // `None`: another worker draws it. This one goes on with the next thumbnail, without waiting.
    let second = client.lock("thumbnails/42").efficiency().try_acquire().await?;
    println!("a second worker gets it: {}", second.is_some());

    // This lock has no token, so it cannot be used by mistake where data depends on it. The next line does not compile:
    // write(lock.token(), 400);
    lock.release().await?;

    // Without `.efficiency()` a lock promises a token. Redis cannot keep that promise, so nothing is sent to it.
    match client.lock("wallet:7").acquire().await {
        Err(Error::NotPromised(refusal)) => println!("wallet:7 is refused: {refusal}"),
        Err(error) => return Err(error.into()),
        Ok(_) => anyhow::bail!("a lock with a token was granted: is FENCEPOST_REDIS the address of a Redis?"),
    }
    // When data depends on it, change the address, and no other line: fencepost://127.0.0.1:7420
    Ok(())
}
