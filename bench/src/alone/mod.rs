//! Workloads for Fencepost alone: failed leaders, restarted nodes, dead clients, and the cost of idle sessions. Each workload starts a
//! cluster of its own, because it leaves the cluster in a state that would distort other measurements.

pub(crate) mod dying;
pub(crate) mod elsewhere;
mod failover;
mod idle;
mod restart;

use anyhow::{Context, Result};
use fencepost::{Exclusive, Guard, Session};
use tokio::task::JoinSet;

use crate::catalogue::BASELINE;
use crate::compare::Run;
use crate::workload::Workload;

/// Requests in flight while [`hold_all`] takes locks.
const IN_FLIGHT: usize = 250;

/// The id of the system that the workload measures.
pub(crate) fn system(workload: Workload) -> &'static str {
    if workload == Workload::Restart { "fencepost-1" } else { BASELINE }
}

/// Measures the workload, and records its blocks.
///
/// # Errors
/// If a node does not start, or does not do what it should.
pub(crate) async fn measure(run: &mut Run<'_>, workload: Workload) -> Result<()> {
    let name = if workload == Workload::Restart { "Fencepost x1" } else { "Fencepost x3" };
    run.describe(
        system(workload),
        name,
        "the `fencepost` library; every grant and release is committed by a majority and synced",
    );
    match workload {
        Workload::Failover => failover::measure(run, (system(workload), name)).await,
        Workload::Restart => restart::measure(run, (system(workload), name)).await,
        Workload::Dying => dying::measure(run, (system(workload), name)).await,
        Workload::Idle => idle::measure(run, (system(workload), name)).await,
        _ => unreachable!("`compare.rs` runs this workload, because other systems take part in it"),
    }
}

/// Takes all these locks in one session, many at the same time.
pub(crate) async fn hold_all(session: &Session, names: Vec<String>) -> Result<Vec<Guard<Exclusive>>> {
    let each = names.len().div_ceil(IN_FLIGHT).max(1);
    let mut tasks = JoinSet::new();
    for some in names.chunks(each) {
        let (session, some) = (session.clone(), some.to_vec());
        tasks.spawn(async move {
            let mut held = Vec::with_capacity(some.len());
            for name in some {
                held.push(session.lock(&name).acquire().await.with_context(|| format!("cannot acquire {name}"))?);
            }
            anyhow::Ok(held)
        });
    }
    let mut all = Vec::with_capacity(names.len());
    while let Some(held) = tasks.join_next().await {
        all.extend(held.context("a task failed")??);
    }
    Ok(all)
}
