//! W6: how long a client waits for a grant when the leader is killed, and during a planned leadership transfer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fencepost::Client;

use crate::compare::Run;
use crate::systems::fencepost::Cluster;
use crate::workload::Workload;

/// How long the load runs before and after a leadership transfer.
const AROUND: Duration = Duration::from_millis(300);

pub(crate) async fn measure(run: &mut Run<'_>, system: (&str, &str)) -> Result<()> {
    let mut cluster = Cluster::start(3, run.options.program.clone()).await?;
    let client = cluster.builder().name("fencepost bench").connect().await?;
    for round in 1..=run.options.sizes.kills {
        let mut figures = run.probed()?;
        // So the client has found the leader, and its session is open, before the kill.
        client.lock("bench/w6").acquire().await?.release().await?;
        let (killed, node) = cluster.kill_leader().await?;
        let guard = client.lock("bench/w6").wait_forever().acquire().await?;
        figures.insert("gap_ms".to_owned(), killed.elapsed().as_secs_f64() * 1e3);
        guard.release().await?;
        run.record(Workload::Failover, "leader killed with -9", 0.0, system, round, figures)?;
        cluster.restart(node)?;
        cluster.wait_until_all_vote().await?;
    }
    for round in 1..=run.options.sizes.kills {
        let mut figures = run.probed()?;
        let gap = longest_gap(&client, || async {
            cluster.control().admin().reason("fencepost bench").transfer_lead(None).await?;
            Ok(())
        });
        figures.insert("gap_ms".to_owned(), gap.await?.as_secs_f64() * 1e3);
        run.record(Workload::Failover, "planned leadership transfer", 1.0, system, round, figures)?;
        cluster.wait_until_all_vote().await?;
    }
    Ok(())
}

/// The longest time between two grants to one client while `event` happens.
async fn longest_gap<F: Future<Output = Result<()>>>(client: &Client, event: impl Fn() -> F) -> Result<Duration> {
    let stop = Arc::new(AtomicBool::new(false));
    let (client, until) = (client.clone(), stop.clone());
    let pairs = tokio::spawn(async move {
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        while !until.load(Ordering::Relaxed) {
            let guard = client.lock("bench/w6").wait_forever().acquire().await?;
            longest = longest.max(last.elapsed());
            last = Instant::now();
            guard.release().await?;
        }
        anyhow::Ok(longest)
    });
    tokio::time::sleep(AROUND).await;
    let happened = event().await;
    tokio::time::sleep(AROUND).await;
    stop.store(true, Ordering::Relaxed);
    let longest = pairs.await.context("the client's task failed")??;
    happened.map(|()| longest)
}
