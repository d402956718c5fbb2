//! W5: many sessions that hold a lock fall silent at once. Another client, the heir, waits for each lock.
//!
//! Measures how long after the deadlines the heirs get their locks, and how many log entries that takes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fencepost::{Client, SessionId};
use tokio::task::JoinSet;

use super::elsewhere::Elsewhere;
use crate::compare::Run;
use crate::systems::fencepost::Cluster;
use crate::workload::Workload;

/// TTL of the sessions that die. Short, because each round waits for it.
pub(crate) const TTL: Duration = Duration::from_secs(4);
/// Half of the sessions that one principal may have, so that those of a second round fit, too.
const SESSIONS_PER_CLIENT: usize = 5_000;
const HEIRS_PER_SESSION: usize = 500;
const TIMES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn measure(run: &mut Run<'_>, system: (&str, &str)) -> Result<()> {
    let cluster = Cluster::start(3, run.options.program.clone()).await?;
    for round in 1..=TIMES.min(run.options.rounds) {
        die(run, &cluster, system, round).await?;
    }
    Ok(())
}

async fn die(run: &mut Run<'_>, cluster: &Cluster, system: (&str, &str), round: usize) -> Result<()> {
    let many = run.options.sizes.dying;
    let mut figures = run.probed()?;
    let builder = cluster.builder().session_ttl(TTL);
    let mut holders = Elsewhere::start(move |_| async move {
        let mut held = Vec::with_capacity(many);
        for first in (0..many).step_by(SESSIONS_PER_CLIENT) {
            let client = builder.clone().name(format!("holders {round}-{first}")).connect().await?;
            let mut tasks = JoinSet::new();
            for at in first..many.min(first + SESSIONS_PER_CLIENT) {
                let session = client.session().open()?;
                tasks.spawn(async move { session.lock(format!("bench/w5/{at}")).acquire().await });
            }
            while let Some(guard) = tasks.join_next().await {
                held.push(guard.context("a task failed")??);
            }
        }
        Ok(held)
    })?;
    holders.next().await?;
    let heirs = cluster.builder().name("heirs").connect().await?;
    let mut granted = JoinSet::new();
    for first in (0..many).step_by(HEIRS_PER_SESSION) {
        let session = heirs.session().open()?;
        for at in first..many.min(first + HEIRS_PER_SESSION) {
            let session = session.clone();
            granted.spawn(async move {
                let guard = session.lock(format!("bench/w5/{at}")).wait_forever().acquire().await?;
                anyhow::Ok((Instant::now(), guard))
            });
        }
    }
    until_all_wait(cluster.control(), many).await?;
    holders.fall_silent();
    let (first_deadline, last_deadline) = deadlines(cluster.control(), many).await?;
    let before = first_deadline - Duration::from_millis(20);
    tokio::time::sleep_until(before.into()).await;
    let entries = |cluster: &Cluster| cluster.counts().get("entries").copied().unwrap_or_default();
    let from = entries(cluster);
    let mut guards = Vec::with_capacity(many);
    let mut first: Option<Instant> = None;
    let mut last = last_deadline;
    while let Some(heir) = granted.join_next().await {
        let (at, guard) = heir.context("a task failed")??;
        first = Some(first.map_or(at, |first| first.min(at)));
        last = last.max(at);
        guards.push(guard);
    }
    figures.insert("entries_count".to_owned(), entries(cluster) - from);
    let after = |at: Instant, deadline: Instant| at.saturating_duration_since(deadline).as_secs_f64() * 1e3;
    figures.insert("first_ms".to_owned(), first.map_or(0.0, |first| after(first, first_deadline)));
    figures.insert("last_ms".to_owned(), after(last, last_deadline));
    figures.insert("sessions_count".to_owned(), many as f64);
    let spread = last_deadline.saturating_duration_since(first_deadline);
    figures.insert("deadlines_apart_ms".to_owned(), spread.as_secs_f64() * 1e3);
    run.record(Workload::Dying, "all at once", many as f64, system, round, figures)?;
    drop(guards);
    heirs.close().await?;
    Ok(())
}

async fn until_all_wait(control: &Client, many: usize) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while control.status().await?.counts.waiters < many {
        ensure!(Instant::now() < until, "not all heirs wait for their locks after {} s", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// The first and the last deadline of the silent sessions, by this machine's clock. The cluster returns its deadlines in logical
/// time, together with the current logical time.
pub(crate) async fn deadlines(control: &Client, many: usize) -> Result<(Instant, Instant)> {
    let (mut after, mut first, mut last, mut found): (Option<SessionId>, _, _, _) = (None, None, None, 0);
    loop {
        let asked = Instant::now();
        let page = control.sessions(after).await?;
        for session in page.what.rows.iter().filter(|session| u128::from(session.ttl.millis().get()) == TTL.as_millis())
        {
            let left = Duration::from_millis(session.deadline.0.saturating_sub(page.at.stamp.0));
            let deadline = asked + left;
            first = Some(first.map_or(deadline, |first: Instant| first.min(deadline)));
            last = Some(last.map_or(deadline, |last: Instant| last.max(deadline)));
            found += 1;
        }
        after = page.what.next;
        if after.is_none() {
            break;
        }
    }
    ensure!(found == many, "{found} of {many} silent sessions were still alive when their deadlines were read");
    first.zip(last).context("there are no silent sessions")
}
