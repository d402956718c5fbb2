//! The three acts. Each plays, tells, and says whether the money is right.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::actor::{Actor, Decided, Wrote};
use super::cluster::Cluster;
use super::orders::Order;
use super::stage::Lane::{A, B};
use super::stage::{Stage, Tone};
use super::worker;
use crate::failure::{Failure, Result};

const ACCOUNT: &str = "wallet:7";
const BALANCE: i64 = 500;
/// What A takes, and what B takes.
const AMOUNT_A: i64 = 100;
const AMOUNT_B: i64 = 50;
/// The shortest lease there is, so that nobody waits long for its end.
const LEASE_MS: u64 = 1_000;
/// Long enough to outlive an election.
const LONG_LEASE_MS: u64 = 10_000;
/// A worker that loses its lock before it was paused, since the machine is busy, begins again.
const TRIES: u32 = 10;

/// What an act came to.
struct Outcome {
    title: &'static str,
    expected: i64,
    actual: i64,
    /// In a few words, for the end.
    so: String,
    /// Why the story did not hold, if it did not.
    broken: Option<String>,
}

pub(crate) async fn tell(directory: &Path, guarded: bool) -> Result {
    let mut stage = Stage::new();
    stage.line(Tone::Bold, "A lock alone does not keep two workers apart. This shows why, and what does.")?;
    stage.line(
        Tone::Quiet,
        "All of it is real: three nodes, two workers, SIGSTOP, kill -9; the money is in SQLite.\n",
    )?;
    stage.happens(Tone::Plain, "three nodes start")?;
    let cluster = Cluster::start(directory).await?;
    let mut play = Play::begin(cluster, &directory.join("bank.db"))?;
    stage.happens(Tone::Plain, &format!("they serve, and {} leads", play.cluster.leader().await?))?;
    stage.beat().await;
    let outcomes = [
        play.lock_alone(&mut stage).await?,
        play.lock_and_guard(&mut stage, guarded).await?,
        play.leader_killed(&mut stage).await?,
    ];
    sum_up(&stage, &outcomes)?;
    let broken = outcomes.iter().find_map(|it| Some(format!("{}: {}", it.title, it.broken.as_ref()?)));
    if let Some(why) = broken {
        return Err(Failure::refused(format!("the story did not hold. {why}")));
    }
    stage.line(Tone::Plain, TO_COPY)
}

/// Everybody who plays.
struct Play {
    cluster: Cluster,
    a: Actor,
    b: Actor,
}

impl Play {
    fn begin(cluster: Cluster, database: &Path) -> anyhow::Result<Play> {
        let server = cluster.addresses();
        let store = format!("sqlite:{}", database.to_str().context("the temporary directory has a name in UTF-8")?);
        let start = || {
            let mut command = super::own_command(worker::NAME)?;
            Actor::start(command.args(["--server", &server, "--store", &store]))
        };
        let (a, b) = (start()?, start()?);
        Ok(Play { cluster, a, b })
    }

    async fn lock_alone(&mut self, stage: &mut Stage) -> Result<Outcome> {
        let title = "Act 1. The lock alone";
        let about = format!(
            "The account holds {BALANCE}. A takes {AMOUNT_A}, B takes {AMOUNT_B}. A lease lasts a second without a sign of life."
        );
        stage.act(title, &about)?;
        let (old, new) = self.pause_and_overtake(stage, false).await?;
        self.wake(stage)?;
        let late = self.a.write(AMOUNT_A).await?;
        let Wrote::Done { balance } = late else {
            return Err(anyhow::anyhow!("a store without a guard has refused a write: {late:?}").into());
        };
        stage.does(A, Tone::Bad, &format!("wakes up, and its write lands: {balance}"))?;
        stage.beat().await;
        if !self.a.looks().await? {
            stage.does(A, Tone::Plain, "looks again: the lock is lost. Too late")?;
        }
        self.a.release().await?;
        let (expected, actual) = (BALANCE - AMOUNT_A - AMOUNT_B, self.a.peek(ACCOUNT).await?);
        stage.beat().await;
        stage.moral(
            Tone::Bad,
            &format!("The account holds {actual}. It should hold {expected}: what B took is not in the books."),
        )?;
        stage.moral(
            Tone::Quiet,
            "A did look before it wrote. No client can do better: the pause came after the look.",
        )?;
        stage.beat().await;
        let broken = (actual == expected).then(|| "the money is right, although nothing guards it".to_owned());
        let so = format!("wrong: the write of token {} came after that of {}", old.token, new.token);
        Ok(Outcome { title, expected, actual, so, broken })
    }

