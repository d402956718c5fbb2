//! Nodes on threads of their own in the process of a benchmark, and what the machine does meanwhile.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fencepost_server::{Begin, Config, Server};
use fencepost_wire::v1;

use crate::client::{self, Place, config, status_of};

/// Runs a node on a thread of its own, for as long as the process lives.
pub(crate) fn start_node(config: Config) -> SocketAddr {
    let (say, hear) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name(config.name.clone())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let server = Server::start(config).await.expect("the node starts");
                say.send(server.client_address()).expect("somebody listens");
                server.run_until(std::future::pending()).await.expect("the node goes on");
            });
        })
        .expect("a thread");
    hear.recv().expect("the node starts")
}

/// Processes of their own for as long as this stands: `fencepost serve`, if a binary of it is named by `FENCEPOST_BINARY`.
#[derive(Default)]
pub(crate) struct Processes(Vec<std::process::Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // Whatever has ended by itself need not be ended.
            let _ = process.kill().and_then(|()| process.wait());
        }
    }
}

impl Processes {
    /// Processor time of all of them so far, in microseconds.
    pub(crate) fn processor_us(&self) -> u64 {
        self.0.iter().map(|process| processor_us(&process.id().to_string())).sum()
    }

    fn start(&mut self, binary: &str, place: &Place, name: &str, join: Option<SocketAddr>) -> SocketAddr {
        use std::net::TcpListener;
        // Free a moment ago: good enough for a benchmark.
        let ports: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let addresses: Vec<SocketAddr> = ports.iter().map(|port| port.local_addr().expect("it listens")).collect();
        drop(ports);
        let mut command = std::process::Command::new(binary);
        command.arg("serve").args(["--name", name]).arg("--data").arg(place.path().join(name));
        for (flag, address) in ["--listen-client", "--listen-http", "--listen-peer"].into_iter().zip(&addresses) {
            command.args([flag, &address.to_string()]);
        }
        match join {
            None => command.arg("--new-cluster"),
            Some(first) => command.args(["--join", &first.to_string()]),
        };
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        self.0.push(command.spawn().expect("FENCEPOST_BINARY can be run"));
        addresses[0]
    }
}

/// So many nodes: each a process, if there is a binary, else a thread.
pub(crate) async fn start_cluster(place: &Place, size: usize) -> (SocketAddr, Processes) {
    let mut processes = Processes::default();
    if let Ok(binary) = std::env::var("FENCEPOST_BINARY") {
        let first = processes.start(&binary, place, "n1", None);
        client::until("the first node serves", async || status_of(first).await.ok()).await;
        for node in 2..=size {
            processes.start(&binary, place, &format!("n{node}"), Some(first));
        }
        wait_until_all_vote(first, size).await;
        return (first, processes);
    }
    let at = |name: &str, begin| Config { directory: Some(place.path().join(name)), ..config(name, begin) };
    let first = start_node(at("n1", Begin::Found));
    for node in 2..=size {
        start_node(at(&format!("n{node}"), Begin::Join(vec![first.to_string()])));
    }
    wait_until_all_vote(first, size).await;
    (first, processes)
}

async fn wait_until_all_vote(first: SocketAddr, size: usize) {
    client::until("all vote", async || {
        let members = status_of(first).await.ok()?.members;
        let voters = members.iter().filter(|member| member.role == v1::MemberRole::Voter as i32);
        (voters.count() == size).then_some(())
    })
    .await;
}

/// Processor time of a process so far, in microseconds: by its id, or `self`.
pub(crate) fn processor_us(process: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("this is Linux");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("a name in brackets").split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    ticks * 10_000
}

/// What one sync of 4 KiB takes on this disk, at the median.
pub(crate) fn disk_probe(place: &Place) -> Duration {
    let mut file = ProbeFile::new(place, "probe");
    median((0..300).map(|_| {
        let started = Instant::now();
        file.sync();
        started.elapsed()
    }))
}

