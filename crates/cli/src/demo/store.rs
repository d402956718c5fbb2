//! The accounts, in a store that the workers reach by its address: `sqlite:FILE` or `postgres://...`.
//!
//! Every access has two forms. With a token, the guard decides in the same transaction. Without a token, the last writer wins.
//! A new kind of store is a new variant here; no other file changes.

use std::time::Duration;

use anyhow::{Result, bail};
use fencepost::FencingToken;
#[cfg(feature = "stores")]
use fencepost_fence::postgres;
use fencepost_fence::{Access, Error, sqlite};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
#[cfg(feature = "stores")]
use tokio_postgres::{Client, NoTls};

/// How long a worker waits for other writers of the same file.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);

/// A connection to the accounts.
pub(crate) enum Store {
    Sqlite(Connection),
    #[cfg(feature = "stores")]
    Postgres(Client),
}

impl Store {
    pub(crate) async fn connect(address: &str) -> Result<Store> {
        if let Some(file) = address.strip_prefix("sqlite:") {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY_PATIENCE)?;
            return Ok(Store::Sqlite(connection));
        }
        #[cfg(feature = "stores")]
        if address.starts_with("postgres://") {
            let (client, connection) = tokio_postgres::connect(address, NoTls).await?;
            // If the connection fails, the next query fails.
            tokio::spawn(connection);
            return Ok(Store::Postgres(client));
        }
        bail!("the workers cannot use the store {address}: give sqlite:FILE or postgres://...")
    }

    /// Creates what is missing, and sets the account's balance.
    pub(crate) async fn open(&mut self, account: &str, balance: i64) -> Result<()> {
        match self {
            Store::Sqlite(connection) => sqlite_open(connection, account, balance),
            #[cfg(feature = "stores")]
            Store::Postgres(client) => postgres_open(client, account, balance).await,
        }
    }

    /// Reads the balance. With a token: claims first, so that no older token can write after this read.
    // Rule: claim-before-read
    pub(crate) async fn read(&mut self, account: &str, token: Option<FencingToken>) -> Result<i64, Error> {
        match self {
            Store::Sqlite(connection) => sqlite_read(connection, account, token),
            #[cfg(feature = "stores")]
            Store::Postgres(client) => postgres_read(client, account, token).await,
        }
    }

    /// Writes the balance. With a token: only if the store has seen no newer token.
    // Rule: same-transaction
    pub(crate) async fn write(
        &mut self,
        account: &str,
        balance: i64,
        token: Option<FencingToken>,
    ) -> Result<(), Error> {
        match self {
            Store::Sqlite(connection) => sqlite_write(connection, account, balance, token),
            #[cfg(feature = "stores")]
            Store::Postgres(client) => postgres_write(client, account, balance, token).await,
        }
    }
}

fn sqlite_open(connection: &mut Connection, account: &str, balance: i64) -> Result<()> {
    let table = "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)";
    connection.execute_batch(&format!("PRAGMA journal_mode = WAL; {table}"))?;
    sqlite::install(connection)?;
    let upsert = "INSERT INTO accounts VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET balance = ?2";
    connection.execute(upsert, params![account, balance])?;
    Ok(())
}

fn sqlite_read(connection: &mut Connection, account: &str, token: Option<FencingToken>) -> Result<i64, Error> {
    let transaction = sqlite_begin(connection)?;
    if let Some(token) = token {
        sqlite::admit(&transaction, &Access::claim(account, token))?;
    }
    let select = "SELECT balance FROM accounts WHERE name = ?1";
    let balance = transaction.query_row(select, [account], |row| row.get(0)).map_err(sqlite_failed)?;
    transaction.commit().map_err(sqlite_failed)?;
    Ok(balance)
}

fn sqlite_write(
    connection: &mut Connection,
    account: &str,
    balance: i64,
    token: Option<FencingToken>,
) -> Result<(), Error> {
    let transaction = sqlite_begin(connection)?;
    if let Some(token) = token {
        sqlite::admit(&transaction, &Access::write(account, token))?;
    }
    let update = "UPDATE accounts SET balance = ?2 WHERE name = ?1";
    transaction.execute(update, params![account, balance]).map_err(sqlite_failed)?;
    transaction.commit().map_err(sqlite_failed)
}

fn sqlite_begin(connection: &mut Connection) -> Result<Transaction<'_>, Error> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite_failed)
}

fn sqlite_failed(error: rusqlite::Error) -> Error {
    Error::Store(error.into())
}

#[cfg(feature = "stores")]
async fn postgres_open(client: &mut Client, account: &str, balance: i64) -> Result<()> {
    let table = "CREATE TABLE IF NOT EXISTS accounts (name text PRIMARY KEY, balance bigint NOT NULL)";
    client.batch_execute(table).await?;
    postgres::install(client).await?;
    let upsert = "INSERT INTO accounts VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET balance = $2";
    client.execute(upsert, &[&account, &balance]).await?;
    Ok(())
}

#[cfg(feature = "stores")]
async fn postgres_read(client: &mut Client, account: &str, token: Option<FencingToken>) -> Result<i64, Error> {
    let transaction = client.transaction().await?;
    if let Some(token) = token {
        postgres::admit(&transaction, &Access::claim(account, token)).await?;
    }
    let balance =
        transaction.query_one("SELECT balance FROM accounts WHERE name = $1", &[&account]).await?.try_get(0)?;
    transaction.commit().await?;
    Ok(balance)
}

#[cfg(feature = "stores")]
async fn postgres_write(
    client: &mut Client,
    account: &str,
    balance: i64,
    token: Option<FencingToken>,
) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    if let Some(token) = token {
        postgres::admit(&transaction, &Access::write(account, token)).await?;
    }
    transaction.execute("UPDATE accounts SET balance = $2 WHERE name = $1", &[&account, &balance]).await?;
    transaction.commit().await?;
    Ok(())
}
