//! `fencepost demo-worker`: withdraws from accounts under a lock, one step per order. Users never type it.
//!
//! It does what a careful program does: acquire, read, decide, check that the lock is still held, write. Between any two steps
//! it waits for its next order. In a real program, a page fault, a garbage collection or a busy machine may take that time.
//! That is where it is paused.

use std::time::Duration;

use anyhow::{Context, Result};
use fencepost::{Client, Exclusive, Guard};
use fencepost_fence::Error;
use tokio::sync::mpsc;

use super::orders::{Answer, Order};
use super::store::Store;
use crate::{failure, output};

/// The name of this command.
pub(crate) const NAME: &str = "demo-worker";

/// Longer than a pause: when the worker is paused, the lock ends at its own TTL, which comes with the order. The session lives on.
const SESSION_TTL: Duration = Duration::from_secs(30);

/// Carry out orders from standard input; for `fencepost demo`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Nodes of the cluster, separated by commas
    #[arg(long)]
    server: String,
    /// The address of the store with the accounts
    #[arg(long)]
    store: String,
}

/// Works until its input ends: then the sender of the orders is gone.
pub(crate) async fn run(args: Args) -> failure::Result {
    let mut orders = orders();
    let client = Client::builder().address(&args.server)?;
    let client = client.session_ttl(SESSION_TTL).name(NAME).connect_in_background()?;
    let mut worker = Worker { client, store: Store::connect(&args.store).await?, turn: None };
    while let Some(line) = orders.recv().await {
        let answer = worker.carry_out(&line).await;
        output::json_line(&answer.unwrap_or_else(|error| Answer::Failed { why: format!("{error:#}") }))?;
    }
    Ok(())
}

/// The lines of standard input. A separate thread reads them, so that the runtime can renew the locks.
fn orders() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = std::io::stdin().lines().map_while(Result::ok);
        lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
    });
    receiver
}

struct Worker {
    client: Client,
    store: Store,
    turn: Option<Turn>,
}

/// From a grant to its release.
struct Turn {
    lock: Guard<Exclusive>,
    account: String,
    /// The balance as it was read.
    balance: i64,
    guarded: bool,
}

impl Worker {
    async fn carry_out(&mut self, line: &str) -> Result<Answer> {
        match serde_json::from_str(line)? {
            Order::Open { account, balance } => {
                self.store.open(&account, balance).await?;
                Ok(Answer::Opened)
            }
            Order::Decide { account, ttl_ms, guarded } => {
                self.decide(account, Duration::from_millis(ttl_ms), guarded).await
            }
            Order::Look => Ok(if self.turn()?.lock.is_held() { Answer::Held } else { Answer::Lost }),
            Order::Write { amount } => self.write(amount).await,
            Order::Release => {
                let turn = self.turn.take().context("the worker holds no lock")?;
                match turn.lock.release().await {
                    Err(error) if error.lost().is_none() => Err(error.into()),
                    _ => Ok(Answer::Released),
                }
            }
            Order::Peek { account } => Ok(Answer::Holds { balance: self.store.read(&account, None).await? }),
        }
    }

    async fn decide(&mut self, account: String, ttl: Duration, guarded: bool) -> Result<Answer> {
        loop {
            let lock = match self.client.lock(&account).ttl(ttl).wait_forever().acquire().await {
                // On a busy machine the lock may end before the answer arrives.
                Err(fencepost::Error::Failed(fencepost::Failed::GrantedTooLate)) => continue,
                granted => granted?,
            };
            let token = lock.token();
            match self.store.read(&account, guarded.then_some(token)).await {
                Ok(balance) => {
                    self.turn = Some(Turn { lock, account, balance, guarded });
                    return Ok(Answer::Decided { token: token.get(), balance });
                }
                // Or it may end before the read.
                Err(Error::Stale(_)) => drop(lock),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn write(&mut self, amount: i64) -> Result<Answer> {
        let Turn { lock, account, balance, guarded } = self.turn.as_ref().context("the worker holds no lock")?;
        let balance = balance - amount;
        match self.store.write(account, balance, guarded.then_some(lock.token())).await {
            Ok(()) => Ok(Answer::Written { balance }),
            Err(Error::Stale(stale)) => Ok(Answer::Stale { token: stale.token.0, highest: stale.highest.0 }),
            Err(error) => Err(error.into()),
        }
    }

    fn turn(&self) -> Result<&Turn> {
        self.turn.as_ref().context("the worker holds no lock")
    }
}
