//! Real nodes: `fencepost serve` processes on loopback, each with its own directory and a log file that is printed when a test
//! fails. They are child processes of the test, and are ended by their own ids.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fencepost::{Client, ClusterStatus, MemberRole};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::background::Background;
use super::proxy::{Door, Link, Network};
use crate::patience::wait_until;

/// Prints a line that is seen even if the test passes: the test harness does not capture direct writes to standard error.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A cluster of processes.
pub(crate) struct Cluster {
    directory: Option<tempfile::TempDir>,
    nodes: Vec<Node>,
    network: Network,
    has_doors: bool,
    runtime: Background,
    control: Option<Client>,
}

struct Node {
    name: String,
    client_port: u16,
    http_port: u16,
    peer_port: u16,
    /// The proxy's port that forwards to `peer_port`.
    proxy_port: u16,
    /// The way of the clients to this node, if the cluster has doors.
    door: Option<Door>,
    child: Option<Child>,
    paused: bool,
    /// The size of its small disk in memory, if it has one. The disk's content is lost when the process ends.
    disk_bytes: Option<u64>,
}

/// The leader, and its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    pub(crate) node: usize,
    pub(crate) term: u64,
}

impl Cluster {
    /// Starts a cluster of `nodes` voters. With `disk_bytes`, each has a small disk in memory of that size.
    pub(crate) fn start_on(nodes: usize, disk_bytes: Option<u64>) -> Cluster {
        Cluster::start_with(nodes, disk_bytes, false)
    }

    /// Starts a cluster of `nodes` voters whose answers to clients can be cut.
    pub(crate) fn start_with_doors(nodes: usize) -> Cluster {
        Cluster::start_with(nodes, None, true)
    }

    fn start_with(nodes: usize, disk_bytes: Option<u64>, has_doors: bool) -> Cluster {
        let directory = tempfile::Builder::new().prefix("fencepost-real-").tempdir().expect("a temporary directory");
        let mut cluster = Cluster {
            directory: Some(directory),
            nodes: Vec::new(),
            network: Network::new(),
            has_doors,
            runtime: Background::start(),
            control: None,
        };
        for _ in 0..nodes {
            cluster.add(disk_bytes);
        }
        cluster
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.as_ref().expect("only `drop` takes it").path()
    }

    /// Starts one more node. The first founds the cluster, the others join it. Returns when the node is a voter.
    pub(crate) fn add(&mut self, disk_bytes: Option<u64>) -> usize {
        let node = self.nodes.len();
        // Another process may take a port before the node listens on it: try again with other ports.
        for attempt in 0.. {
            let [client_port, http_port, peer_port] = free_ports();
            let proxy_port = self.network.lead_to(node, peer_port);
            let door = self.has_doors.then(|| self.network.door_to(client_port));
            let name = format!("n{}", node + 1);
            self.nodes.truncate(node);
            self.nodes.push(Node {
                name,
                client_port,
                http_port,
                peer_port,
                proxy_port,
                door,
                child: None,
                paused: false,
                disk_bytes,
            });
            match self.launch(node, true) {
                Ok(()) => break,
                Err(log) => assert!(attempt < 5 && log.contains("in use"), "node {node} does not start: {log}"),
            }
        }
        let endpoints: Vec<String> = self.endpoints();
        let builder = endpoints.into_iter().fold(Client::builder(), |builder, endpoint| builder.endpoint(endpoint));
        let _inside = self.runtime.handle().enter();
        let control = builder.call_timeout(Duration::from_secs(2)).connect_timeout(Duration::from_secs(1));
        self.control = Some(control.name("control").connect_in_background().expect("valid addresses"));
        let wanted = self.name(node).to_owned();
        wait_until("the new node votes", || {
            let members = self.status()?.members;
            members.iter().any(|member| member.name == wanted && member.role == MemberRole::Voter).then_some(())
        });
        node
    }

