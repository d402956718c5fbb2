//! Fencepost itself: `fencepost serve` processes on free ports of the loopback, each with its log in a temporary directory, and
//! the `fencepost` library as the client.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use fencepost::{Client, ClientBuilder, ClusterStatus, MemberRole, Session};
use fencepost_load::contender::{Contender, Taker};
use tempfile::TempDir;

use crate::metrics;
use crate::system::{Program, System};

/// The `fencepost` program whose nodes are measured.
#[derive(Clone, Debug)]
pub struct NodeProgram(PathBuf);

impl NodeProgram {
    /// Takes the program at this path.
    ///
    /// # Errors
    /// If it cannot be started, or is not `fencepost`.
    pub fn at(path: &Path) -> Result<NodeProgram> {
        let advice = "build it with `cargo build --release -p fencepost-cli`, and give its path";
        let asked = Command::new(path).arg("--version").output();
        let asked = asked.with_context(|| format!("cannot start {}: {advice}", path.display()))?;
        let version = String::from_utf8_lossy(&asked.stdout);
        if !asked.status.success() || !version.starts_with("fencepost ") {
            bail!("{} is not `fencepost`: {advice}", path.display());
        }
        Ok(NodeProgram(path.to_owned()))
    }

    /// `fencepost serve`, without its options. The node dies with this process. It gets neither the Ctrl-C nor the `FENCEPOST_*`
    /// settings of this shell.
    fn serve(&self) -> Command {
        let mut command = Command::new(&self.0);
        let settings = std::env::vars_os().map(|(name, _)| name);
        for setting in settings.filter(|name| name.to_string_lossy().starts_with("FENCEPOST_")) {
            command.env_remove(setting);
        }
        // The hidden command by which `fencepost run` ties a process to itself.
        command.arg("become-command").arg(std::process::id().to_string()).arg(&self.0).arg("serve").process_group(0);
        command
    }
}

/// The longest wait until the nodes are one cluster, or until a node with a large log is back.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Contenders that share one session: half of a session's limit of requests in flight, so that none waits for another's answer.
const CONTENDERS_PER_SESSION: usize = 250;

/// Running nodes. Dropping this ends them.
pub struct Cluster {
    nodes: Vec<Node>,
    program: NodeProgram,
    control: Client,
    /// The last field, because it must be dropped after the nodes have ended.
    directory: TempDir,
}

struct Node {
    name: String,
    client: SocketAddr,
    http: SocketAddr,
    peer: SocketAddr,
    process: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Node {
    /// Sends SIGKILL, by process id. Does nothing if the node has already ended.
    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts a node, and returns when it listens.
    fn start(program: &NodeProgram, directory: &Path, name: &str, how: &Begin) -> Result<Node> {
        let log = directory.join(format!("{name}.log"));
        let mut command = program.serve();
        command.args(["--name", name, "--log-level", "warn"]).arg("--data").arg(directory.join(name));
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let listen = match how {
            Begin::Again { client, http, peer } => [*client, *http, *peer],
            _ => [free; 3],
        };
        for (flag, address) in ["--listen-client", "--listen-http", "--listen-peer"].into_iter().zip(listen) {
            command.args([flag, &address.to_string()]);
        }
        match how {
            Begin::Found => drop(command.arg("--new-cluster")),
            Begin::Join(first) => drop(command.args(["--join", &first.to_string()])),
            Begin::Again { .. } => {}
        }
        let errors = File::options().create(true).append(true).open(&log)?;
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn()?;
        let mut ready = String::new();
        BufReader::new(process.stdout.take().expect("it is piped")).read_line(&mut ready)?;
        let address = |before: &str| {
            let after = ready.split_once(before)?.1;
            after.split([',', '\n']).next()?.parse().ok()
        };
        let addresses = (address("clients on "), address("http on "), address("peers on "));
        let (Some(client), Some(http), Some(peer)) = addresses else {
            let _ = process.kill();
            let _ = process.wait();
            let errors = std::fs::read_to_string(&log).unwrap_or_default();
            bail!("a node of the benchmark did not start: it printed {:?}. {}", ready.trim_end(), errors.trim_end());
        };
        Ok(Node { name: name.to_owned(), client, http, peer, process })
    }
}

enum Begin {
    Found,
    Join(SocketAddr),
    /// At the same addresses, with its existing log.
    Again {
        client: SocketAddr,
        http: SocketAddr,
        peer: SocketAddr,
    },
}

impl Cluster {
    /// Starts this number of nodes, and waits until all of them vote.
    ///
    /// # Errors
    /// If one of them does not start.
    pub async fn start(nodes: usize, program: NodeProgram) -> Result<Cluster> {
        let directory = tempfile::Builder::new()
            .prefix("fencepost-bench-")
            .tempdir()
            .context("cannot make a temporary directory: set TMPDIR to one where this user may write")?;
        let first = Node::start(&program, directory.path(), "n1", &Begin::Found)?;
        let mut all = vec![first];
        for number in 2..=nodes {
            let join = Begin::Join(all[0].client);
            all.push(Node::start(&program, directory.path(), &format!("n{number}"), &join)?);
        }
        let control = builder(&all).name("fencepost bench").connect().await?;
        let cluster = Cluster { nodes: all, program, control, directory };
        cluster.wait_until_all_vote().await?;
        Ok(cluster)
    }

