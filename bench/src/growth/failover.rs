//! How long nobody is granted anything when the leader of three is killed, again and again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fencepost::Client;

use super::{Curve, Growth, PATIENCE};

const NODES: usize = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// A client asks again so soon after it was granted something.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) async fn measure(growth: &mut Growth<'_>) -> Result<()> {
    let mut cluster = growth.cluster(NODES).await?;
    let client = cluster.builder().name("growth: asks").connect().await?;
    let granted = Arc::new(Mutex::new(Instant::now()));
    let mut asking = tokio::spawn(keep_asking(client, granted.clone()));
    for kill in 1..=growth.options.kills {
        // The client is served: otherwise its wait would have begun before the kill.
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

/// Takes a lock and gives it back for ever, and says when it was last granted.
async fn keep_asking(client: Client, granted: Arc<Mutex<Instant>>) -> Result<()> {
    loop {
        let guard = client.lock("growth/failover").wait_forever().acquire().await?;
        *granted.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        // Whether the lock was given back or its outcome is unknown: it is asked for again, and the session is the same.
        let _ = guard.release().await;
        tokio::time::sleep(PAUSE).await;
    }
}

/// When the client was next granted something after an instant.
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
            let why = asking.await.context("the client broke off")?;
            bail!("the client has given up: {why:?}");
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    bail!("nothing was granted for {} s", PATIENCE.as_secs())
}
