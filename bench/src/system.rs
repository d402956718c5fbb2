//! What a workload needs of a lock system: contenders that take locks and give them back, and the processes that it costs.

use std::collections::BTreeMap;

use async_trait::async_trait;
use fencepost_load::contender::Contender;

/// A lock system that runs on this machine, as its users would run it.
///
/// Whatever it started is gone when it is dropped.
#[async_trait]
pub trait System: Send + Sync {
    /// As it stands in tables: `etcd x3`, say.
    fn name(&self) -> &str;

    /// How its locks are taken here, in one sentence for the report: the client, the calls, what is synced.
    fn how(&self) -> &str;

    /// A program that uses this system, through the client that its users use.
    async fn program(&self) -> anyhow::Result<Box<dyn Program>>;

    /// The processes of all its servers, for their processor time.
    fn processes(&self) -> Vec<u32>;

    /// How many contenders it can have at a time: where each needs a connection of its own, the server has a limit.
    fn contenders_max(&self) -> usize {
        usize::MAX
    }

    /// What it can do beyond exclusive locks.
    fn can_share(&self) -> bool {
        false
    }

    /// What it counts of itself, in total so far, by name. Nobody but Fencepost is asked how it works inside.
    async fn counts(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }
}

/// A program with its connection, which its contenders share as far as the client of the system does that.
#[async_trait]
pub trait Program: Send + Sync {
    /// One more contender.
    async fn contender(&self) -> anyhow::Result<Box<dyn Contender>>;
}