    async fn lock_and_guard(&mut self, stage: &mut Stage, guarded: bool) -> Result<Outcome> {
        let title = "Act 2. The lock and the guard";
        stage.act(title, "The same again. Now the store remembers the highest token that it has seen.")?;
        let (old, new) = self.pause_and_overtake(stage, guarded).await?;
        self.wake(stage)?;
        let late = self.a.write(AMOUNT_A).await?;
        self.a.release().await?;
        match late {
            Wrote::Stale { token, highest } => {
                stage.does(A, Tone::Good, "wakes up, and its write is refused:")?;
                stage.does(A, Tone::Good, &format!("its token is {token}, and {highest} has been seen"))?;
                stage.beat().await;
                let again = self.decide(A, LEASE_MS, true).await?;
                stage.does(A, Tone::Plain, &format!("begins again: token {}, reads {}", again.token, again.balance))?;
                self.write_and_tell(stage, A, AMOUNT_A).await?;
                self.a.release().await?;
            }
            Wrote::Done { balance } => {
                stage.does(A, Tone::Bad, &format!("wakes up, and its write lands: {balance}"))?
            }
        }
        let (expected, actual) = (BALANCE - AMOUNT_A - AMOUNT_B, self.a.peek(ACCOUNT).await?);
        let is_right = actual == expected;
        stage.moral(
            if is_right { Tone::Good } else { Tone::Bad },
            &format!("The account holds {actual}. It should hold {expected}."),
        )?;
        stage.beat().await;
        let seen = Wrote::Stale { token: old.token, highest: new.token };
        let broken = match late {
            Wrote::Done { .. } => Some(format!("the late write with token {} was let in", old.token)),
            _ if late != seen => Some(format!("the refusal says {late:?} and should say {seen:?}")),
            _ if !is_right => Some(format!("the account holds {actual} and should hold {expected}")),
            _ => None,
        };
        let so = match broken {
            None => format!("right: token {} was refused, {} had been seen", old.token, new.token),
            Some(_) => "wrong".to_owned(),
        };
        Ok(Outcome { title, expected, actual, so, broken })
    }

    async fn leader_killed(&mut self, stage: &mut Stage) -> Result<Outcome> {
        let title = "Act 3. The leader dies";
        stage.act(title, "The store needs no leader to tell old from new. Grants wait until there is another one.")?;
        self.a.open(ACCOUNT, BALANCE).await?;
        let first = self.decide(A, LONG_LEASE_MS, true).await?;
        stage.does(A, Tone::Plain, &format!("is granted the lock: token {}, reads {}", first.token, first.balance))?;
        stage.beat().await;
        let leader = self.cluster.leader().await?;
        let killed_at = Instant::now();
        self.cluster.kill(&leader)?;
        stage.happens(Tone::Bad, &format!("{leader}, the leader, is killed (kill -9)"))?;
        self.write_and_tell(stage, A, AMOUNT_A).await?;
        self.a.tell(&Order::Release)?;
        self.b.tell(&decide(LONG_LEASE_MS, true))?;
        stage.does(B, Tone::Plain, "asks for the lock, and waits")?;
        let second = self.b.decided().await?;
        let gap = killed_at.elapsed();
        self.a.released().await?;
        stage.happens(Tone::Good, &format!("{} leads now", self.cluster.leader().await?))?;
        stage.does(B, Tone::Good, &format!("is granted it {} after: token {}", seconds(gap), second.token))?;
        stage.beat().await;
        self.write_and_tell(stage, B, AMOUNT_B).await?;
        self.b.release().await?;
        let third = self.decide(A, LONG_LEASE_MS, true).await?;
        stage.does(A, Tone::Plain, &format!("is granted the lock: token {}, reads {}", third.token, third.balance))?;
        self.write_and_tell(stage, A, AMOUNT_A).await?;
        self.a.release().await?;
        let (expected, actual) = (BALANCE - 2 * AMOUNT_A - AMOUNT_B, self.a.peek(ACCOUNT).await?);
        stage.moral(
            Tone::Good,
            &format!("The account holds {actual}. It should hold {expected}. Tokens go on rising."),
        )?;
        let tokens = [first.token, second.token, third.token];
        let rise = tokens.is_sorted_by(|one, next| one < next);
        let broken = match (rise, actual == expected) {
            (false, _) => Some(format!("tokens do not rise: {tokens:?}")),
            (_, false) => Some(format!("the account holds {actual} and should hold {expected}")),
            _ => None,
        };
        let [first, second, third] = tokens;
        let so = format!("right: tokens {first} < {second} < {third}, {} without a grant", seconds(gap));
        Ok(Outcome { title, expected, actual, so, broken })
    }

