//! How long a client waits for a grant after the leader of three nodes is killed. The leader is killed many times.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fencepost::Client;

use super::{Curve, Growth, PATIENCE};

const NODES: usize = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Pause of the client after a release.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) async fn measure(growth: &mut Growth<'_>) -> Result<()> {
    let mut cluster = growth.cluster(NODES).await?;
    let client = cluster.builder().name("growth: asks").connect().await?;
    let granted = Arc::new(Mutex::new(Instant::now()));
    let mut asking = tokio::spawn(keep_asking(client, granted.clone()));
    for kill in 1..=growth.options.kills {
        // Waits until the client is served. Otherwise its wait would begin before the kill.
        next_grant(&granted, Instant::now(), &mut asking).await?;
        let mut figures = growth.probed()?;
        let (killed, node) = cluster.kill_leader().await?;
        let again = next_grant(&granted, killed, &mut asking).await?;
        figures.insert("gap_ms".to_owned(), (again - killed).as_secs_f64() * 1e3);
        growth.record(Curve::FailOver, NODES, 0, kill, figures)?;
        cluster.restart(node)?;
        cluster.wait_until_all_vote().await?;
    }
    asking.abort();
    Ok(())
}

/// Takes and releases a lock in an endless loop, and stores the instant of the last grant.
async fn keep_asking(client: Client, granted: Arc<Mutex<Instant>>) -> Result<()> {
    loop {
        let guard = client.lock("growth/failover").wait_forever().acquire().await?;
        *granted.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        // An unknown outcome does no harm: the same session asks for the lock again.
        let _ = guard.release().await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for the client's first grant after this instant.
async fn next_grant(
    granted: &Mutex<Instant>,
    after: Instant,
    asking: &mut tokio::task::JoinHandle<Result<()>>,
) -> Result<Instant> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let last = *granted.lock().unwrap_or_else(PoisonError::into_inner);
        if last > after {
            return Ok(last);
        }
        if asking.is_finished() {
            let why = asking.await.context("the client's task failed")?;
            bail!("the client has given up: {why:?}");
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    bail!("nothing was granted for {} s", PATIENCE.as_secs())
}
