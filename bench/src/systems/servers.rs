//! Starts the servers of other projects, through the testbed. If a server is not installed, the error says what to install.

use anyhow::Context;
use fencepost_testbed::{Kind, Server};

/// Starts `count` servers that do not know each other.
pub(super) async fn independent(kind: Kind, count: usize) -> anyhow::Result<Vec<Server>> {
    started(kind, move || (0..count).map(|_| Server::start(kind)).collect()).await
}

/// Starts `members` servers as one cluster.
pub(super) async fn cluster(kind: Kind, members: usize) -> anyhow::Result<Vec<Server>> {
    started(kind, move || Server::start_cluster(kind, members)).await
}

/// The process ids of all servers.
pub(super) fn processes(servers: &[Server]) -> Vec<u32> {
    servers.iter().map(Server::process).collect()
}

async fn started(kind: Kind, start: impl FnOnce() -> Vec<Server> + Send + 'static) -> anyhow::Result<Vec<Server>> {
    if let Some(missing) = kind.missing() {
        anyhow::bail!(missing);
    }
    // It takes seconds. Meanwhile, other tasks run.
    tokio::task::spawn_blocking(start).await.with_context(|| format!("{kind:?} did not start; its output is above"))
}
