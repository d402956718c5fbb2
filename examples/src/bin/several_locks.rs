//! Two workers need the same two locks, and name them in opposite order. Asked for in one request, they cannot deadlock.
//!
//! ```sh
//! fencepost dev --background
//! cargo run -p fencepost-examples --bin several_locks
//! ```

use std::cell::Cell;
use std::time::Duration;

use anyhow::Context;
use fencepost::{Client, Error, FencingToken};

const TRANSFERS: u32 = 20;

/// Stands for a row in a store: read and written in two steps, so that two workers at a time would lose money.
struct Account {
    name: &'static str,
    balance: Cell<u32>,
}

impl Account {
    /// A real store checks the token: see fenced_postgres. The grant has one token, for both names.
    fn write(&self, balance: u32, _token: FencingToken) {
        self.balance.set(balance);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let client = Client::from_env()
        .await
        .context("no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER to yours")?;

    let three = Account { name: "account:3", balance: Cell::new(100) };
    let seven = Account { name: "account:7", balance: Cell::new(100) };
    tokio::try_join!(transfer_often(&client, &three, &seven, 1), transfer_often(&client, &seven, &three, 3))?;
    println!("{TRANSFERS} transfers in each direction, and no deadlock");
    println!("{} has {}, {} has {}", three.name, three.balance.get(), seven.name, seven.balance.get());
    Ok(())
}

async fn transfer_often(client: &Client, from: &Account, to: &Account, amount: u32) -> Result<(), Error> {
    for _ in 0..TRANSFERS {
        // Granted together or not at all, whatever the order of the names: no worker holds one and waits for the other. One after
        // the other, with two calls of `lock`, these two workers would soon wait for each other.
        let locks = client.lock_all([from.name, to.name]).wait(Duration::from_secs(30)).acquire().await?;

        let (from_before, to_before) = (from.balance.get(), to.balance.get());
        tokio::task::yield_now().await; // Here the other worker gets its chance.
        from.write(from_before - amount, locks.token());
        to.write(to_before + amount, locks.token());

        locks.release().await?;
    }
    Ok(())
}