    /// Starts the process and waits until it listens. `Err` is the log of a process that ended instead.
    fn launch(&mut self, index: usize, first: bool) -> Result<(), String> {
        let join = self.endpoints().into_iter().take(index).collect::<Vec<_>>().join(",");
        let log = self.log_path(index);
        let data = self.directory().join(&self.nodes[index].name);
        std::fs::create_dir_all(&data).expect("the test owns the directory");
        let before = std::fs::read(&log).unwrap_or_default().len();
        let file = File::options().create(true).append(true).open(&log).expect("the test owns the directory");
        let node = &mut self.nodes[index];
        let mut command = match node.disk_bytes {
            None => Command::new(env!("CARGO_BIN_EXE_fencepost")),
            // The process keeps its id: each program replaces itself with the next by exec.
            Some(bytes) => {
                let mount = format!("mount -t tmpfs -o size={bytes} tmpfs \"$1\" && shift && exec \"$@\"");
                let mut command = Command::new("unshare");
                command.args(["-rm", "sh", "-c", &mount, "sh"]).arg(&data).arg(env!("CARGO_BIN_EXE_fencepost"));
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FENCEPOST_") {
                command.env_remove(name);
            }
        }
        command.arg("serve").args(["--name", &node.name]).arg("--data").arg(&data);
        for (flag, port) in [
            ("--listen-client", node.client_port),
            ("--listen-http", node.http_port),
            ("--listen-peer", node.peer_port),
            ("--advertise-peer", node.proxy_port),
        ] {
            command.args([flag, &format!("127.0.0.1:{port}")]);
        }
        if let Some(door) = &node.door {
            command.args(["--advertise-client", &format!("127.0.0.1:{}", door.port)]);
        }
        match (first, index) {
            (true, 0) => drop(command.arg("--new-cluster")),
            (true, _) => drop(command.args(["--join", &join])),
            _ => {}
        }
        let err = file.try_clone().expect("files can be shared");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(err).spawn().expect("the binary is built");
        self.network.runs_as(index, child.id());
        (node.child, node.paused) = (Some(child), false);
        let ended = wait_until("the node listens or ends", || {
            let text = std::fs::read(&log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text[before.min(text.len())..]).into_owned();
            if text.contains("\nready: ") || text.starts_with("ready: ") {
                return Some(None);
            }
            let ended = self.nodes[index].child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            ended.map(|_| Some(text))
        });
        match ended {
            None => Ok(()),
            Some(text) => {
                self.nodes[index].child = None;
                Err(text)
            }
        }
    }

    fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    fn log_path(&self, node: usize) -> PathBuf {
        self.directory().join(format!("{}.log", self.nodes[node].name))
    }