    /// A builder of clients that know all nodes.
    pub fn builder(&self) -> ClientBuilder {
        builder(&self.nodes)
    }

    /// A client for status requests and administration.
    pub fn control(&self) -> &Client {
        &self.control
    }

    /// The process ids of the nodes.
    pub fn processes(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.process.id()).collect()
    }

    /// The process id of the leader.
    ///
    /// # Errors
    /// If there is no leader for two minutes.
    pub async fn leader_process(&self) -> Result<u32> {
        let leader = self.leader().await?;
        Ok(self.nodes[leader].process.id())
    }

    /// Kills the leader with SIGKILL. Returns the instant, and the node's index for [`Cluster::restart`].
    ///
    /// # Errors
    /// If there is no leader for two minutes.
    pub async fn kill_leader(&mut self) -> Result<(Instant, usize)> {
        let leader = self.leader().await?;
        let at = Instant::now();
        self.nodes[leader].kill();
        Ok((at, leader))
    }

    /// Starts a killed node again, and returns when it listens.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&mut self, node: usize) -> Result<()> {
        let Node { name, client, http, peer, .. } = &self.nodes[node];
        let how = Begin::Again { client: *client, http: *http, peer: *peer };
        let again = Node::start(&self.program, self.directory.path(), name, &how)?;
        self.nodes[node] = again;
        Ok(())
    }

    /// Waits until every node votes and has nearly the whole log.
    ///
    /// # Errors
    /// If that takes more than two minutes.
    pub async fn wait_until_all_vote(&self) -> Result<()> {
        self.wait_for("cluster in which all vote", |status| {
            let current = |at: Option<u64>| at.is_none_or(|at| at + 100 >= status.applied.index);
            let voters = status.members.iter().filter(|it| it.role == MemberRole::Voter && current(it.matched_index));
            (voters.count() == self.nodes.len()).then_some(())
        })
        .await
    }

    async fn leader(&self) -> Result<usize> {
        self.wait_for("leader", |status| {
            let leader = status.members.iter().find(|member| Some(member.node) == status.leader)?;
            self.nodes.iter().position(|node| node.name == leader.name)
        })
        .await
    }

    async fn wait_for<T>(&self, what: &str, find: impl Fn(&ClusterStatus) -> Option<T>) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            // Without a leader there may be no answer. Then look again.
            if let Some(found) = self.control.status().await.ok().as_ref().and_then(&find) {
                return Ok(found);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        bail!("there was no {what} for {} s: see whether this machine has processor time to spare", PATIENCE.as_secs())
    }

    /// Counters of the cluster: log entries, pushes, syncs, bytes and messages. A counter that no node has is left out.
    pub fn counts(&self) -> BTreeMap<String, f64> {
        let nodes: Vec<_> = self.nodes.iter().filter_map(|node| metrics::fetch(node.http).ok()).collect();
        let each = |name: &str| nodes.iter().filter_map(|node| node.get(name).copied()).collect::<Vec<f64>>();
        let mut counts = BTreeMap::new();
        // All nodes have the same log, and only the leader pushes. So the highest count is that of the cluster.
        for (name, counter) in [("entries", "fencepost_applied_index"), ("pushes", "fencepost_pushes_total")] {
            if let Some(most) = each(counter).into_iter().reduce(f64::max) {
                counts.insert(name.to_owned(), most);
            }
        }
        for (name, counter) in [
            ("syncs", "fencepost_log_syncs_total"),
            ("log_bytes", "fencepost_log_bytes_total"),
            ("messages", "fencepost_peer_messages_total"),
            ("message_bytes", "fencepost_peer_bytes_total"),
        ] {
            let counted = each(counter);
            if !counted.is_empty() {
                counts.insert(name.to_owned(), counted.iter().sum());
            }
        }
        counts
    }

    /// Where the nodes keep their logs.
    pub fn directory(&self) -> PathBuf {
        self.directory.path().to_owned()
    }
}

