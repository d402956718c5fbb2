//! A lock whose token Postgres checks: the late write of a worker that lost its lock is refused.
//!
//! The first worker's lock ends after half a second (`max_hold`). The worker does not notice, as after a long pause.
//!
//! ```sh
//! fencepost dev --background
//! export FENCEPOST_POSTGRES=postgres://postgres@127.0.0.1/postgres
//! cargo run -p fencepost-examples --bin fenced_postgres
//! ```
//!
//! It creates the schema `fencepost` and the table `example_wallet`. Use one database with one cluster: a new `fencepost dev`
//! counts its tokens from 1 again, and the database remembers the old ones.

use std::time::Duration;

use anyhow::Context;
use fencepost::{Client, FencingToken};
use fencepost_fence::{Access, Error, postgres};
use tokio_postgres::NoTls;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let client = Client::from_env()
        .await
        .context("no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER to yours")?;
    let address = std::env::var("FENCEPOST_POSTGRES")
        .context("FENCEPOST_POSTGRES is not set: write postgres://user@host/database")?;
    let (mut database, connection) = tokio_postgres::connect(&address, NoTls)
        .await
        .context("no connection to Postgres: check FENCEPOST_POSTGRES, and that the server runs")?;
    tokio::spawn(connection);

    // Once for each database; `fencepost fence init` does the same.
    postgres::install(&mut database).await?;
    let table = "CREATE TABLE IF NOT EXISTS example_wallet (id bigint PRIMARY KEY, balance bigint NOT NULL);
        INSERT INTO example_wallet VALUES (7, 500) ON CONFLICT (id) DO UPDATE SET balance = 500";
    database.batch_execute(table).await?;

    let first = client.lock("wallet:7").max_hold(Duration::from_millis(500)).acquire().await?;
    let seen = read(&mut database, first.token())
        .await
        .context("the first read failed. A new `fencepost dev` begins with token 1 again: give it an empty database")?;
    println!("the first worker reads {seen}");

    // Granted when the first lock has ended.
    let second = client.lock("wallet:7").wait(Duration::from_secs(5)).acquire().await?;
    let balance = read(&mut database, second.token()).await? - 50;
    write(&mut database, second.token(), balance).await?;
    println!("the second worker takes 50 off, and writes {balance}");
    second.release().await?;

    // The first worker wakes up. Its token is older, and Postgres has seen the newer one.
    match write(&mut database, first.token(), seen - 100).await {
        Err(Error::Stale(stale)) => println!("the first worker's write is refused: {stale}"),
        Err(error) => return Err(error.into()),
        Ok(()) => anyhow::bail!("a late write got in"),
    }
    let row = database.query_one("SELECT balance FROM example_wallet WHERE id = 7", &[]).await?;
    println!("the balance is {}", row.get::<_, i64>(0));
    Ok(())
}

/// Claims, then reads: from here on no older holder can write.
async fn read(database: &mut tokio_postgres::Client, token: FencingToken) -> Result<i64, Error> {
    let transaction = database.transaction().await?;
    postgres::admit(&transaction, &Access::claim("wallet:7", token)).await?;
    let row = transaction.query_one("SELECT balance FROM example_wallet WHERE id = 7", &[]).await?;
    transaction.commit().await?;
    Ok(row.get(0))
}

/// Guard and write in one transaction, the guard first. An error rolls both back.
async fn write(database: &mut tokio_postgres::Client, token: FencingToken, balance: i64) -> Result<(), Error> {
    let transaction = database.transaction().await?;
    postgres::admit(&transaction, &Access::write("wallet:7", token)).await?;
    transaction.execute("UPDATE example_wallet SET balance = $1 WHERE id = 7", &[&balance]).await?;
    transaction.commit().await?;
    Ok(())
}
