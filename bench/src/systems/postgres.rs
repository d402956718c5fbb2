//! Postgres with session-level advisory locks. A lock belongs to a connection, so each contender has a connection of its own.
//!
//! The server keeps these locks in shared memory and writes nothing to disk.

use anyhow::Context;
use async_trait::async_trait;
use fencepost_testbed::{Kind, Server};
use tokio_postgres::{Client, NoTls, Statement};

use super::servers;
use fencepost_load::contender::Contender;

use crate::system::{Program, System};

/// The testbed's server accepts 300 connections. The rest is a margin for other clients.
const CONTENDERS_MAX: usize = 290;

/// One Postgres.
pub struct Postgres {
    servers: Vec<Server>,
}

impl Postgres {
    /// Starts the server.
    ///
    /// # Errors
    /// If Postgres is not installed, or does not start.
    pub async fn start() -> anyhow::Result<Postgres> {
        Ok(Postgres { servers: servers::independent(Kind::Postgres, 1).await? })
    }
}

#[async_trait]
impl System for Postgres {
    fn name(&self) -> &str {
        "Postgres advisory"
    }

    fn how(&self) -> &str {
        "one server; pg_advisory_lock and pg_advisory_unlock as prepared statements on a hash of the name, a connection for each \
         contender; advisory locks are kept in memory: nothing is replicated, written or synced"
    }

    async fn program(&self) -> anyhow::Result<Box<dyn Program>> {
        Ok(Box::new(PostgresProgram { url: self.servers[0].url() }))
    }

    fn processes(&self) -> Vec<u32> {
        servers::processes(&self.servers)
    }

    fn contenders_max(&self) -> usize {
        CONTENDERS_MAX
    }

    fn can_share(&self) -> bool {
        true
    }
}

/// A program with Postgres. Its contenders share nothing.
struct PostgresProgram {
    url: String,
}

#[async_trait]
impl Program for PostgresProgram {
    async fn contender(&self) -> anyhow::Result<Box<dyn Contender>> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        // It ends when the client is dropped. Its errors also reach the client.
        tokio::spawn(connection);
        let call = |function: &str| format!("SELECT {function}(hashtextextended($1, 0))");
        let exclusive = Calls {
            lock: client.prepare(&call("pg_advisory_lock")).await?,
            unlock: client.prepare(&call("pg_advisory_unlock")).await?,
        };
        let shared = Calls {
            lock: client.prepare(&call("pg_advisory_lock_shared")).await?,
            unlock: client.prepare(&call("pg_advisory_unlock_shared")).await?,
        };
        Ok(Box::new(PostgresContender { client, exclusive, shared, held: None }))
    }
}

/// The statements that take and release a lock of one mode.
struct Calls {
    lock: Statement,
    unlock: Statement,
}

struct PostgresContender {
    client: Client,
    exclusive: Calls,
    shared: Calls,
    /// The name of the lock that was taken last, and the statement that releases it.
    held: Option<(String, Statement)>,
}

#[async_trait]
impl Contender for PostgresContender {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        self.client.query_one(&self.exclusive.lock, &[&name]).await?;
        self.held = Some((name.to_owned(), self.exclusive.unlock.clone()));
        Ok(())
    }

    async fn acquire_shared(&mut self, name: &str) -> anyhow::Result<()> {
        self.client.query_one(&self.shared.lock, &[&name]).await?;
        self.held = Some((name.to_owned(), self.shared.unlock.clone()));
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let (name, unlock) = self.held.take().context("the contender holds no lock")?;
        let was_held: bool = self.client.query_one(&unlock, &[&name]).await?.get(0);
        anyhow::ensure!(was_held, "the contender had already lost {name}");
        Ok(())
    }
}