fn builder(nodes: &[Node]) -> ClientBuilder {
    nodes.iter().fold(Client::builder(), |builder, node| builder.endpoint(node.client.to_string()))
}

/// The tier of the locks, and how contenders share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Replicated locks; all contenders of the program share a connection.
    Shared,
    /// Replicated locks; each contender has a connection and a session of its own, as programs on many machines would.
    Separate,
    /// Locks in the leader's memory; all contenders share a connection.
    Efficiency,
}

/// A cluster as a system of the comparison.
pub struct Fencepost {
    name: String,
    how: &'static str,
    way: Way,
    cluster: Cluster,
}

/// A program that uses the `fencepost` library.
struct Library {
    way: Way,
    builder: ClientBuilder,
    client: Client,
    /// The session that the next contender joins, and its number of contenders.
    session: Mutex<Option<(Session, usize)>>,
}

impl Fencepost {
    /// Starts this number of nodes.
    ///
    /// # Errors
    /// If they do not start.
    pub async fn start(nodes: usize, way: Way, program: NodeProgram) -> Result<Fencepost> {
        let cluster = Cluster::start(nodes, program).await?;
        let (suffix, how) = match way {
            Way::Shared => (
                "",
                "the `fencepost` library, one connection for all contenders; every grant and release is committed by a majority and synced",
            ),
            Way::Separate => {
                (", a connection each", "the same, but each contender has a connection and a session of its own")
            }
            Way::Efficiency => (
                ", efficiency tier",
                "`.efficiency()` of the `fencepost` library, one connection; locks in the leader's memory, nothing is written",
            ),
        };
        let name = format!("Fencepost x{nodes}{suffix}");
        Ok(Fencepost { name, how, way, cluster })
    }
}

impl Library {
    fn session(&self) -> Result<Session> {
        let mut current = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((session, contenders)) = &mut *current
            && *contenders < CONTENDERS_PER_SESSION
            && session.is_alive()
        {
            *contenders += 1;
            return Ok(session.clone());
        }
        let session = self.client.session().open()?;
        *current = Some((session.clone(), 1));
        Ok(session)
    }
}

#[async_trait]
impl System for Fencepost {
    fn name(&self) -> &str {
        &self.name
    }

    fn how(&self) -> &str {
        self.how
    }

    async fn program(&self) -> Result<Box<dyn Program>> {
        let builder = self.cluster.builder().name("fencepost bench");
        let client = builder.clone().connect().await?;
        Ok(Box::new(Library { way: self.way, builder, client, session: Mutex::new(None) }))
    }

    fn processes(&self) -> Vec<u32> {
        self.cluster.processes()
    }

    fn can_share(&self) -> bool {
        true
    }

    async fn counts(&self) -> BTreeMap<String, f64> {
        self.cluster.counts()
    }
}

#[async_trait]
impl Program for Library {
    async fn contender(&self) -> Result<Box<dyn Contender>> {
        Ok(Box::new(match self.way {
            Way::Shared => Taker::in_session(self.session()?),
            Way::Separate => Taker::in_session(self.builder.clone().connect().await?.session().open()?),
            Way::Efficiency => Taker::of_efficiency(self.client.clone()),
        }))
    }
}
