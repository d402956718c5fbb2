//! A worker process, as the demo sees it: sends orders, reads answers, and pauses the worker between them.

use std::io::Write;
use std::process::Command;

use anyhow::{Result, bail};

use super::orders::{Answer, Order};
use super::process::Process;

pub(crate) struct Actor(Process);

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// The account holds this now.
    Done { balance: i64 },
    /// The guard refused it.
    Stale { token: u64, highest: u64 },
}

/// What a worker bases its write on: the lock's token, and the balance that it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) token: u64,
    pub(crate) balance: i64,
}

impl Actor {
    pub(crate) fn start(command: &mut Command) -> Result<Actor> {
        Ok(Actor(Process::start(command)?))
    }

    /// Sends an order, and does not wait for the answer.
    pub(crate) fn tell(&mut self, order: &Order) -> Result<()> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        // Does not block while the worker is paused: the pipe has room for many lines.
        Ok(self.0.input.write_all(line.as_bytes())?)
    }

    /// The answer to the oldest order that is not answered yet.
    pub(crate) async fn answer(&mut self) -> Result<Answer> {
        match serde_json::from_str(&self.0.line().await?)? {
            Answer::Failed { why } => bail!("a worker failed: {why}"),
            answer => Ok(answer),
        }
    }

    pub(crate) async fn open(&mut self, account: &str, balance: i64) -> Result<()> {
        self.tell(&Order::Open { account: account.to_owned(), balance })?;
        match self.answer().await? {
            Answer::Opened => Ok(()),
            other => unexpected(&other),
        }
    }

    pub(crate) async fn decided(&mut self) -> Result<Decided> {
        match self.answer().await? {
            Answer::Decided { token, balance } => Ok(Decided { token, balance }),
            other => unexpected(&other),
        }
    }

    /// Whether the worker still holds the lock, as far as it can know.
    pub(crate) async fn looks(&mut self) -> Result<bool> {
        self.tell(&Order::Look)?;
        match self.answer().await? {
            Answer::Held => Ok(true),
            Answer::Lost => Ok(false),
            other => unexpected(&other),
        }
    }

    pub(crate) async fn write(&mut self, amount: i64) -> Result<Wrote> {
        self.tell(&Order::Write { amount })?;
        match self.answer().await? {
            Answer::Written { balance } => Ok(Wrote::Done { balance }),
            Answer::Stale { token, highest } => Ok(Wrote::Stale { token, highest }),
            other => unexpected(&other),
        }
    }

    pub(crate) async fn released(&mut self) -> Result<()> {
        match self.answer().await? {
            Answer::Released => Ok(()),
            other => unexpected(&other),
        }
    }

    pub(crate) async fn release(&mut self) -> Result<()> {
        self.tell(&Order::Release)?;
        self.released().await
    }

    pub(crate) async fn peek(&mut self, account: &str) -> Result<i64> {
        self.tell(&Order::Peek { account: account.to_owned() })?;
        match self.answer().await? {
            Answer::Holds { balance } => Ok(balance),
            other => unexpected(&other),
        }
    }

    /// Sends SIGSTOP. The worker is stopped when this returns.
    pub(crate) fn pause(&self) -> Result<()> {
        self.0.pause()
    }

    /// Sends SIGCONT.
    pub(crate) fn wake(&self) -> Result<()> {
        self.0.wake()
    }
}

fn unexpected<T>(answer: &Answer) -> Result<T> {
    bail!("a worker gave an unexpected answer: {answer:?}")
}
