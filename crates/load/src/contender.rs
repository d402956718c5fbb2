//! A contender: one task that takes locks and gives them back. [`Taker`] is the contender of Fencepost, through its library.
//!
//! Other systems implement [`Contender`] in the comparison (`bench/`), so that all systems run under the same loops.

use anyhow::{Context, Result};
use async_trait::async_trait;
use fencepost::{Client, Efficiency, Exclusive, Guard, Session, Shared};

/// A task of a program. It takes one lock at a time.
#[async_trait]
pub trait Contender: Send {
    /// Takes the lock, waiting for it in the way of this system for as long as it takes.
    async fn acquire(&mut self, name: &str) -> Result<()>;

    /// The same with others who share it. Asked only of systems that can.
    async fn acquire_shared(&mut self, name: &str) -> Result<()>;

    /// Gives back what was taken last, and returns when the system has said that it is free.
    async fn release(&mut self) -> Result<()>;
}

/// A contender that uses the library as a program would.
pub struct Taker {
    home: Home,
    held: Option<Held>,
}

/// Where its locks belong.
enum Home {
    Session(Session),
    Efficiency(Client),
}

enum Held {
    Exclusive(Guard<Exclusive>),
    Shared(Guard<Shared>),
    Efficiency(Guard<Efficiency>),
}

impl Taker {
    /// Its locks belong to this session.
    pub fn in_session(session: Session) -> Taker {
        Taker { home: Home::Session(session), held: None }
    }

    /// Its locks are of the efficiency tier.
    pub fn of_efficiency(client: Client) -> Taker {
        Taker { home: Home::Efficiency(client), held: None }
    }
}

#[async_trait]
impl Contender for Taker {
    async fn acquire(&mut self, name: &str) -> Result<()> {
        self.held = Some(match &self.home {
            Home::Session(session) => Held::Exclusive(session.lock(name).wait_forever().acquire().await?),
            Home::Efficiency(client) => {
                Held::Efficiency(client.lock(name).efficiency().wait_forever().acquire().await?)
            }
        });
        Ok(())
    }

    async fn acquire_shared(&mut self, name: &str) -> Result<()> {
        self.held = Some(match &self.home {
            Home::Session(session) => Held::Shared(session.lock(name).shared().wait_forever().acquire().await?),
            Home::Efficiency(client) => {
                Held::Efficiency(client.lock(name).shared().efficiency().wait_forever().acquire().await?)
            }
        });
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        match self.held.take().context("nothing is held")? {
            Held::Exclusive(guard) => guard.release().await?,
            Held::Shared(guard) => guard.release().await?,
            Held::Efficiency(guard) => guard.release().await?,
        };
        Ok(())
    }
}