    /// The log of a node.
    #[allow(dead_code, reason = "only silent.rs uses it")]
    pub(crate) fn log(&self, node: usize) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path(node)).unwrap_or_default()).into_owned()
    }

    /// The client addresses of all nodes, also of those that have ended.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.client_port)).collect()
    }

    /// The door of a node, in a cluster that has doors.
    pub(crate) fn door(&self, node: usize) -> &Door {
        self.nodes[node].door.as_ref().expect("the cluster was started with doors")
    }

    /// As [`Cluster::endpoints`], through the doors.
    pub(crate) fn doors(&self) -> Vec<String> {
        (0..self.nodes.len()).map(|node| format!("127.0.0.1:{}", self.door(node).port)).collect()
    }

    /// The nodes whose process runs, paused or not.
    pub(crate) fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].child.is_some()).collect()
    }

    fn signal(&self, node: usize, signal: Signal) {
        let child = self.nodes[node].child.as_ref().expect("it runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("ids are small"));
        nix::sys::signal::kill(pid, signal).expect("it is our child, and has not been waited for");
    }

    /// Sends SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self, node: usize) {
        self.signal(node, Signal::SIGKILL);
        self.reap(node);
    }

    /// Waits for the end. Returns the exit code, or `None` if a signal ended it.
    fn reap(&mut self, node: usize) -> Option<i32> {
        let child = self.nodes[node].child.as_mut().expect("it runs");
        let status = wait_until("the node has ended", || child.try_wait().expect("it is our child"));
        self.nodes[node].child = None;
        status.code()
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn end_gracefully(&mut self, node: usize) {
        self.signal(node, Signal::SIGTERM);
        assert_eq!(self.reap(node), Some(0), "a node that gets SIGTERM ends gracefully");
    }

    /// Sends SIGKILL to all nodes at the same moment.
    pub(crate) fn kill_all(&mut self) {
        let running = self.running();
        running.iter().for_each(|node| self.signal(*node, Signal::SIGKILL));
        for node in running {
            self.reap(node);
        }
    }

    pub(crate) fn restart(&mut self, node: usize) {
        if let Err(log) = self.launch(node, false) {
            panic!("{} does not start again: {log}", self.name(node));
        }
    }

    /// Starts a killed node after its disk was lost. `Err` is its log if it refuses to start.
    #[allow(dead_code, reason = "only efficiency.rs uses it")]
    pub(crate) fn restart_without_its_disk(&mut self, node: usize) -> Result<(), String> {
        let data = self.directory().join(&self.nodes[node].name);
        std::fs::remove_dir_all(data).expect("the test owns the directory");
        self.launch(node, false)
    }

    pub(crate) fn pause(&mut self, node: usize) {
        self.signal(node, Signal::SIGSTOP);
        self.nodes[node].paused = true;
    }

    pub(crate) fn resume(&mut self, node: usize) {
        self.signal(node, Signal::SIGCONT);
        self.nodes[node].paused = false;
    }

    pub(crate) fn isolate(&self, node: usize, state: Link) {
        self.network.isolate(node, 0..self.nodes.len(), state);
    }

    /// Sets the links from this node to the others.
    pub(crate) fn mute(&self, node: usize, state: Link) {
        (0..self.nodes.len()).filter(|other| *other != node).for_each(|other| self.network.set(node, other, state));
    }

    /// Sets the links from the others to this node.
    pub(crate) fn deafen(&self, node: usize, state: Link) {
        (0..self.nodes.len()).filter(|other| *other != node).for_each(|other| self.network.set(other, node, state));
    }

    pub(crate) fn heal(&self) {
        self.network.heal();
    }

    /// The path of this node's small disk, as seen from the test.
    pub(crate) fn disk(&self, node: usize) -> PathBuf {
        let child = self.nodes[node].child.as_ref().expect("it runs");
        let data = self.directory().join(&self.nodes[node].name);
        PathBuf::from(format!("/proc/{}/root{}", child.id(), data.display()))
    }

    /// A client that is not part of the history, on the runtime of the caller.
    pub(crate) fn client(&self, name: &str) -> Client {
        let builder = self.endpoints().into_iter().fold(Client::builder(), |builder, it| builder.endpoint(it));
        builder.name(name).connect_in_background().expect("valid addresses")
    }

    /// Runs requests with a client that is not part of the history.
    pub(crate) fn ask<T>(&self, ask: impl AsyncFnOnce(&Client) -> T) -> T {
        let control = self.control.as_ref().expect("there is a node");
        self.runtime.block_on(ask(control))
    }

    pub(crate) fn status(&self) -> Option<ClusterStatus> {
        self.ask(async |client| client.status().await.ok())
    }

    /// Waits for a running leader of a term after `after_term`.
    pub(crate) fn leader(&self, after_term: u64) -> Lead {
        wait_until("a node leads", || {
            let status = self.status()?;
            let leader = status.members.iter().find(|member| Some(member.node) == status.leader)?;
            let node = self.nodes.iter().position(|node| node.name == leader.name)?;
            let runs = self.nodes[node].child.is_some() && !self.nodes[node].paused;
            (runs && status.term > after_term).then_some(Lead { node, term: status.term })
        })
    }

    /// Transfers leadership to this node.
    pub(crate) fn let_lead(&self, node: usize) {
        let id = self.id(node);
        wait_until("the node leads", || {
            if self.status()?.leader == Some(id) {
                return Some(());
            }
            // It is refused during another change, and the answer may be lost. The status shows the outcome.
            let _ = self.ask(async |client| client.admin().reason("test").transfer_lead(Some(id)).await);
            None
        });
    }

    /// The node's id, from the list of members.
    pub(crate) fn id(&self, node: usize) -> u64 {
        wait_until("the node is a member", || {
            let members = self.status()?.members;
            members.iter().find(|member| member.name == self.nodes[node].name).map(|member| member.node)
        })
    }

    pub(crate) fn voters(&self) -> usize {
        let votes = |status: ClusterStatus| status.members.iter().filter(|it| it.role == MemberRole::Voter).count();
        self.status().map_or(0, votes)
    }

    /// I19: a client that knows only one node gets a lock, for each of these nodes. Returns how long all of them took together.
    pub(crate) fn every_node_serves(&self, nodes: &[usize]) -> Duration {
        let began = Instant::now();
        for node in nodes {
            let endpoint = format!("127.0.0.1:{}", self.nodes[*node].client_port);
            let served = self.runtime.block_on(async {
                let limit = Duration::from_secs(30);
                let client = Client::builder().endpoint(endpoint).connect_timeout(limit).call_timeout(limit);
                let client =
                    client.name("checks that the node serves").connect().await.map_err(|error| error.to_string())?;
                let lock = client.lock("every node serves").wait(limit).acquire().await;
                let released = lock.map_err(|error| error.to_string())?.release().await;
                released.map_err(|error| error.to_string())?;
                client.close().await.map_err(|error| error.to_string())
            });
            assert_eq!(served, Ok(()), "I19: {} does not serve", self.name(*node));
        }
        began.elapsed()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(child) = &mut node.child {
                // It may have ended by itself.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if !std::thread::panicking() {
            return;
        }
        for node in 0..self.nodes.len() {
            let text = std::fs::read(self.log_path(node)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            say(&format!("---- the last lines of {}", self.nodes[node].name));
            lines[lines.len().saturating_sub(40)..].iter().for_each(|line| say(line));
        }
        if let Some(directory) = self.directory.take() {
            say(&format!("---- logs, data and the store are kept in {}", directory.keep().display()));
        }
    }
}

/// Ports that are free, and outside of the range from which the system picks ports itself: a node that restarts needs its old
/// ports again.
fn free_ports() -> [u16; 3] {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let ports = 12_000..30_000;
    let start = (std::process::id() % 600) as u16 * 30;
    std::array::from_fn(|_| {
        wait_until("there is a free port", || {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let port = ports.start + (start + step) % (ports.end - ports.start);
            std::net::TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
        })
    })
}
