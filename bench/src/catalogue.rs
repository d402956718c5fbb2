//! Every system that can be compared: its id, which workloads it takes part in, and how it is started.

use std::sync::Arc;

use anyhow::Result;

use crate::system::System;
use crate::systems::etcd::Etcd;
use crate::systems::fencepost::{Fencepost, NodeProgram, Way};
use crate::systems::postgres::Postgres;
use crate::systems::redis::Redis;
use crate::systems::redlock::Redlock;
use crate::systems::zookeeper::Zookeeper;
use crate::workload::Workload;

/// Everything else is compared with this one.
pub const BASELINE: &str = "fencepost-3";
/// And in the efficiency tier with this one, which like a Redis is one process.
pub const EFFICIENCY_BASELINE: &str = "fencepost-1-efficiency";

/// One system, not started.
pub struct Entry {
    /// As it is named by `--systems`, and in `results.jsonl`.
    pub id: &'static str,
    /// The workloads that it takes part in.
    pub workloads: &'static [Workload],
    /// How many it makes sense to let wait for one lock: systems whose waiters ask again and again would only show that, and
    /// those that serve a few dozen hand-overs a second would take the whole hour.
    pub waiters_max: usize,
    start: Start,
}

enum Start {
    Fencepost(usize, Way),
    Etcd,
    Zookeeper,
    RedisInMemory,
    RedisSynced,
    Redlock,
    Postgres,
}

const LOCKS: &[Workload] =
    &[Workload::Uncontended, Workload::Programs, Workload::HotLock, Workload::Shared, Workload::OpenLoop];
const EFFICIENCY: &[Workload] = &[Workload::Efficiency, Workload::EfficiencyPrograms];
/// What has a queue, or a few dozen hand-overs a second.
const QUEUES: usize = 64;
/// Whose waiters ask again and again.
const POLLS: usize = 8;

/// In the order of the tables.
pub const ALL: &[Entry] = &[
    Entry { id: "fencepost-1", workloads: LOCKS, waiters_max: 10_000, start: Start::Fencepost(1, Way::Shared) },
    Entry { id: BASELINE, workloads: LOCKS, waiters_max: 10_000, start: Start::Fencepost(3, Way::Shared) },
    Entry { id: "fencepost-5", workloads: LOCKS, waiters_max: 10_000, start: Start::Fencepost(5, Way::Shared) },
    Entry {
        id: "fencepost-3-separate",
        workloads: &[Workload::Uncontended, Workload::HotLock],
        waiters_max: 1_000,
        start: Start::Fencepost(3, Way::Separate),
    },
    Entry {
        id: EFFICIENCY_BASELINE,
        workloads: EFFICIENCY,
        waiters_max: 1_000,
        start: Start::Fencepost(1, Way::Efficiency),
    },
    Entry {
        id: "fencepost-3-efficiency",
        workloads: EFFICIENCY,
        waiters_max: 1_000,
        start: Start::Fencepost(3, Way::Efficiency),
    },
    Entry { id: "etcd", workloads: LOCKS, waiters_max: QUEUES, start: Start::Etcd },
    Entry { id: "zookeeper", workloads: LOCKS, waiters_max: QUEUES, start: Start::Zookeeper },
    Entry {
        id: "redis",
        workloads: &[
            Workload::Uncontended,
            Workload::Programs,
            Workload::HotLock,
            Workload::Shared,
            Workload::OpenLoop,
            Workload::Efficiency,
            Workload::EfficiencyPrograms,
        ],
        waiters_max: POLLS,
        start: Start::RedisInMemory,
    },
    Entry { id: "redis-synced", workloads: LOCKS, waiters_max: POLLS, start: Start::RedisSynced },
    Entry { id: "redlock", workloads: LOCKS, waiters_max: POLLS, start: Start::Redlock },
    Entry { id: "postgres", workloads: LOCKS, waiters_max: QUEUES, start: Start::Postgres },
];

impl std::fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.id)
    }
}

impl Entry {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be had on this machine, with what to install.
    pub async fn start(&self, program: &NodeProgram) -> Result<Arc<dyn System>> {
        Ok(match self.start {
            Start::Fencepost(nodes, way) => Arc::new(Fencepost::start(nodes, way, program.clone()).await?),
            Start::Etcd => Arc::new(Etcd::start().await?),
            Start::Zookeeper => Arc::new(Zookeeper::start().await?),
            Start::RedisInMemory => Arc::new(Redis::start_in_memory().await?),
            Start::RedisSynced => Arc::new(Redis::start_synced().await?),
            Start::Redlock => Arc::new(Redlock::start().await?),
            Start::Postgres => Arc::new(Postgres::start().await?),
        })
    }
}

/// The system with this id.
///
/// # Errors
/// With all ids, if it is none of them.
pub fn find(id: &str) -> Result<&'static Entry, String> {
    ALL.iter().find(|entry| entry.id == id).ok_or_else(|| {
        let ids: Vec<&str> = ALL.iter().map(|entry| entry.id).collect();
        format!("there is no system {id:?}: write one of {}", ids.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_found_by_its_id_or_all_ids_are_said() {
        assert_eq!(find("fencepost-5").map(|entry| entry.id), Ok("fencepost-5"));
        let refused = find("chubby").err().unwrap_or_default();
        assert!(refused.contains("\"chubby\"") && refused.contains(EFFICIENCY_BASELINE), "{refused}");
        let mut ids: Vec<&str> = ALL.iter().map(|entry| entry.id).collect();
        ids.dedup();
        assert_eq!(ids.len(), ALL.len());
        assert!(find(BASELINE).is_ok());
    }
}