/// What a round trip of one byte takes over loopback, at the median, between two threads.
pub(crate) fn loopback_probe() -> Duration {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut near = std::net::TcpStream::connect(listener.local_addr().expect("it listens")).expect("it is there");
    let (mut far, _) = listener.accept().expect("it was dialled");
    near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).expect("a socket of ours");
    std::thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).and_then(|()| far.write_all(&byte)).is_ok() {}
    });
    median((0..1_000).map(|_| {
        let (started, mut byte) = (Instant::now(), [7]);
        near.write_all(&byte).and_then(|()| near.read_exact(&mut byte)).expect("it is echoed");
        started.elapsed()
    }))
}

/// What one commit of so many nodes takes on this machine when nothing is computed, at the median: a request over loopback, one
/// to each follower, a sync of 4 KiB at every node at the same time, the answers that make a majority, and one to the client.
/// Blocking sockets, one thread a node: the least that these hops and syncs can cost here.
pub(crate) fn commit_probe(place: &Place, nodes: usize) -> Duration {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let near = TcpStream::connect(listener.local_addr().expect("it listens")).expect("it is there");
        let (far, _) = listener.accept().expect("it was dialled");
        near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).expect("a socket of ours");
        (near, far)
    }
    let (mut near, mut client) = pair();
    let mut followers = Vec::new();
    for node in 1..nodes {
        let (leader, mut follower) = pair();
        let mut disk = ProbeFile::new(place, &format!("commit-{node}"));
        followers.push(leader);
        std::thread::spawn(move || {
            let mut message = [0; 100];
            while follower.read_exact(&mut message).is_ok() {
                disk.sync();
                if follower.write_all(&message).is_err() {
                    return;
                }
            }
        });
    }
    let mut disk = ProbeFile::new(place, "commit-0");
    std::thread::spawn(move || {
        let mut message = [0; 100];
        while client.read_exact(&mut message).is_ok() {
            for follower in &mut followers {
                follower.write_all(&message).expect("it is there");
            }
            disk.sync();
            // The leader itself is the other half of the majority. The rest is read after the client has its answer.
            let majority = nodes / 2;
            for follower in &mut followers[..majority] {
                follower.read_exact(&mut message).expect("it answers");
            }
            client.write_all(&message).expect("it is there");
            for follower in &mut followers[majority..] {
                follower.read_exact(&mut message).expect("it answers");
            }
        }
    });
    median((0..1_000).map(|_| {
        let (started, mut message) = (Instant::now(), [7; 100]);
        near.write_all(&message).and_then(|()| near.read_exact(&mut message)).expect("it is answered");
        started.elapsed()
    }))
}

/// A file whose blocks are there already, as the log's are.
struct ProbeFile {
    file: std::fs::File,
    written: u64,
}

impl ProbeFile {
    fn new(place: &Place, name: &str) -> ProbeFile {
        use std::io::Write;
        let mut file = std::fs::File::create(place.path().join(name)).expect("a file");
        file.write_all(&vec![7; 4 << 20]).and_then(|()| file.sync_all()).expect("it is written");
        ProbeFile { file, written: 0 }
    }

    /// Writes the next 4 KiB, and syncs.
    fn sync(&mut self) {
        use std::io::{Seek, SeekFrom, Write};
        self.file.seek(SeekFrom::Start(self.written % 1_000 * 4_096)).expect("it is that long");
        self.file.write_all(&[self.written as u8; 4_096]).and_then(|()| self.file.sync_data()).expect("it is synced");
        self.written += 1;
    }
}

fn median(took: impl Iterator<Item = Duration>) -> Duration {
    let mut took: Vec<Duration> = took.collect();
    took.sort();
    took[took.len() / 2]
}

/// Processor time of the threads with this name so far.
pub(crate) fn processor_of(name: &str) -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("this is Linux");
    let ticks =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok()).filter_map(|stat| {
            let (before, after) = stat.split_once(") ")?;
            before.ends_with(&format!("({name}")).then_some(())?;
            let fields: Vec<&str> = after.split(' ').collect();
            Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
        });
    Duration::from_millis(ticks.sum::<u64>() * 10)
}
