//! The library without async: threads that block. A background thread sends the keep-alives.
//!
//! It needs the feature `blocking` of the crate `fencepost`.
//!
//! ```sh
//! fencepost dev --background
//! cargo run -p fencepost-examples --bin blocking
//! ```

use std::time::Duration;

use anyhow::Context;
use fencepost::blocking::Client;

fn main() -> anyhow::Result<()> {
    let client = Client::from_env()
        .context("no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER to yours")?;

    // A request is built as in the async library. Then the client carries it out.
    let lock = client.acquire(client.lock("wallet:7").wait(Duration::from_secs(5)))?;
    println!("the main thread holds wallet:7 with token {}", lock.token());

    // Each thread takes a clone of the client. A lock belongs to its guard, so another thread does not get it.
    let thread = {
        let client = client.clone();
        std::thread::spawn(move || client.try_acquire(client.lock("wallet:7")).map(|lock| lock.is_some()))
    };
    let acquired = thread.join().expect("the thread does not panic")?;
    println!("another thread {} it", if acquired { "also got" } else { "does not get" });

    // A loop that works for long asks before each write whether the lock is still held.
    for page in 1..=2 {
        anyhow::ensure!(lock.is_held(), "the lock was lost before page {page}");
        println!("page {page} is written with token {}", lock.token());
    }

    lock.release()?;
    println!("released");
    Ok(())
}
