//! What a workload needs of a lock system: contenders that take and release locks, and the system's processes, for their CPU time.

use std::collections::BTreeMap;

use async_trait::async_trait;
use fencepost_load::contender::Contender;

/// A lock system that runs on this machine, as its users would run it.
///
/// Dropping it ends all processes that it started.
#[async_trait]
pub trait System: Send + Sync {
    /// Its name in tables: `etcd x3`, for example.
    fn name(&self) -> &str;

    /// How its locks are taken here, in one sentence for the report: the client, the calls, what is synced.
    fn how(&self) -> &str;

    /// A program that uses this system, through the client that its users use.
    async fn program(&self) -> anyhow::Result<Box<dyn Program>>;

    /// The processes of all its servers, for their processor time.
    fn processes(&self) -> Vec<u32>;

    /// The most contenders at the same time. A server has a limit if each contender needs a connection of its own.
    fn contenders_max(&self) -> usize {
        usize::MAX
    }

    /// Whether it has shared locks.
    fn can_share(&self) -> bool {
        false
    }

    /// Its own counters by name, as totals so far. Only Fencepost has any here.
    async fn counts(&self) -> BTreeMap<String, f64> {
        BTreeMap::new()
    }
}

/// A program with its connection. Its contenders share the connection if the system's client allows that.
#[async_trait]
pub trait Program: Send + Sync {
    /// Adds a contender.
    async fn contender(&self) -> anyhow::Result<Box<dyn Contender>>;
}
