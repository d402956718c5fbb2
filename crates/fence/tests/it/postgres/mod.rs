//! The guard of Postgres, against a real server. This file runs the suite for every guard; the modules test what only Postgres has.
//!
//! Every test has a fresh database on the shared server.
#![cfg(feature = "postgres")]

mod columns;
mod input;
mod installing;
mod once;
mod rights;
mod rows;
mod transactions;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::suite::{AnyAccess, Connection, Store, block_on};
use fencepost_fence::{Access, Error, FencingToken, Forgotten, Installed, ReadToken, Token, postgres};
use fencepost_testbed::{Kind, shared};
use tokio_postgres::{Client, Config, GenericClient, NoTls, Transaction};

/// One database, with the guard, numbers under names, and a wallet of 100.
struct Database(Config);

impl Database {
    /// `None` if there is no server: then the test is recorded as skipped.
    fn fresh() -> Option<Database> {
        let database = Database::bare()?;
        block_on(async {
            let mut client = database.open().await;
            assert_eq!(postgres::install(&mut client).await.expect("a database of our own"), Installed::New);
            run(
                &client,
                // On a busy machine a test may idle for longer than the default bound.
                "SELECT fencepost.set_idle_timeout('1 min');
                 CREATE TABLE numbers (name text PRIMARY KEY, number bigint NOT NULL);
                 CREATE TABLE wallet (id integer PRIMARY KEY, balance bigint NOT NULL);
                 INSERT INTO wallet VALUES (7, 100)",
            )
            .await;
        });
        Some(database)
    }

    /// A database without the guard.
    fn bare() -> Option<Database> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fence_{}", COUNT.fetch_add(1, Ordering::SeqCst));
        let mut config: Config = shared(Kind::Postgres)?.url().parse().expect("a valid address");
        block_on(async {
            let client = open(&config).await;
            run(&client, &format!("CREATE DATABASE {name}")).await;
            // These tests do not need to survive a power failure.
            run(&client, &format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
        });
        config.dbname(&name);
        Some(Database(config))
    }

    async fn open(&self) -> Client {
        open(&self.0).await
    }

    async fn open_as(&self, role: &str) -> Client {
        open(self.0.clone().user(role)).await
    }

    /// The name of the database. It is unique, so tests use it in names that all databases share, such as those of roles.
    fn name(&self) -> &str {
        self.0.get_dbname().expect("it was set")
    }
}

async fn open(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.expect("it serves");
    tokio::spawn(connection);
    client
}

#[track_caller]
fn done<Done>(outcome: Result<Done, tokio_postgres::Error>) -> Done {
    outcome.unwrap_or_else(|error| panic!("{}", Error::from(error)))
}

async fn run(client: &impl GenericClient, sql: &str) {
    done(client.batch_execute(sql).await);
}

/// The one number that a query gives.
async fn one(client: &impl GenericClient, sql: &str) -> i64 {
    done(client.query_one(sql, &[]).await).get(0)
}

async fn balance(client: &impl GenericClient) -> i64 {
    one(client, "SELECT balance FROM wallet WHERE id = 7").await
}

/// The SQLSTATE with which the statement fails.
async fn code(client: &impl GenericClient, sql: &str) -> String {
    let error = client.batch_execute(sql).await.expect_err(sql);
    error.code().unwrap_or_else(|| panic!("{sql}: {error}")).code().to_owned()
}

/// The SQLSTATE in an error of the guard.
fn code_of(error: &Error) -> &str {
    match error {
        Error::Store(source) => {
            source.downcast_ref::<tokio_postgres::error::DbError>().expect("the database said it").code().code()
        }
        other => panic!("{other:?}"),
    }
}

/// Waits until the condition is true.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < deadline, "it never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a session in this database waits for a lock.
async fn a_session_waits(observer: &Client) {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until("a session waits for a lock", async || one(observer, waiting).await > 0).await;
}

impl Store for Database {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = true;

    async fn connect(&self) -> Client {
        self.open().await
    }
}

async fn number(client: &impl GenericClient, name: &str) -> i64 {
    let row = done(client.query_opt("SELECT number FROM numbers WHERE name = $1", &[&name]).await);
    row.map_or(0, |row| row.get(0))
}

async fn set(client: &impl GenericClient, name: &str, number: i64) {
    let upsert = "INSERT INTO numbers VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET number = $2";
    done(client.execute(upsert, &[&name, &number]).await);
}

async fn begin(client: &mut Client) -> Transaction<'_> {
    done(client.transaction().await)
}

impl Connection for Client {
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error> {
        let transaction = begin(self).await;
        postgres::admit(&transaction, &Access::claim(name, token)).await?;
        let number = number(&transaction, name).await;
        transaction.commit().await?;
        Ok(number)
    }

    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error> {
        let transaction = begin(self).await;
        postgres::admit(&transaction, &Access::read(name, token)).await?;
        let number = number(&transaction, name).await;
        transaction.commit().await?;
        Ok(number)
    }

    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error> {
        let transaction = begin(self).await;
        postgres::admit(&transaction, &Access::write(name, token)).await?;
        set(&transaction, name, number).await;
        Ok(transaction.commit().await?)
    }

    async fn peek(&mut self, name: &str) -> i64 {
        number(self, name).await
    }

    async fn write_unguarded(&mut self, name: &str, number: i64) {
        set(self, name, number).await;
    }

    async fn admit(&mut self, access: &AnyAccess) -> Result<(), Error> {
        let transaction = begin(self).await;
        match access {
            AnyAccess::Reads(access) => postgres::admit(&transaction, access).await?,
            AnyAccess::Claims(access) => postgres::admit(&transaction, access).await?,
            AnyAccess::Writes(access) => postgres::admit(&transaction, access).await?,
        }
        Ok(transaction.commit().await?)
    }

    async fn write_and_crash(mut self, name: &str, token: FencingToken, number: i64) {
        let transaction = begin(&mut self).await;
        postgres::admit(&transaction, &Access::write(name, token)).await.expect("its token is good");
        set(&transaction, name, number).await;
        // No destructor runs, so no rollback is sent: the server notices that the connection is gone.
        std::mem::forget(transaction);
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten, Error> {
        postgres::forget_below(self, oldest_live).await
    }
}

crate::suite::suite!(Database::fresh());
