//! Holders of a lock are paused (SIGSTOP) past their lease, and write when they wake up: real processes, real nodes, real stores.
//! With the guard, the store accepts no late write, and every account is right at the end. Without it, the same pauses do harm.
//!
//! The workers are those of `fencepost demo`. To set the number of pauses, with the guard and without:
//!
//! ```sh
//! FENCEPOST_SOAK_PAUSES=5000 cargo test -p fencepost-cli --test real paused_holders -- --nocapture
//! ```

#[path = "../../src/demo/actor.rs"]
#[allow(dead_code, reason = "the demo uses the rest")]
mod actor;
#[path = "../../src/demo/orders.rs"]
mod orders;
#[path = "../../src/demo/process.rs"]
mod process;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::cluster::{Cluster, say};
use actor::{Actor, Wrote};
use anyhow::{Result, ensure};
use fencepost_testbed::{Kind, shared};
use orders::Order;
use tokio::task::JoinSet;

/// Pairs of workers that run at the same time, each on its own account; the same number again without the guard.
const PAIRS: usize = 20;
/// The shortest possible lease.
const LEASE_MS: u64 = 1_000;
const BALANCE: i64 = 1_000_000;
/// What the paused holder withdraws, and what its successor withdraws.
const LATE_AMOUNT: i64 = 100;
const AMOUNT: i64 = 7;

#[test]
fn sqlite_lets_no_late_write_in() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    soak("SQLite", &format!("sqlite:{}", directory.path().join("bank.db").display()));
}

#[test]
fn postgres_lets_no_late_write_in() {
    if let Some(server) = shared(Kind::Postgres) {
        soak("Postgres", &server.url());
    }
}

/// Runs all pauses. `store` is an address that the demo's worker knows.
fn soak(store_name: &str, store: &str) {
    // One run already has as many processes as a small machine can carry.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pauses = std::env::var("FENCEPOST_SOAK_PAUSES").map_or(200, |text| text.parse().expect("a whole number"));
    let cluster = Cluster::start_on(3, None);
    let addresses = WorkerAddresses { server: cluster.endpoints().join(","), store: store.to_owned() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let began = Instant::now();
    let [with, without] = runtime.block_on(both(addresses, pauses)).expect("the workers do not fail");
    say(&format!(
        "{store_name}: {} pauses with the guard: {} late writes refused, {} accepted, {} of {} accounts wrong; {} pauses \
         without: {} got through, {} of {} accounts wrong; {:.1} s",
        with.pauses,
        with.refused,
        with.accepted,
        with.wrong,
        with.accounts,
        without.pauses,
        without.accepted,
        without.wrong,
        without.accounts,
        began.elapsed().as_secs_f64()
    ));
    assert_eq!(
        (with.pauses, with.refused, with.accepted, with.wrong),
        (pauses, pauses, 0, 0),
        "the guard refuses every late write"
    );
    assert!(without.accepted > 0 && without.wrong > 0, "the same pauses do harm without the guard");
}

/// The addresses that a worker needs.
#[derive(Clone)]
struct WorkerAddresses {
    server: String,
    store: String,
}

impl WorkerAddresses {
    fn worker(&self) -> Result<Actor> {
        let program = env!("CARGO_BIN_EXE_fencepost");
        let mut command = Command::new(program);
        // The worker dies with this process, even if it is paused.
        command.args(["become-command", &std::process::id().to_string(), program, "demo-worker"]);
        Actor::start(command.args(["--server", &self.server, "--store", &self.store]))
    }
}

#[derive(Default)]
struct Counts {
    pauses: usize,
    refused: usize,
    accepted: usize,
    accounts: usize,
    /// Accounts with a balance that differs from what the workers were told.
    wrong: usize,
}

/// Runs the pauses with the guard and without, at the same time.
async fn both(addresses: WorkerAddresses, pauses: usize) -> Result<[Counts; 2]> {
    let mut opens = addresses.worker()?;
    let mut pairs = JoinSet::new();
    let left = [true, false].map(|guarded| (guarded, Arc::new(AtomicUsize::new(pauses))));
    for (guarded, left) in &left {
        for pair in 0..PAIRS {
            let account = format!("wallet:{pair}:{}", if *guarded { "guarded" } else { "bare" });
            opens.open(&account, BALANCE).await?;
            let workers = [addresses.worker()?, addresses.worker()?];
            let pair = Pair { workers, account, guarded: *guarded, balance: BALANCE, counts: Counts::default() };
            pairs.spawn(pair.run(left.clone()));
        }
    }
    let mut sums = [Counts::default(), Counts::default()];
    while let Some(done) = pairs.join_next().await {
        let (guarded, counts) = done??;
        let sum = &mut sums[usize::from(!guarded)];
        sum.pauses += counts.pauses;
        sum.refused += counts.refused;
        sum.accepted += counts.accepted;
        sum.accounts += 1;
        sum.wrong += counts.wrong;
    }
    Ok(sums)
}

/// Two workers that take turns on one account.
struct Pair {
    workers: [Actor; 2],
    account: String,
    guarded: bool,
    /// What the account should hold: the start, less every withdrawal that a worker was told is done.
    balance: i64,
    counts: Counts,
}

impl Pair {
    async fn run(mut self, left: Arc<AtomicUsize>) -> Result<(bool, Counts)> {
        while left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            self.pause_once().await?;
        }
        let holds = self.workers[0].peek(&self.account).await?;
        self.counts.wrong = usize::from(holds != self.balance);
        Ok((self.guarded, self.counts))
    }

    async fn pause_once(&mut self) -> Result<()> {
        let order = Order::Decide { account: self.account.clone(), ttl_ms: LEASE_MS, guarded: self.guarded };
        let round = self.counts.pauses;
        self.counts.pauses += 1;
        let [one, other] = &mut self.workers;
        let (holder, successor) = if round.is_multiple_of(2) { (one, other) } else { (other, one) };
        holder.tell(&order)?;
        let old = holder.decided().await?;
        holder.pause()?;
        successor.tell(&order)?;
        let new = successor.decided().await?;
        ensure!(new.token > old.token, "token {} was granted after token {}", new.token, old.token);
        // The late write comes after the successor's write, or between the successor's read and write.
        let comes_between = round % 4 < 2;
        if !comes_between {
            ensure!(matches!(successor.write(AMOUNT).await?, Wrote::Done { .. }), "the store accepts the newest token");
        }
        holder.wake()?;
        let late = holder.write(LATE_AMOUNT).await?;
        if comes_between {
            ensure!(matches!(successor.write(AMOUNT).await?, Wrote::Done { .. }), "the store accepts the newest token");
        }
        self.balance -= AMOUNT;
        match late {
            Wrote::Done { .. } => {
                self.counts.accepted += 1;
                self.balance -= LATE_AMOUNT;
            }
            Wrote::Stale { token, highest } => {
                ensure!((token, highest) == (old.token, new.token), "the refusal names {token} and {highest}");
                self.counts.refused += 1;
            }
        }
        successor.release().await?;
        holder.release().await
    }
}
