//! How long the cluster takes to open many sessions at once, to close them at once, and to expire silent ones, and how many log
//! entries it writes for that.

use std::time::Instant;

use anyhow::{Context, Result};
use fencepost::{Client, Exclusive, Guard, Session};
use tokio::task::JoinSet;

use super::{Curve, Growth, LONG_TTL, SESSIONS_PER_CLIENT, entries, patient, until_counted};
use crate::alone::dying;
use crate::alone::elsewhere::Elsewhere;
use crate::systems::fencepost::Cluster;
use fencepost_load::count;

const NODES: usize = 3;

pub(super) async fn measure(growth: &mut Growth<'_>) -> Result<()> {
    let cluster = growth.cluster(NODES).await?;
    for many in growth.sizes(Curve::Storms) {
        for round in 1..=growth.options.rounds {
            let mut figures = growth.probed()?;
            let mut note = |name: &str, figure: f64| {
                figures.insert(name.to_owned(), figure);
            };
            let clients = connect(&cluster, &format!("growth: storm {many}-{round}"), many).await?;
            let (from, began) = (entries(&cluster), Instant::now());
            let opened = open(&clients, many).await?;
            note("open_ms", began.elapsed().as_secs_f64() * 1e3);
            note("open_entries_count", entries(&cluster) - from);

            let (from, began) = (entries(&cluster), Instant::now());
            close(opened).await?;
            note("close_ms", began.elapsed().as_secs_f64() * 1e3);
            note("close_entries_count", entries(&cluster) - from);

            let (after_ms, used) = die(&cluster, many, round).await?;
            note("expire_ms", after_ms);
            note("expire_entries_count", used);
            growth.record(Curve::Storms, NODES, many, round, figures)?;
        }
    }
    Ok(())
}

/// Clients for `many` sessions. They connect before the measurement.
async fn connect(cluster: &Cluster, name: &str, many: usize) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for first in (0..many).step_by(SESSIONS_PER_CLIENT) {
        let name = format!("{name} {}", count(first as f64));
        clients.push(patient(cluster).name(name).session_ttl(LONG_TTL).connect().await?);
    }
    Ok(clients)
}

/// Opens `many` sessions at once, each with a lock of its own: the cluster opens a session with its first request.
async fn open(clients: &[Client], many: usize) -> Result<Vec<(Session, Guard<Exclusive>)>> {
    let mut tasks = JoinSet::new();
    for at in 0..many {
        let session = clients[at / SESSIONS_PER_CLIENT].session().open()?;
        tasks.spawn(async move {
            let guard = session.lock(format!("growth/storm/{at}")).acquire().await?;
            anyhow::Ok((session, guard))
        });
    }
    let mut opened = Vec::with_capacity(many);
    while let Some(ended) = tasks.join_next().await {
        opened.push(ended.context("a task failed")??);
    }
    Ok(opened)
}

async fn close(opened: Vec<(Session, Guard<Exclusive>)>) -> Result<()> {
    let mut tasks = JoinSet::new();
    for (session, guard) in opened {
        tasks.spawn(async move {
            session.close().await?;
            // The session has released its lock.
            drop(guard);
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a task failed")??;
    }
    Ok(())
}

/// Lets `many` sessions fall silent. Returns the milliseconds from the last deadline until all are gone, and the log entries for that.
async fn die(cluster: &Cluster, many: usize, round: usize) -> Result<(f64, f64)> {
    let builder = patient(cluster).session_ttl(dying::TTL);
    let mut clients = Elsewhere::start(move |_| async move {
        let mut all = Vec::new();
        for first in (0..many).step_by(SESSIONS_PER_CLIENT) {
            let name = format!("growth: silent {many}-{round} {}", count(first as f64));
            all.push(builder.clone().name(name).connect().await?);
        }
        open(&all, many).await
    })?;
    clients.next().await?;
    let lives = cluster.control().status().await?.counts.sessions;
    clients.fall_silent();
    let (first, last) = dying::deadlines(cluster.control(), many).await?;
    tokio::time::sleep_until((first - std::time::Duration::from_millis(20)).into()).await;
    let from = entries(cluster);
    let gone = until_counted(cluster.control(), "the end of the silent sessions", |counts| {
        counts.sessions + many <= lives && counts.grants == 0
    });
    let gone = gone.await?;
    Ok((gone.saturating_duration_since(last).as_secs_f64() * 1e3, entries(cluster) - from))
}
