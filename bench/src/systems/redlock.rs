//! Redlock, as its authors describe it, over five independent Redis servers (masters). A contender asks all of them at once. It holds
//! the lock if a majority grants it before its TTL is over. Otherwise, and at the end, it releases the lock at all of them.

use std::time::{Duration, Instant};

use anyhow::Context;
use async_trait::async_trait;
use fencepost_testbed::{Kind, Server};
use futures_util::future::join_all;

use super::redis::{Master, TTL, pause, unique};
use super::servers;
use fencepost_load::contender::Contender;

use crate::system::{Program, System};

const MASTERS: usize = 5;
const MAJORITY: usize = MASTERS / 2 + 1;

/// Five masters.
pub struct Redlock {
    servers: Vec<Server>,
}

/// A connection to each master.
struct RedlockProgram {
    masters: Vec<Master>,
}

impl Redlock {
    /// Starts the masters.
    ///
    /// # Errors
    /// If Redis is not installed, or does not start.
    pub async fn start() -> anyhow::Result<Redlock> {
        Ok(Redlock { servers: servers::independent(Kind::RedisInMemory, MASTERS).await? })
    }
}

#[async_trait]
impl System for Redlock {
    fn name(&self) -> &str {
        "Redlock x5"
    }

    fn how(&self) -> &str {
        "five servers; SET NX PX at all of them at once on one multiplexed connection to each, a majority \
         grants the lock, a compare-and-delete script at all of them releases it, waiters retry after 1 to 10 ms; nothing is written or \
         synced"
    }

    async fn program(&self) -> anyhow::Result<Box<dyn Program>> {
        let masters = join_all(self.servers.iter().map(Master::connect)).await;
        Ok(Box::new(RedlockProgram { masters: masters.into_iter().collect::<anyhow::Result<_>>()? }))
    }

    fn processes(&self) -> Vec<u32> {
        servers::processes(&self.servers)
    }
}

#[async_trait]
impl Program for RedlockProgram {
    async fn contender(&self) -> anyhow::Result<Box<dyn Contender>> {
        Ok(Box::new(RedlockContender { masters: self.masters.clone(), held: None }))
    }
}

struct RedlockContender {
    masters: Vec<Master>,
    /// The name of the lock that was taken last, and the value that identifies its holder.
    held: Option<(String, String)>,
}

impl RedlockContender {
    /// Asks all masters for the lock. Returns how many granted it. A master that does not answer counts as a refusal.
    async fn take(&mut self, name: &str, value: &str) -> usize {
        let taken = join_all(self.masters.iter_mut().map(|master| master.take(name, value))).await;
        taken.into_iter().filter(|taken| matches!(taken, Ok(true))).count()
    }

    /// Releases the lock at all masters. Returns at how many it was still held.
    async fn give_back(&mut self, name: &str, value: &str) -> usize {
        let given = join_all(self.masters.iter_mut().map(|master| master.give_back(name, value))).await;
        given.into_iter().filter(|given| matches!(given, Ok(true))).count()
    }
}

#[async_trait]
impl Contender for RedlockContender {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        // Allowance for clock drift of the masters during the TTL.
        let drift = TTL / 100 + Duration::from_millis(2);
        loop {
            let (value, asked_at) = (unique()?, Instant::now());
            if self.take(name, &value).await >= MAJORITY && asked_at.elapsed() + drift < TTL {
                self.held = Some((name.to_owned(), value));
                return Ok(());
            }
            self.give_back(name, &value).await;
            tokio::time::sleep(pause()?).await;
        }
    }

    async fn acquire_shared(&mut self, _: &str) -> anyhow::Result<()> {
        anyhow::bail!("a lock of Redlock is not shared")
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let (name, value) = self.held.take().context("the contender holds no lock")?;
        let given_back = self.give_back(&name, &value).await;
        anyhow::ensure!(given_back >= MAJORITY, "the contender held {name} only at {given_back} of {MASTERS} masters");
        Ok(())
    }
}
