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

pub(crate) async fn start_cluster(place: &Place, size: usize) -> SocketAddr {
    let at = |name: &str, begin| Config { directory: Some(place.path().join(name)), ..config(name, begin) };
    let first = start_node(at("n1", Begin::Found));
    for node in 2..=size {
        start_node(at(&format!("n{node}"), Begin::Join(vec![first.to_string()])));
    }
    client::until("all vote", async || {
        let members = status_of(first).await.ok()?.members;
        let voters = members.iter().filter(|member| member.role == v1::MemberRole::Voter as i32);
        (voters.count() == size).then_some(())
    })
    .await;
    first
}

/// Processor time of this process so far, in microseconds.
pub(crate) fn processor_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this is Linux");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("a name in brackets").split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    ticks * 10_000
}

/// What one sync of 4 KiB takes on this disk, at the median, in a file whose blocks are there already, as the log's are.
pub(crate) fn disk_probe(place: &Place) -> Duration {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = std::fs::File::create(place.path().join("probe")).expect("a file");
    file.write_all(&vec![7; 4 << 20]).and_then(|()| file.sync_all()).expect("it is written");
    median((0..300).map(|at| {
        file.seek(SeekFrom::Start(at % 1_000 * 4_096)).expect("it is that long");
        let started = Instant::now();
        file.write_all(&[at as u8; 4_096]).and_then(|()| file.sync_data()).expect("it is synced");
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
