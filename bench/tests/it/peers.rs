//! Each system starts, excludes, gives its locks on, says which processes it costs, and leaves none of them behind.

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

/// Long enough for any of them on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a contender is watched waiting. Without exclusion it would have the lock long before.
const WATCHED: Duration = Duration::from_millis(200);

async fn keeps_its_word<S: System>(kind: Kind, start: impl Future<Output = anyhow::Result<S>>) {
    if !available(kind) {
        return;
    }
    let system = start.await.expect("it starts");
    let processes = system.processes();
    let runs = |process: &u32| std::fs::exists(format!("/proc/{process}")).expect("Linux has it");
    assert!(!processes.is_empty() && processes.iter().all(runs), "{processes:?}");
    timeout(PATIENCE, excludes(&system)).await.expect("it answers in time").expect("it works");
    drop(system);
    assert!(!processes.iter().any(runs), "{processes:?}");
}

async fn excludes(system: &dyn System) -> anyhow::Result<()> {
    let program = system.program().await?;
    let (mut first, mut second) = (program.contender().await?, program.contender().await?);
    // Twice: a lock that was given back can be taken again, by either.
    for name in ["peers/one", "peers/one"] {
        first.acquire(name).await?;
        // What is free is not in the way.
        second.acquire("peers/other").await?;
        second.release().await?;
        {
            let mut waiting = std::pin::pin!(second.acquire(name));
            anyhow::ensure!(timeout(WATCHED, &mut waiting).await.is_err(), "two have {name}");
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
            anyhow::ensure!(timeout(WATCHED, &mut waiting).await.is_err(), "a writer came in to a reader");
            second.release().await?;
            waiting.await?;
        }
        first.release().await?;
    } else {
        anyhow::ensure!(first.acquire_shared("peers/shared").await.is_err(), "it shares and does not say so");
    }
    Ok(())
}

#[tokio::test]
async fn etcd_keeps_its_word() {
    keeps_its_word(Kind::EtcdMember, Etcd::start()).await;
}

#[tokio::test]
async fn zookeeper_keeps_its_word() {
    keeps_its_word(Kind::ZookeeperMember, Zookeeper::start()).await;
}

#[tokio::test]
async fn redis_keeps_its_word() {
    keeps_its_word(Kind::RedisInMemory, Redis::start_in_memory()).await;
}

#[tokio::test]
async fn redis_that_syncs_keeps_its_word() {
    keeps_its_word(Kind::RedisSynced, Redis::start_synced()).await;
}

#[tokio::test]
async fn redlock_keeps_its_word() {
    keeps_its_word(Kind::RedisInMemory, Redlock::start()).await;
}

#[tokio::test]
async fn postgres_keeps_its_word() {
    keeps_its_word(Kind::Postgres, Postgres::start()).await;
}
