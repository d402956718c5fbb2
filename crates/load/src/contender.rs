//! A contender: one task that takes and releases locks. [`Taker`] is the contender of Fencepost, through its library.
//!
//! Other systems implement [`Contender`] in the comparison (`bench/`), so that all systems run under the same loops.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use fencepost::{Client, Efficiency, Exclusive, Guard, Job, Session, Shared, Turn};

/// A task of a program. It takes one lock at a time.
#[async_trait]
pub trait Contender: Send {
    /// Takes the lock. Waits for it without a time limit, in the way of this system's clients.
    async fn acquire(&mut self, name: &str) -> Result<()>;

    /// Takes the lock in shared mode. A system without shared locks returns an error.
    async fn acquire_shared(&mut self, name: &str) -> Result<()>;

    /// Releases the lock that was taken last. Returns when the system has confirmed it.
    async fn release(&mut self) -> Result<()>;
}

/// A contender that uses the `fencepost` library, as a program would.
pub struct Taker {
    home: Home,
    held: Option<Held>,
}

/// What it takes its locks with.
enum Home {
    Session(Session),
    /// Each lock is for a job of its own, whose key is this number.
    Jobs(Session, u64),
    Efficiency(Client),
}

enum Held {
    Exclusive(Guard<Exclusive>),
    Shared(Guard<Shared>),
    Efficiency(Guard<Efficiency>),
    Job(Box<Job>),
}

impl Taker {
    /// A contender whose locks belong to this session.
    pub fn in_session(session: Session) -> Taker {
        Taker { home: Home::Session(session), held: None }
    }

    /// A contender whose locks belong to this session. Each is for a job of its own, which it begins and completes.
    pub fn of_jobs(session: Session) -> Taker {
        Taker { home: Home::Jobs(session, 0), held: None }
    }

    /// A contender that takes locks of the efficiency tier.
    pub fn of_efficiency(client: Client) -> Taker {
        Taker { home: Home::Efficiency(client), held: None }
    }
}

#[async_trait]
impl Contender for Taker {
    async fn acquire(&mut self, name: &str) -> Result<()> {
        self.held = Some(match &mut self.home {
            Home::Jobs(session, key) => {
                *key += 1;
                // A minute is the shortest time. The load leaves nothing behind for longer.
                let job = session.lock(name).once(key.to_string()).keep(Duration::from_secs(60));
                let Turn::Yours(job) = job.acquire().await? else { bail!("the job {name} {key} is completed") };
                job.begin().await?;
                Held::Job(Box::new(job))
            }
            Home::Session(session) => Held::Exclusive(session.lock(name).wait_forever().acquire().await?),
            Home::Efficiency(client) => {
                Held::Efficiency(client.lock(name).efficiency().wait_forever().acquire().await?)
            }
        });
        Ok(())
    }

    async fn acquire_shared(&mut self, name: &str) -> Result<()> {
        self.held = Some(match &self.home {
            Home::Jobs(..) => bail!("a job is not shared"),
            Home::Session(session) => Held::Shared(session.lock(name).shared().wait_forever().acquire().await?),
            Home::Efficiency(client) => {
                Held::Efficiency(client.lock(name).shared().efficiency().wait_forever().acquire().await?)
            }
        });
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        match self.held.take().context("the contender holds no lock")? {
            Held::Exclusive(guard) => drop(guard.release().await?),
            Held::Shared(guard) => drop(guard.release().await?),
            Held::Efficiency(guard) => drop(guard.release().await?),
            Held::Job(mut job) => drop(job.complete(()).await?),
        };
        Ok(())
    }
}
