//! Starting the servers of others. What is missing is an error that says what to install, for whoever asked for the benchmark.

use anyhow::Context;
use fencepost_testbed::{Kind, Server};

/// So many servers that do not know each other.
pub(super) async fn independent(kind: Kind, count: usize) -> anyhow::Result<Vec<Server>> {
    started(kind, move || (0..count).map(|_| Server::start(kind)).collect()).await
}

/// So many servers that are one system.
pub(super) async fn cluster(kind: Kind, members: usize) -> anyhow::Result<Vec<Server>> {
    started(kind, move || Server::start_cluster(kind, members)).await
}

/// The processes of all.
pub(super) fn processes(servers: &[Server]) -> Vec<u32> {
    servers.iter().map(Server::process).collect()
}

async fn started(kind: Kind, start: impl FnOnce() -> Vec<Server> + Send + 'static) -> anyhow::Result<Vec<Server>> {
    if let Some(missing) = kind.missing() {
        anyhow::bail!(missing);
    }
    // It takes seconds, in which the program goes on.
    tokio::task::spawn_blocking(start)
        .await
        .with_context(|| format!("{kind:?} did not start; what it said stands above"))
}
