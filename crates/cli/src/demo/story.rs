//! The three acts of the demo. Each runs the workers, prints what they do, and checks the outcome.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;

use super::actor::{Actor, Decided, Wrote};
use super::cluster::Cluster;
use super::orders::Order;
use super::stage::Lane::{self, A, B};
use super::stage::{Stage, Tone};
use super::worker;
use crate::failure::{Failure, Result};

const ACCOUNT: &str = "wallet:7";
const BALANCE: i64 = 500;
/// What A takes, and what B takes.
const AMOUNT_A: i64 = 100;
const AMOUNT_B: i64 = 50;
/// The shortest possible lease, so that its end comes soon.
const LEASE_MS: u64 = 1_000;
/// Long enough to outlive an election.
const LONG_LEASE_MS: u64 = 10_000;
/// How often a worker starts again if it loses its lock before the pause, because the machine is busy.
const TRIES: u32 = 10;

/// Examples for the reader.
const TO_COPY: &str = r#"
To copy, with `fencepost dev` in another terminal:

  a command under a lock, across machines
    fencepost run nightly -- ./backup.sh

  Rust: the guard first, then read and write, in one transaction
    let lock = client.lock("wallet:7").acquire().await?;
    let transaction = database.transaction()?;
    sqlite::admit(&transaction, &Access::write("wallet:7", lock.token()))?;
    transaction.execute("UPDATE wallet SET balance = balance - 100 WHERE id = 7", [])?;
    transaction.commit()?;

  SQL: the same in Postgres, after `fencepost fence init postgres://...`
    BEGIN;
    SELECT fencepost.write('wallet:7', 42);  -- the token of the lock
    UPDATE wallet SET balance = balance - 100 WHERE id = 7;
    COMMIT;"#;

/// The outcome of an act.
struct Outcome {
    title: &'static str,
    expected: i64,
    actual: i64,
    /// `Ok`: a summary. `Err`: why the outcome is not as expected.
    verdict: std::result::Result<String, String>,
}

/// Runs the demo.
///
/// # Errors
/// An act did not go as expected, or the demo could not run.
pub(crate) async fn tell(directory: &Path, guarded: bool) -> Result {
    let stage = Stage::new();
    stage.line(Tone::Bold, "A lock alone does not keep two workers apart. This shows why, and what does.")?;
    stage.line(Tone::Quiet, "All of it is real: three nodes, two workers, SIGSTOP, kill -9, the money in SQLite.\n")?;
    stage.happens(Tone::Plain, "three nodes start")?;
    let cluster = Cluster::start(directory).await?;
    stage.happens(Tone::Plain, &format!("they serve, and {} leads", cluster.leader().await?))?;
    stage.beat().await;
    let mut play = Play::begin(stage, cluster, &directory.join("bank.db"))?;
    let outcomes = [play.lock_alone().await?, play.lock_and_guard(guarded).await?, play.leader_killed().await?];
    sum_up(&play.stage, &outcomes)?;
    for Outcome { title, verdict, .. } in &outcomes {
        if let Err(why) = verdict {
            return Err(Failure::refused(format!("the demo did not go as expected. {title}: {why}")));
        }
    }
    play.stage.line(Tone::Plain, TO_COPY)
}

/// Prints the balances of all acts.
fn sum_up(stage: &Stage, outcomes: &[Outcome]) -> Result {
    stage.line(Tone::Bold, &format!("\n{:<32}{:>8}  {:>6}", "", "expected", "actual"))?;
    for Outcome { title, expected, actual, verdict } in outcomes {
        let tone = if actual == expected && verdict.is_ok() { Tone::Good } else { Tone::Bad };
        let (Ok(words) | Err(words)) = verdict;
        let line = format!("{title:<32}{expected:>8}  {actual:>6}  {}", stage.paint(tone, words));
        stage.line(Tone::Plain, &line)?;
    }
    Ok(())
}

/// The cluster and the two workers, and where to print.
struct Play {
    stage: Stage,
    cluster: Cluster,
    a: Actor,
    b: Actor,
}

/// The acts.
impl Play {
    fn begin(stage: Stage, cluster: Cluster, database: &Path) -> anyhow::Result<Play> {
        let server = cluster.addresses();
        let store =
            format!("sqlite:{}", database.to_str().context("TMPDIR is not in UTF-8: set it to another directory")?);
        let start = || {
            let mut command = crate::own::own_command(worker::NAME)?;
            Actor::start(command.args(["--server", &server, "--store", &store]))
        };
        let (a, b) = (start()?, start()?);
        Ok(Play { stage, cluster, a, b })
    }

