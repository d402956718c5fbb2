//! Each system starts, grants a lock to one contender at a time, hands it to the next, names its processes, and ends all of them.

use std::future::Future;
use std::time::Duration;

use fencepost_bench::system::System;
use fencepost_bench::systems::etcd::Etcd;
use fencepost_bench::systems::postgres::Postgres;
use fencepost_bench::systems::redis::Redis;
use fencepost_bench::systems::redlock::Redlock;
use fencepost_bench::systems::zookeeper::Zookeeper;
use fencepost_testbed::{Kind, available};
use tokio::time::timeout;

/// Long enough for every system on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a contender must wait. Without exclusion it would get the lock much earlier.
const WATCHED: Duration = Duration::from_millis(200);

async fn excludes_and_ends<S: System>(kind: Kind, start: impl Future<Output = anyhow::Result<S>>) {
    if !available(kind) {
        return;
    }
    let system = start.await.expect("it starts");
    let processes = system.processes();
    let runs = |process: &u32| std::fs::exists(format!("/proc/{process}")).expect("Linux has /proc");
    assert!(!processes.is_empty() && processes.iter().all(runs), "{processes:?}");
    timeout(PATIENCE, excludes(&system)).await.expect("it answers in time").expect("it works");
    drop(system);
    assert!(!processes.iter().any(runs), "{processes:?}");
}

async fn excludes(system: &dyn System) -> anyhow::Result<()> {
    let program = system.program().await?;
    let (mut first, mut second) = (program.contender().await?, program.contender().await?);
    // Twice: a released lock can be taken again, by either contender.
    for name in ["peers/one", "peers/one"] {
        first.acquire(name).await?;
        // A free lock is granted while another one is held.
        second.acquire("peers/other").await?;
        second.release().await?;
        {
            let mut waiting = std::pin::pin!(second.acquire(name));
            anyhow::ensure!(timeout(WATCHED, &mut waiting).await.is_err(), "two contenders hold {name}");
            first.release().await?;
            waiting.await?;
        }
        second.release().await?;
    }
    if system.can_share() {
        first.acquire_shared("peers/shared").await?;
        second.acquire_shared("peers/shared").await?;
        first.release().await?;
        {
            let mut waiting = std::pin::pin!(first.acquire("peers/shared"));
            anyhow::ensure!(
                timeout(WATCHED, &mut waiting).await.is_err(),
                "a writer and a reader hold the lock together"
            );
            second.release().await?;
            waiting.await?;
        }
        first.release().await?;
    } else {
        anyhow::ensure!(
            first.acquire_shared("peers/shared").await.is_err(),
            "it has shared locks, but `can_share` denies it"
        );
    }
    Ok(())
}

#[tokio::test]
async fn etcd_excludes_and_ends_its_processes() {
    excludes_and_ends(Kind::EtcdMember, Etcd::start()).await;
}

#[tokio::test]
async fn zookeeper_excludes_and_ends_its_processes() {
    excludes_and_ends(Kind::ZookeeperMember, Zookeeper::start()).await;
}

#[tokio::test]
async fn redis_excludes_and_ends_its_processes() {
    excludes_and_ends(Kind::RedisInMemory, Redis::start_in_memory()).await;
}

#[tokio::test]
async fn redis_that_syncs_excludes_and_ends_its_processes() {
    excludes_and_ends(Kind::RedisSynced, Redis::start_synced()).await;
}

#[tokio::test]
async fn redlock_excludes_and_ends_its_processes() {
    excludes_and_ends(Kind::RedisInMemory, Redlock::start()).await;
}

#[tokio::test]
async fn postgres_excludes_and_ends_its_processes() {
    excludes_and_ends(Kind::Postgres, Postgres::start()).await;
}
