//! Memory of a single node, over the number of locks, then of waiters, then of sessions.
//!
//! It is the resident memory of the whole process. So the bytes of a lock, a waiter or a session include its share of the log in
//! memory, of recent events, and of memory that the allocator keeps. `cargo test -p fencepost-core --test memory` counts exactly what
//! the lock state allocates.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use fencepost::{ClientBuilder, Exclusive, Guard, Session};
use tokio::task::JoinSet;

use super::{
    Curve, Growth, LOCKS_PER_SESSION, LONG_TTL, SESSIONS_PER_CLIENT, WAITERS_PER_SESSION, patient, until_counted,
};
use crate::alone::elsewhere::{Elsewhere, Stage};
use crate::alone::hold_all;
use crate::systems::fencepost::Cluster;
use crate::usage;
use fencepost_load::count;

const NODES: usize = 1;
const HOT: &str = "growth/hot";

pub(super) async fn measure(growth: &mut Growth<'_>) -> Result<()> {
    for size in growth.sizes(Curve::Memory) {
        // A process may keep memory that it no longer uses, so each size has a node of its own.
        let cluster = growth.cluster(NODES).await?;
        let mut figures = growth.probed()?;
        one_size(growth, &cluster, size, &mut figures)
            .await
            .with_context(|| format!("with {} of each", count(size as f64)))?;
        growth.record(Curve::Memory, NODES, size, 1, figures)?;
    }
    Ok(())
}

async fn one_size(
    growth: &mut Growth<'_>,
    cluster: &Cluster,
    size: usize,
    figures: &mut BTreeMap<String, f64>,
) -> Result<()> {
    let builder = patient(cluster);
    let mut clients = Elsewhere::start(move |stage| fill(builder, size, stage))?;
    let (mut memory, mut log) = resident_and_log(cluster);
    for what in ["lock", "waiter", "session"] {
        growth.tell(&format!("adding {} {what}s", count(size as f64)));
        clients.next().await?;
        if what == "waiter" {
            // Waiters get no answer. The cluster counts how many have arrived.
            until_counted(cluster.control(), "a queue of all waiters", |counts| counts.waiters == size).await?;
        }
        let now = resident_and_log(cluster);
        let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / size as f64;
        figures.insert(format!("{what}_bytes"), each(now.0, memory));
        figures.insert(format!("{what}_log_bytes"), each(now.1, log));
        (memory, log) = now;
        clients.go_on();
    }
    figures.insert("resident_bytes".to_owned(), memory as f64);
    clients.fall_silent();
    Ok(())
}

/// Resident bytes of the process, and bytes that it has written to its log.
fn resident_and_log(cluster: &Cluster) -> (u64, u64) {
    let resident = cluster.processes().iter().map(|process| usage::resident_bytes(*process)).sum();
    (resident, cluster.counts().get("log_bytes").copied().unwrap_or_default() as u64)
}

/// What must stay alive: locks, waiters and sessions.
type Kept = (Vec<Guard<Exclusive>>, JoinSet<Result<Guard<Exclusive>, fencepost::Error>>, Vec<Session>);

/// Makes `size` locks, then `size` waiters for one more lock, then `size` sessions that hold nothing.
async fn fill(builder: ClientBuilder, size: usize, mut stage: Stage) -> Result<Kept> {
    let builder = builder.session_ttl(LONG_TTL);
    let client = builder.clone().name("growth: holders").connect().await?;
    let mut held: Vec<Guard<Exclusive>> = Vec::with_capacity(size + 1);
    while held.len() < size {
        let session = client.session().open()?;
        let names = (held.len()..size.min(held.len() + LOCKS_PER_SESSION)).map(|at| format!("growth/held/{at}"));
        held.extend(hold_all(&session, names.collect()).await?);
    }
    stage.done().await;
    held.push(client.lock(HOT).acquire().await?);
    let mut waiting = JoinSet::new();
    for first in (0..size).step_by(WAITERS_PER_SESSION) {
        let session = client.session().open()?;
        for _ in first..size.min(first + WAITERS_PER_SESSION) {
            let session = session.clone();
            waiting.spawn(async move { session.lock(HOT).wait_forever().acquire().await });
        }
    }
    stage.done().await;
    let mut idle: Vec<Session> = Vec::with_capacity(size);
    for first in (0..size).step_by(SESSIONS_PER_CLIENT) {
        let client = builder.clone().name(format!("growth: idle {first}")).connect().await?;
        let mut tasks = JoinSet::new();
        for at in first..size.min(first + SESSIONS_PER_CLIENT) {
            let session = client.session().open()?;
            idle.push(session.clone());
            // The cluster opens a session with its first request.
            tasks.spawn(async move { session.lock(format!("growth/idle/{at}")).acquire().await?.release().await });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.context("a task failed")??;
        }
    }
    Ok((held, waiting, idle))
}