    async fn lock_alone(&mut self) -> Result<Outcome> {
        let title = "Act 1. The lock alone";
        let takes = format!("A takes {AMOUNT_A} from an account of {BALANCE}, B takes {AMOUNT_B}");
        self.stage.act(title, &format!("{takes}. A lease ends after 1 s without renewal."))?;
        let (old, new) = self.pause_and_overtake(false).await?;
        let late = self.wake_and_write().await?;
        let looks =
            if self.a.looks().await? { "checks: it holds the lock" } else { "checks: the lock is lost. Too late" };
        self.stage.does(A, Tone::Plain, looks)?;
        self.a.release().await?;
        self.stage.beat().await;
        let expected = BALANCE - AMOUNT_A - AMOUNT_B;
        let actual = self.balance(expected).await?;
        let honest = "A did check before it wrote. No client can do better: the pause came after the check.";
        self.stage.moral(Tone::Quiet, honest)?;
        self.stage.beat().await;
        let verdict = match late {
            Wrote::Done { .. } if actual != expected => {
                Ok(format!("wrong: token {} wrote after token {}", old.token, new.token))
            }
            _ => Err("the late write did not make the balance wrong, although nothing guards the account".to_owned()),
        };
        Ok(Outcome { title, expected, actual, verdict })
    }

    async fn lock_and_guard(&mut self, guarded: bool) -> Result<Outcome> {
        let title = "Act 2. The lock and the guard";
        self.stage.act(title, "The same again. Now the store remembers the highest token that it has seen.")?;
        let (old, new) = self.pause_and_overtake(guarded).await?;
        let late = self.wake_and_write().await?;
        self.a.release().await?;
        if late != (Wrote::Done { balance: BALANCE - AMOUNT_A }) {
            self.withdraw(A, AMOUNT_A).await?;
        }
        let expected = BALANCE - AMOUNT_A - AMOUNT_B;
        let actual = self.balance(expected).await?;
        self.stage.beat().await;
        let refused = Wrote::Stale { token: old.token, highest: new.token };
        let verdict = match late {
            Wrote::Done { .. } => Err(format!("the late write with token {} was let in", old.token)),
            _ if late != refused => Err(format!("the refusal says {late:?} and should say {refused:?}")),
            _ if actual != expected => Err("the late write was refused, and yet the money is wrong".to_owned()),
            _ => Ok(format!("right: token {} was refused, {} had been seen", old.token, new.token)),
        };
        Ok(Outcome { title, expected, actual, verdict })
    }

    async fn leader_killed(&mut self) -> Result<Outcome> {
        let title = "Act 3. The leader dies";
        self.stage
            .act(title, "The store needs no leader to tell old from new. The next grant waits for another one.")?;
        self.a.open(ACCOUNT, BALANCE).await?;
        let leader = self.cluster.leader().await?;
        self.a.tell(&decide(LONG_LEASE_MS, true))?;
        let first = self.a.decided().await?;
        self.tell_decision(A, &first, true).await?;
        let killed_at = Instant::now();
        self.cluster.kill(&leader)?;
        self.b.tell(&decide(LONG_LEASE_MS, true))?;
        self.stage.happens(Tone::Bad, &format!("* {leader}, the leader, is killed (kill -9)"))?;
        self.stage.does(B, Tone::Plain, "asks for the lock, and waits")?;
        self.write(A, AMOUNT_A).await?;
        self.a.tell(&Order::Release)?;
        let second = self.b.decided().await?;
        let gap = format!("{:.1} s", killed_at.elapsed().as_secs_f64());
        self.tell_decision(B, &second, true).await?;
        self.write(B, AMOUNT_B).await?;
        self.a.released().await?;
        self.b.release().await?;
        let third = self.withdraw(A, AMOUNT_A).await?;
        let expected = BALANCE - AMOUNT_A - AMOUNT_B - AMOUNT_A;
        let actual = self.balance(expected).await?;
        let now = self.cluster.leader().await?;
        self.stage.moral(
            Tone::Plain,
            &format!("{now} leads. The next grant came {gap} after the kill; tokens go on rising."),
        )?;
        self.stage.beat().await;
        let tokens @ [one, two, three] = [first.token, second.token, third.token];
        let verdict = match tokens.is_sorted_by(|token, next| token < next) {
            false => Err(format!("tokens do not rise: {tokens:?}")),
            true if actual != expected => Err("a withdrawal is lost".to_owned()),
            true => Ok(format!("right: tokens {one} < {two} < {three}, {gap} without a grant")),
        };
        Ok(Outcome { title, expected, actual, verdict })
    }
}

