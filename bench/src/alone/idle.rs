//! W4: many sessions on many connections hold locks and send only keep-alives.
//!
//! Measures the leader's memory for a session and for a lock, its CPU time, and the log entries per second.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fencepost::ClientBuilder;
use tokio::task::JoinSet;

use super::elsewhere::{Elsewhere, Stage};
use crate::compare::Run;
use crate::systems::fencepost::Cluster;
use crate::usage;
use crate::workload::Workload;
use fencepost_load::count;

const LOCKS_PER_SESSION: usize = 5;
/// Half of the ten thousand sessions that one principal may have.
const SESSIONS_PER_PRINCIPAL: usize = 5_000;

pub(crate) async fn measure(run: &mut Run<'_>, system: (&str, &str)) -> Result<()> {
    let sizes = run.options.sizes.clone();
    let (sessions, connections) = (sizes.idle_sessions, sizes.idle_connections);
    let cluster = Cluster::start(3, run.options.program.clone()).await?;
    let leader = cluster.leader_process().await?;
    let mut figures = run.probed()?;
    let empty = usage::resident_bytes(leader);
    run.tell(&format!("  opening {} sessions on {} connections", count(sessions as f64), count(connections as f64)));
    let builder = cluster.builder();
    let mut clients = Elsewhere::start(move |stage| hold(builder, sessions, connections, stage))?;
    clients.next().await?;
    let one_lock_each = usage::resident_bytes(leader);
    clients.go_on();
    clients.next().await?;
    let all_locks = usage::resident_bytes(leader);
    let lock_bytes = all_locks.saturating_sub(one_lock_each) as f64 / (sessions * (LOCKS_PER_SESSION - 1)) as f64;
    let session_bytes = one_lock_each.saturating_sub(empty) as f64 / sessions as f64 - lock_bytes;
    let entries = |cluster: &Cluster| cluster.counts().get("entries").copied().unwrap_or_default();
    let watched = Duration::from_secs(sizes.idle_seconds);
    run.tell(&format!("  watching the idle sessions for {} s", watched.as_secs()));
    // First the cluster finishes the work that opening the sessions has caused.
    tokio::time::sleep(watched / 4).await;
    let (from, entries_before, processor) = (Instant::now(), entries(&cluster), usage::processor_us(&[leader]));
    tokio::time::sleep(watched).await;
    let seconds = from.elapsed().as_secs_f64();
    let processor = usage::processor_us(&[leader]).saturating_sub(processor);
    let counts = cluster.control().status().await?.counts;
    figures.extend([
        ("entries_per_second".to_owned(), (entries(&cluster) - entries_before) / seconds),
        ("leader_core_percent".to_owned(), processor as f64 / 1e4 / seconds),
        ("lock_bytes".to_owned(), lock_bytes),
        ("session_bytes".to_owned(), session_bytes.max(0.0)),
        ("sessions_count".to_owned(), counts.sessions as f64),
        ("locks_count".to_owned(), counts.grants as f64),
        ("resident_bytes".to_owned(), all_locks as f64),
    ]);
    let case = format!("{} connections", count(connections as f64));
    run.record(Workload::Idle, &case, connections as f64, system, 1, figures)?;
    clients.fall_silent();
    Ok(())
}

/// Opens the sessions with one lock each, then takes the rest of the locks. Returns all guards, which the caller keeps.
async fn hold(
    builder: ClientBuilder,
    sessions: usize,
    connections: usize,
    mut stage: Stage,
) -> Result<Vec<fencepost::Guard<fencepost::Exclusive>>> {
    let each = sessions.div_ceil(connections);
    let (mut held, mut all) = (Vec::new(), Vec::with_capacity(sessions));
    for first in (0..sessions).step_by(each) {
        let client = builder.clone().name(format!("idle {}", first / SESSIONS_PER_PRINCIPAL)).connect().await?;
        let opened = (first..sessions.min(first + each)).map(|_| client.session().open());
        let opened = opened.collect::<Result<Vec<_>, _>>()?;
        held.extend(lock_each(&opened, first, 0..1).await?);
        all.push((first, opened));
    }
    stage.done().await;
    for (first, opened) in &all {
        held.extend(lock_each(opened, *first, 1..LOCKS_PER_SESSION).await?);
    }
    Ok(held)
}

/// Takes the locks with these numbers in each of these sessions.
async fn lock_each(
    sessions: &[fencepost::Session],
    first: usize,
    numbers: std::ops::Range<usize>,
) -> Result<Vec<fencepost::Guard<fencepost::Exclusive>>> {
    let mut tasks = JoinSet::new();
    for (at, session) in sessions.iter().enumerate() {
        for number in numbers.clone() {
            let session = session.clone();
            tasks.spawn(async move { session.lock(format!("bench/w4/{}/{number}", first + at)).acquire().await });
        }
    }
    let mut held = Vec::new();
    while let Some(guard) = tasks.join_next().await {
        held.push(guard.context("a task failed")??);
    }
    Ok(held)
}
