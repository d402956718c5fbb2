//! The network between the nodes: every node advertises a port of this process, which passes the data on, or not.
//!
//! A link is directed: messages from node 1 to node 2 go over a connection that node 1 opened. `/proc` tells which node opened a
//! connection: its source port belongs to a socket, and the socket to one of our child processes.
//!
//! A [`Door`] is the same for the clients of one node. It can hold answers back while requests still arrive.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::background::Background;
use crate::patience::wait_until;

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Open,
    /// Nothing passes, and neither side gets an error. The data arrives when the link is open again, as with lost packets.
    Frozen,
    /// Connections end at once.
    Closed,
}

/// The sending node and the receiving node.
type Pair = (usize, usize);

/// All links.
pub(crate) struct Network {
    runtime: Background,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    links: Mutex<BTreeMap<Pair, watch::Sender<Link>>>,
    /// The process id of each node.
    processes: Mutex<BTreeMap<usize, u32>>,
}

impl Network {
    pub(crate) fn new() -> Network {
        Network { runtime: Background::start(), shared: Arc::default() }
    }

    /// Opens a port that forwards to this node.
    pub(crate) fn lead_to(&self, node: usize, peer_port: u16) -> u16 {
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("there are free ports");
        let port = listener.local_addr().expect("a listener has an address").port();
        let shared = self.shared.clone();
        self.runtime.handle().spawn(async move {
            while let Ok((stream, from)) = listener.accept().await {
                let shared = shared.clone();
                tokio::spawn(async move {
                    // A connection without an owner was already closed by its node.
                    if let Some(owner) = shared.owner(from.port()) {
                        let state = shared.link((owner, node));
                        pass_on(stream, peer_port, state).await;
                    }
                });
            }
        });
        port
    }

    /// Opens a port for the clients of a node.
    pub(crate) fn door_to(&self, client_port: u16) -> Door {
        let listener = self.runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("there are free ports");
        let port = listener.local_addr().expect("a listener has an address").port();
        let answers = Arc::new(Answers::default());
        let shared = answers.clone();
        self.runtime.handle().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answers = shared.clone();
                tokio::spawn(async move {
                    answers.open.fetch_add(1, SeqCst);
                    pass_answers(stream, client_port, &answers).await;
                    answers.open.fetch_sub(1, SeqCst);
                });
            }
        });
        Door { port, answers }
    }

    pub(crate) fn runs_as(&self, node: usize, process: u32) {
        self.shared.processes.lock().unwrap().insert(node, process);
    }

    pub(crate) fn set(&self, from: usize, to: usize, state: Link) {
        self.shared.link((from, to));
        if let Some(link) = self.shared.links.lock().unwrap().get(&(from, to)) {
            link.send_replace(state);
        }
    }

    /// Sets the links between this node and each of the others, in both directions.
    pub(crate) fn isolate(&self, node: usize, others: impl Iterator<Item = usize>, state: Link) {
        for other in others.filter(|other| *other != node) {
            self.set(node, other, state);
            self.set(other, node, state);
        }
    }

    pub(crate) fn heal(&self) {
        for link in self.shared.links.lock().unwrap().values() {
            link.send_replace(Link::Open);
        }
    }
}

impl Shared {
    fn link(&self, pair: Pair) -> watch::Receiver<Link> {
        self.links.lock().unwrap().entry(pair).or_insert_with(|| watch::Sender::new(Link::Open)).subscribe()
    }

    /// The node whose socket has this loopback port.
    fn owner(&self, port: u16) -> Option<usize> {
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let ours = format!("0100007F:{port:04X}");
        let socket = table.lines().find_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            (columns.get(1) == Some(&ours.as_str())).then(|| format!("socket:[{}]", columns.get(9).unwrap_or(&"")))
        })?;
        let processes = self.processes.lock().unwrap().clone();
        processes.into_iter().find_map(|(node, process)| {
            let files = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?;
            let is_it = |file: std::fs::DirEntry| {
                std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == socket.as_str())
            };
            files.flatten().any(is_it).then_some(node)
        })
    }
}

