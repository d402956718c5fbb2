//! Every system that can be compared: its id, its workloads, and how it is started. The systems themselves are in `systems/`.

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

/// The system that all others are compared with.
pub const BASELINE: &str = "fencepost-3";
/// The same for the efficiency tier. It is one process, as a Redis is.
pub const EFFICIENCY_BASELINE: &str = "fencepost-1-efficiency";

/// A system that can be started.
pub struct Entry {
    /// Its name in `--systems` and in `results.jsonl`.
    pub id: &'static str,
    /// The workloads that it takes part in.
    pub workloads: &'static [Workload],
    /// The most contenders for one lock. If waiters poll, more of them would only measure the polling. If a system has a few dozen
    /// hand-overs per second, more contenders would take too long.
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
/// `waiters_max` of other systems whose waiters queue up.
const QUEUES: usize = 64;
/// `waiters_max` of systems whose waiters poll.
const POLLS: usize = 8;

/// All systems, in the order of the tables.
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
    /// Starts the system.
    ///
    /// # Errors
    /// If it is not installed, or does not start. The message says what to install.
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
/// If there is no such id. The message lists all ids.
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
    fn a_system_is_found_by_its_id_and_an_unknown_id_lists_all_ids() {
        assert_eq!(find("fencepost-5").map(|entry| entry.id), Ok("fencepost-5"));
        let refused = find("chubby").err().unwrap_or_default();
        assert!(refused.contains("\"chubby\"") && refused.contains(EFFICIENCY_BASELINE), "{refused}");
        let mut ids: Vec<&str> = ALL.iter().map(|entry| entry.id).collect();
        ids.dedup();
        assert_eq!(ids.len(), ALL.len());
        assert!(find(BASELINE).is_ok());
    }
}
