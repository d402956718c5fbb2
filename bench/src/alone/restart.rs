//! W8: how long a node with many locks takes from the start of its process until a client is granted a lock.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::elsewhere::Elsewhere;
use super::hold_all;
use crate::compare::Run;
use crate::systems::fencepost::Cluster;
use crate::workload::Workload;
use fencepost_load::count;

const LOCKS_PER_SESSION: usize = 5_000;
/// TTL of the holders' sessions: longer than the whole measurement, even on a slow machine.
const TTL: Duration = Duration::from_secs(3_600);
/// How often the node is killed and started again.
const TIMES: usize = 3;

pub(crate) async fn measure(run: &mut Run<'_>, system: (&str, &str)) -> Result<()> {
    let locks = run.options.sizes.restart_locks;
    let mut cluster = Cluster::start(1, run.options.program.clone()).await?;
    run.tell(&format!("  taking {} locks", count(locks as f64)));
    let builder = cluster.builder().name("fencepost bench").session_ttl(TTL);
    // The holders reconnect when the node is back, as real programs would.
    let mut holders = Elsewhere::start(move |_| async move {
        let client = builder.connect().await?;
        let mut held = Vec::new();
        for first in (0..locks).step_by(LOCKS_PER_SESSION) {
            let session = client.session().open()?;
            let names = (first..locks.min(first + LOCKS_PER_SESSION)).map(|at| format!("bench/w8/{at}"));
            held.extend(hold_all(&session, names.collect()).await?);
        }
        Ok(held)
    })?;
    holders.next().await?;
    for round in 1..=TIMES.min(run.options.rounds) {
        let mut figures = run.probed()?;
        let held = cluster.control().status().await?.counts.grants;
        let (_, node) = cluster.kill_leader().await?;
        let started = Instant::now();
        cluster.restart(node)?;
        figures.insert("listens_ms".to_owned(), started.elapsed().as_secs_f64() * 1e3);
        let client = cluster.builder().name("fencepost bench").connect().await?;
        let guard = client.lock("bench/w8/first").acquire().await?;
        figures.insert("serves_ms".to_owned(), started.elapsed().as_secs_f64() * 1e3);
        figures.insert("locks_count".to_owned(), held as f64);
        guard.release().await?;
        run.record(Workload::Restart, "killed and started again", locks as f64, system, round, figures)?;
    }
    holders.fall_silent();
    Ok(())
}