    /// A decides and is paused; its lease runs out; B is granted the lock, and withdraws.
    async fn pause_and_overtake(&mut self, stage: &mut Stage, guarded: bool) -> Result<(Decided, Decided)> {
        self.a.open(ACCOUNT, BALANCE).await?;
        let old = self.decide_and_look(stage, guarded).await?;
        self.a.pause()?;
        stage.does(A, Tone::Plain, "looks once more: it holds the lock")?;
        stage.a_is_paused = true;
        stage.does(A, Tone::Bold, "is paused (SIGSTOP), its write on the way")?;
        self.b.tell(&decide(LEASE_MS, guarded))?;
        stage.does(B, Tone::Plain, "asks for the lock, and waits")?;
        // The pause lasts until the lease has really been lost: B could not be granted the lock before.
        let new = self.b.decided().await?;
        stage.does(B, Tone::Plain, &format!("A's lease is over; is granted it: token {}", new.token))?;
        stage.beat().await;
        let read = if guarded { format!("claims with token {}, reads", new.token) } else { "reads".to_owned() };
        stage.does(B, Tone::Plain, &format!("{read} {}", new.balance))?;
        self.write_and_tell(stage, B, AMOUNT_B).await?;
        self.b.release().await?;
        Ok((old, new))
    }

    /// Up to the last look before the write. The caller pauses A at once.
    async fn decide_and_look(&mut self, stage: &Stage, guarded: bool) -> Result<Decided> {
        for _ in 0..TRIES {
            let old = self.decide(A, LEASE_MS, guarded).await?;
            stage.does(A, Tone::Plain, &format!("is granted the lock: token {}", old.token))?;
            stage.beat().await;
            let read = if guarded { format!("claims with token {}, reads", old.token) } else { "reads".to_owned() };
            let mind = format!("{read} {}, will write {}", old.balance, old.balance - AMOUNT_A);
            stage.does(A, Tone::Plain, &mind)?;
            stage.beat().await;
            if self.a.looks().await? {
                return Ok(old);
            }
            stage.does(A, Tone::Quiet, "has lost it: the machine is busy. Again")?;
            self.a.release().await?;
        }
        Err(Failure::failed("a worker lost its lock again and again before it was paused: this machine is too busy"))
    }

    fn wake(&self, stage: &mut Stage) -> Result {
        stage.a_is_paused = false;
        Ok(self.a.wake()?)
    }

    async fn decide(&mut self, lane: super::stage::Lane, ttl_ms: u64, guarded: bool) -> anyhow::Result<Decided> {
        let actor = if lane == A { &mut self.a } else { &mut self.b };
        actor.tell(&decide(ttl_ms, guarded))?;
        actor.decided().await
    }

    /// A write that is in time.
    async fn write_and_tell(&mut self, stage: &Stage, lane: super::stage::Lane, amount: i64) -> Result {
        let actor = if lane == A { &mut self.a } else { &mut self.b };
        match actor.write(amount).await? {
            Wrote::Done { balance } => stage.does(lane, Tone::Plain, &format!("takes {amount}, writes {balance}"))?,
            Wrote::Stale { token, highest } => {
                let why = format!("token {token} is the newest, and yet {highest} has been seen");
                return Err(Failure::refused(format!("the story did not hold: {why}")));
            }
        }
        stage.beat().await;
        Ok(())
    }
}

fn decide(ttl_ms: u64, guarded: bool) -> Order {
    Order::Decide { account: ACCOUNT.to_owned(), ttl_ms, guarded }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// The balances side by side.
fn sum_up(stage: &Stage, outcomes: &[Outcome]) -> Result {
    stage.line(Tone::Bold, &format!("\n{:<32}{:>8}  {:>6}", "", "expected", "actual"))?;
    for Outcome { title, expected, actual, so, .. } in outcomes {
        let tone = if actual == expected { Tone::Good } else { Tone::Bad };
        let so = stage.paint(tone, so);
        stage.line(Tone::Plain, &format!("{title:<32}{expected:>8}  {actual:>6}  {so}"))?;
    }
    Ok(())
}

const TO_COPY: &str = r#"
To copy. Start a node to try it with: fencepost dev

  a command under a lock, across machines
    fencepost run nightly -- ./backup.sh

  Rust: the token goes along with the write, in one transaction
    let lock = client.lock("wallet:7").acquire().await?;
    let transaction = database.transaction()?;
    sqlite::admit(&transaction, &Access::write("wallet:7", lock.token()))?;
    transaction.execute("UPDATE wallet SET balance = 400 WHERE id = 7", [])?;
    transaction.commit()?;

  SQL: Postgres, after `fencepost fence init postgres://...`
    BEGIN;
    SELECT fencepost.write('wallet:7', 42);
    UPDATE wallet SET balance = 400 WHERE id = 7;
    COMMIT;"#;
