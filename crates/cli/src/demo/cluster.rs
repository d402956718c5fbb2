//! The three nodes of the demo: `fencepost serve` processes on free loopback ports, in a temporary directory.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fencepost::{Client, ClusterStatus, MemberRole};

use super::process::Process;

/// The smallest cluster that survives the loss of a node.
const NODES: usize = 3;
/// How long the nodes may take on a busy machine to form a cluster, or to elect a new leader.
const PATIENCE: Duration = Duration::from_secs(60);
/// Delay between two looks at the cluster.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Cluster {
    nodes: Vec<Node>,
    control: Client,
}

struct Node {
    name: String,
    /// Where clients connect.
    address: String,
    process: Process,
}

impl Cluster {
    /// Starts the nodes, and waits until all of them vote.
    pub(crate) async fn start(directory: &Path) -> Result<Cluster> {
        let first = Node::start(directory, 1, None).await?;
        let second = Node::start(directory, 2, Some(&first.address)).await?;
        let third = Node::start(directory, 3, Some(&first.address)).await?;
        let nodes = vec![first, second, third];
        let builder = nodes.iter().fold(Client::builder(), |builder, node| builder.endpoint(&node.address));
        let cluster = Cluster { nodes, control: builder.name("fencepost demo").connect().await? };
        let votes = |status: &ClusterStatus| {
            status.members.iter().filter(|member| member.role == MemberRole::Voter).count() == NODES
        };
        cluster.wait_for("three voters", |status| votes(status).then_some(())).await?;
        Ok(cluster)
    }

    /// The client addresses: `host:port,host:port,host:port`.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.nodes.iter().map(|node| node.address.as_str()).collect();
        addresses.join(",")
    }

    /// Waits until a running node leads. Returns its name.
    pub(crate) async fn leader(&self) -> Result<String> {
        self.wait_for("a leader", |status| {
            let leader = status.members.iter().find(|member| Some(member.node) == status.leader)?;
            self.nodes.iter().any(|node| node.name == leader.name).then(|| leader.name.clone())
        })
        .await
    }

    /// Kills a node with SIGKILL.
    pub(crate) fn kill(&mut self, name: &str) -> Result<()> {
        let index = self.nodes.iter().position(|node| node.name == name).context("there is no such node")?;
        self.nodes.remove(index).process.kill()
    }

    async fn wait_for<T>(&self, what: &str, find: impl Fn(&ClusterStatus) -> Option<T>) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            // Without a leader there may be no answer: look again.
            if let Some(found) = self.control.status().await.ok().as_ref().and_then(&find) {
                return Ok(found);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        bail!("waited a minute for {what}: check that this machine has free processor time and memory")
    }
}

impl Node {
    /// Starts a node, and waits until it listens. The first node founds the cluster, the others join it.
    async fn start(directory: &Path, number: usize, first: Option<&str>) -> Result<Node> {
        let name = format!("n{number}");
        let log = directory.join(format!("{name}.log"));
        let mut command = crate::own::own_command("serve")?;
        command.args(["--name", &name, "--log-level", "warn"]).arg("--data").arg(directory.join(&name));
        for listen in ["--listen-client", "--listen-http", "--listen-peer"] {
            command.args([listen, "127.0.0.1:0"]);
        }
        match first {
            None => command.arg("--new-cluster"),
            Some(first) => command.args(["--join", first]),
        };
        let mut process = Process::start(command.stderr(File::create(&log)?))?;
        let ready = process.line().await.with_context(|| not_started(&name, &log))?;
        let address = ready.split_once("clients on ").and_then(|(_, rest)| rest.split(',').next());
        let address = address.with_context(|| format!("{name} printed {ready:?} instead of its addresses"))?.to_owned();
        Ok(Node { name, address, process })
    }
}

fn not_started(name: &str, log: &Path) -> String {
    format!("{name} did not start: {}", std::fs::read_to_string(log).unwrap_or_default().trim_end())
}