/// The steps of the acts.
impl Play {
    /// A decides and is paused; its lease runs out; B is granted the lock, and withdraws.
    async fn pause_and_overtake(&mut self, guarded: bool) -> Result<(Decided, Decided)> {
        self.a.open(ACCOUNT, BALANCE).await?;
        let old = self.decide_and_look(guarded).await?;
        self.a.pause()?;
        self.stage.does(A, Tone::Plain, "checks: it holds the lock, so it writes")?;
        self.stage.a_is_paused = true;
        self.stage.does(A, Tone::Bold, "is paused (SIGSTOP), its write on the way")?;
        self.b.tell(&decide(LEASE_MS, guarded))?;
        self.stage.does(B, Tone::Plain, "asks for the lock, and waits")?;
        // The pause lasts until A has really lost its lease: before that, B cannot be granted the lock.
        let new = self.b.decided().await?;
        self.stage.does(A, Tone::Quiet, "its lease has ended")?;
        self.tell_decision(B, &new, guarded).await?;
        self.write(B, AMOUNT_B).await?;
        self.b.release().await?;
        Ok((old, new))
    }

    /// Runs worker A up to the last check before its write. The caller pauses A at once.
    async fn decide_and_look(&mut self, guarded: bool) -> Result<Decided> {
        for _ in 0..TRIES {
            self.a.tell(&decide(LEASE_MS, guarded))?;
            let decided = self.a.decided().await?;
            self.tell_decision(A, &decided, guarded).await?;
            if self.a.looks().await? {
                return Ok(decided);
            }
            self.stage.does(A, Tone::Quiet, "has lost it (busy machine), tries again")?;
            self.a.release().await?;
        }
        Err(Failure::failed(
            "a worker lost its lock several times before its pause: this machine is too busy; try again later",
        ))
    }

    /// Wakes worker A, which then writes what it decided before its pause.
    async fn wake_and_write(&mut self) -> Result<Wrote> {
        self.a.wake()?;
        self.stage.a_is_paused = false;
        let late = self.a.write(AMOUNT_A).await?;
        match late {
            Wrote::Done { balance } => {
                self.stage.does(A, Tone::Bad, &format!("wakes up, and its write lands: {balance}"))?;
            }
            Wrote::Stale { token, highest } => {
                self.stage.does(A, Tone::Good, "wakes up, and its write is refused:")?;
                self.stage.does(A, Tone::Good, &format!("its token is {token}, and {highest} has been seen"))?;
            }
        }
        self.stage.beat().await;
        Ok(late)
    }

    /// One withdrawal with the guard, from the lock to its release.
    async fn withdraw(&mut self, lane: Lane, amount: i64) -> Result<Decided> {
        self.actor(lane).tell(&decide(LONG_LEASE_MS, true))?;
        let decided = self.actor(lane).decided().await?;
        self.tell_decision(lane, &decided, true).await?;
        self.write(lane, amount).await?;
        self.actor(lane).release().await?;
        Ok(decided)
    }

    /// A write with the newest token.
    async fn write(&mut self, lane: Lane, amount: i64) -> Result {
        match self.actor(lane).write(amount).await? {
            Wrote::Done { balance } => {
                self.stage.does(lane, Tone::Plain, &format!("takes {amount}, writes {balance}"))?;
                self.stage.beat().await;
                Ok(())
            }
            Wrote::Stale { token, highest } => Err(Failure::refused(format!(
                "the demo did not go as expected: the newest token {token} was refused because of {highest}"
            ))),
        }
    }

    async fn tell_decision(&self, lane: Lane, decided: &Decided, guarded: bool) -> Result {
        self.stage.does(lane, Tone::Plain, &format!("is granted the lock: token {}", decided.token))?;
        self.stage.beat().await;
        let reads = if guarded { "claims the account, reads" } else { "reads" };
        self.stage.does(lane, Tone::Plain, &format!("{reads} {}", decided.balance))?;
        self.stage.beat().await;
        Ok(())
    }

    /// Reads the balance of the account, and prints it.
    async fn balance(&mut self, expected: i64) -> Result<i64> {
        let actual = self.a.peek(ACCOUNT).await?;
        let (tone, verdict) =
            if actual == expected { (Tone::Good, "Right.") } else { (Tone::Bad, "What B took is not in the books.") };
        let text = format!("The account holds {actual}, and should hold {expected}. {verdict}");
        self.stage.line(Tone::Plain, "")?;
        self.stage.moral(tone, &text)?;
        Ok(actual)
    }

    fn actor(&mut self, lane: Lane) -> &mut Actor {
        match lane {
            A => &mut self.a,
            B => &mut self.b,
        }
    }
}

fn decide(ttl_ms: u64, guarded: bool) -> Order {
    Order::Decide { account: ACCOUNT.to_owned(), ttl_ms, guarded }
}