async fn pass_on(stream: TcpStream, peer_port: u16, mut state: watch::Receiver<Link>) {
    // A connect to a frozen link waits, as with a lost packet.
    if state.wait_for(|link| *link != Link::Frozen).await.is_err() || *state.borrow() == Link::Closed {
        return;
    }
    let Ok(upstream) = TcpStream::connect(("127.0.0.1", peer_port)).await else { return };
    // On failure the messages are only a little later.
    let _ = (stream.set_nodelay(true), upstream.set_nodelay(true));
    let ((from_peer, to_peer), (from_node, to_node)) = (stream.into_split(), upstream.into_split());
    tokio::select! {
        () = copy(from_peer, to_node, state.clone()) => {}
        () = copy(from_node, to_peer, state) => {}
    }
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut state: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = state.wait_for(|link| *link == Link::Closed) => return,
        };
        let Ok(count @ 1..) = read else { return };
        match state.wait_for(|link| *link != Link::Frozen).await {
            Ok(link) if *link == Link::Open => {}
            _ => return,
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// The port at which clients reach one node.
pub(crate) struct Door {
    pub(crate) port: u16,
    answers: Arc<Answers>,
}

struct Answers {
    link: watch::Sender<Link>,
    /// How often bytes from the node had to wait because the link is frozen. Only counts up.
    held_back: AtomicUsize,
    /// Open connections.
    open: AtomicUsize,
}

impl Default for Answers {
    fn default() -> Answers {
        Answers { link: watch::Sender::new(Link::Open), held_back: AtomicUsize::new(0), open: AtomicUsize::new(0) }
    }
}

impl Door {
    /// Loses an answer: requests arrive, at least one answer is held back, then all connections end. `give_up` ends the wait for an
    /// answer. Returns whether an answer was lost.
    #[cfg(feature = "stores")]
    pub(crate) fn cut_answers(&self, give_up: impl Fn() -> bool) -> bool {
        let before = self.answers.held_back.load(SeqCst);
        self.hold_answers_back();
        let lost = wait_until("an answer is held back", || {
            let lost = self.answers.held_back.load(SeqCst) > before;
            (lost || give_up()).then_some(lost)
        });
        self.close();
        self.open();
        lost
    }

    /// Requests still arrive, and no answer comes back.
    pub(crate) fn hold_answers_back(&self) {
        self.answers.link.send_replace(Link::Frozen);
    }

    /// Ends all connections, with what was held back. New ones end at once.
    pub(crate) fn close(&self) {
        self.answers.link.send_replace(Link::Closed);
        wait_until("the clients are cut off", || (self.answers.open.load(SeqCst) == 0).then_some(()));
    }

    pub(crate) fn open(&self) {
        self.answers.link.send_replace(Link::Open);
    }
}

async fn pass_answers(stream: TcpStream, client_port: u16, answers: &Answers) {
    let mut state = answers.link.subscribe();
    if *state.borrow_and_update() == Link::Closed {
        return;
    }
    // The node may be dead.
    let Ok(upstream) = TcpStream::connect(("127.0.0.1", client_port)).await else { return };
    // On failure the messages are only a little later.
    let _ = (stream.set_nodelay(true), upstream.set_nodelay(true));
    let ((from_client, mut to_client), (mut from_node, to_node)) = (stream.into_split(), upstream.into_split());
    let always_open = watch::Sender::new(Link::Open);
    let answering = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = tokio::select! {
                read = from_node.read(&mut buffer) => read,
                _ = state.wait_for(|link| *link == Link::Closed) => return,
            };
            let Ok(count @ 1..) = read else { return };
            if *state.borrow() == Link::Frozen {
                answers.held_back.fetch_add(1, SeqCst);
            }
            match state.wait_for(|link| *link != Link::Frozen).await {
                Ok(link) if *link == Link::Open => {}
                _ => return,
            }
            if to_client.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = copy(from_client, to_node, always_open.subscribe()) => {}
        () = answering => {}
    }
}
