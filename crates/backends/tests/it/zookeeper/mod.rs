//! Tests that are specific to ZooKeeper: its queues of nodes, its sessions, and messages that are lost.
//!
//! The conformance suite (`tests/conformance`) covers what all systems have in common.

mod proxy;

use std::time::Duration;

use fencepost::{Lost, Name, Refused, clock};
use fencepost_backends::zookeeper::Zookeeper;
use fencepost_backends::{Ask, Backend, Client, Error, Mode};
use fencepost_testbed::{Kind, Server, own, shared};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zookeeper_client as zk;

use crate::zookeeper::proxy::{CREATE, DELETE, Loss, Proxy};

/// Long enough for anything on a busy machine, and shorter than [`TTL_LONG`]: within it, no session expires.
const PATIENCE: Duration = Duration::from_secs(40);
/// The longest session timeout that the server allows.
const TTL_LONG: Duration = Duration::from_secs(60);
/// For tests that wait for a renewal.
const TTL_SHORT: Duration = Duration::from_secs(4);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

async fn client(port: u16, ttl: Duration) -> Client {
    let address = format!("zookeeper://127.0.0.1:{port}");
    Client::builder().rule("", &address, None).ttl(ttl).connect().await.expect("the server is up")
}

/// Observes the queue of a name, with its own session.
struct Onlooker {
    zookeeper: zk::Client,
    parent: String,
    port: u16,
}

impl Onlooker {
    /// `node` is the name, if it can be the name of a node.
    async fn at(server: &Server, node: &str) -> Onlooker {
        let zookeeper = zk::Client::connect(&format!("127.0.0.1:{}", server.port())).await.expect("the server is up");
        Onlooker { zookeeper, parent: format!("/fencepost-locks/{node}"), port: server.port() }
    }

    /// Creates the node of the name so that it stays when the queue is empty.
    async fn keep_parent(&self) {
        let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
        self.zookeeper.mkdir(&self.parent, &persistent).await.expect("it is created");
    }

    /// Waits until the queue has `count` nodes, and returns them in the order in which they came.
    async fn queue_of(&self, count: usize) -> Vec<String> {
        let queue = async {
            loop {
                match self.zookeeper.list_and_watch_children(&self.parent).await {
                    Ok((children, _)) if children.len() == count => return children,
                    Ok((_, watcher)) => drop(watcher.changed().await),
                    Err(zk::Error::NoNode) if count == 0 => return Vec::new(),
                    Err(zk::Error::NoNode) => {
                        let (stat, watcher) =
                            self.zookeeper.check_and_watch_stat(&self.parent).await.expect("an answer");
                        if stat.is_none() {
                            watcher.changed().await;
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let mut children = soon("the queue is as long as expected", queue).await;
        children.sort_by_key(|child| child.rsplit('-').next().map(str::to_owned));
        children
    }

    async fn delete(&self, child: &str) {
        self.zookeeper.delete(&format!("{}/{child}", self.parent), None).await.expect("it is there");
    }

    async fn czxid(&self, child: &str) -> u64 {
        let stat = self.zookeeper.check_stat(&format!("{}/{child}", self.parent)).await.expect("an answer");
        stat.expect("it is there").czxid.try_into().expect("positive")
    }

    /// How many sessions watch each of these children.
    async fn watchers_of(&self, children: &[String]) -> Vec<usize> {
        let mut server = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the server is up");
        server.write_all(b"wchp").await.expect("it listens");
        let mut listing = String::new();
        server.read_to_string(&mut listing).await.expect("it answers");
        let watchers = |child: &String| {
            let path = format!("{}/{child}", self.parent);
            let lines = listing.lines().skip_while(|line| *line != path).skip(1);
            lines.take_while(|line| line.starts_with('\t')).count()
        };
        children.iter().map(watchers).collect()
    }
}

/// Waits for a lock, reports its number and token when it has the lock, and releases it.
fn waiter(client: Client, name: &str, number: u32, order: mpsc::UnboundedSender<(u32, u64)>) -> JoinHandle<()> {
    let name = name.to_owned();
    tokio::spawn(async move {
        let guard = client.lock(name).wait(PATIENCE).acquire().await.expect("its turn comes");
        order.send((number, guard.token().get())).expect("the test listens");
        guard.release().await.expect("it was held");
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_granted_in_order_and_each_watches_only_the_node_before_it() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let (name, port) = ("in-order", server.port());
    let onlooker = Onlooker::at(server, name).await;
    let guard = client(port, TTL_LONG).await.lock(name).acquire().await.expect("it is free");
    let (sender, mut order) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for number in 0..3 {
        waiters.push(waiter(client(port, TTL_LONG).await, name, number, sender.clone()));
        onlooker.queue_of(2 + number as usize).await;
    }
    let queue = onlooker.queue_of(4).await;
    let watched = async {
        // The holder watches its own node, so the first node has two watchers.
        while onlooker.watchers_of(&queue).await != [2, 1, 1, 0] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("each watches the node before it", watched).await;
    let mut last = guard.token().get();
    assert_eq!(last, onlooker.czxid(&queue[0]).await, "the token is the transaction that created the node");
    guard.release().await.expect("it was held");
    for expected in 0..3 {
        let (number, token) = soon("the next is granted", order.recv()).await.expect("a waiter is left");
        assert_eq!(number, expected);
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    onlooker.queue_of(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_leaves_in_the_middle_does_not_delay_the_others() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let (name, port) = ("in-the-middle", server.port());
    let onlooker = Onlooker::at(server, name).await;
    let guard = client(port, TTL_LONG).await.lock(name).acquire().await.expect("it is free");
    let (sender, mut order) = mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    // The waiters share a session, and so its watches.
    let waiting = client(port, TTL_LONG).await;
    for number in 0..3 {
        waiters.push(waiter(waiting.clone(), name, number, sender.clone()));
        onlooker.queue_of(2 + number as usize).await;
    }
    waiters[1].abort();
    onlooker.queue_of(3).await;
    guard.release().await.expect("it was held");
    for expected in [0, 2] {
        let (number, _) = soon("the next is granted", order.recv()).await.expect("a waiter is left");
        assert_eq!(number, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_and_do_not_pass_a_waiting_writer() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let (name, port) = ("readers", server.port());
    let onlooker = Onlooker::at(server, name).await;
    let client = client(port, TTL_LONG).await;
    let one = client.lock(name).shared().acquire().await.expect("it is free");
    let two = client.lock(name).shared().acquire().await.expect("readers share");
    let (sender, mut order) = mpsc::unbounded_channel();
    waiter(client.clone(), name, 0, sender.clone());
    onlooker.queue_of(3).await;
    let (reader, sender) = (client.lock(name).shared().wait(PATIENCE), sender);
    let last = tokio::spawn(async move {
        let guard = reader.acquire().await.expect("its turn comes");
        sender.send((1, guard.token().get())).expect("the test listens");
        guard
    });
    onlooker.queue_of(4).await;
    assert!(client.lock(name).shared().try_acquire().await.expect("an answer").is_none(), "a writer waits before it");
    // In this order, the writer must read the queue again.
    two.release().await.expect("it was held");
    one.release().await.expect("it was held");
    for expected in 0..2 {
        assert_eq!(soon("the next is granted", order.recv()).await.expect("a waiter is left").0, expected);
    }
    last.await.expect("no panic").release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_only_tries_does_not_change_the_queue() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let (name, port) = ("tries", server.port());
    let onlooker = Onlooker::at(server, name).await;
    let guard = client(port, TTL_LONG).await.lock(name).acquire().await.expect("it is free");
    let other = client(port, TTL_LONG).await;
    assert!(other.lock(name).try_acquire().await.expect("an answer").is_none());
    onlooker.queue_of(1).await;
    guard.release().await.expect("it was held");
    let guard = other.lock(name).try_acquire().await.expect("an answer").expect("it is free");
    guard.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_notices_at_once_that_its_session_ended_and_the_next_lock_has_a_new_session() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let name = "session-of-a-holder";
    let proxy = Proxy::to(server.port()).await;
    let client = client(proxy.port, TTL_LONG).await;
    let guard = client.lock(name).acquire().await.expect("it is free");
    let token = guard.token().get();
    proxy.end_session().await;
    assert_eq!(soon("it notices the loss", guard.lost()).await, Lost::Gone);
    let refused = guard.release().await.expect_err("it was lost");
    assert_eq!(refused.lost(), Some(Lost::Gone));
    let again = soon("a new session", client.lock(name).acquire()).await.expect("it is free");
    assert!(again.token().get() > token);
    again.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_notices_that_its_session_ended_and_may_ask_again() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let name = "session-of-a-waiter";
    let onlooker = Onlooker::at(server, name).await;
    let guard = client(server.port(), TTL_LONG).await.lock(name).acquire().await.expect("it is free");
    let proxy = Proxy::to(server.port()).await;
    let waiting = client(proxy.port, TTL_LONG).await;
    let request = waiting.lock(name).wait(TTL_LONG);
    let first = tokio::spawn(async move { request.acquire().await });
    onlooker.queue_of(2).await;
    proxy.end_session().await;
    let ended = soon("the wait fails", first).await.expect("no panic").expect_err("its node is gone");
    let is_ended = matches!(ended, Error::Lock(fencepost::Error::Refused(Refused::SessionEnded(_))));
    assert!(is_ended, "{ended:?}");
    onlooker.queue_of(1).await;
    let request = waiting.lock(name).wait(PATIENCE);
    let second = tokio::spawn(async move { request.acquire().await });
    onlooker.queue_of(2).await;
    guard.release().await.expect("it was held");
    let guard = soon("its turn comes", second).await.expect("no panic").expect("granted");
    guard.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_found_again_after_its_create_or_the_answer_was_lost() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let name = "lost-create";
    let onlooker = Onlooker::at(server, name).await;
    let proxy = Proxy::to(server.port()).await;
    let client = client(proxy.port, TTL_LONG).await;
    // Without the parent, the first create would fail, and the proxy would drop the wrong answer.
    onlooker.keep_parent().await;
    for loss in [Loss::Answer(CREATE), Loss::Request(CREATE)] {
        proxy.lose(loss);
        let guard = client.lock(name).acquire().await.expect("it is free");
        soon("the message is dropped", proxy.lost()).await;
        let queue = onlooker.queue_of(1).await;
        assert_eq!(guard.token().get(), onlooker.czxid(&queue[0]).await, "{loss:?}");
        guard.release().await.expect("it was held");
        onlooker.queue_of(0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_answer_was_lost_is_deleted_if_the_request_is_dropped() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let name = "dropped-request";
    let onlooker = Onlooker::at(server, name).await;
    let proxy = Proxy::to(server.port()).await;
    let client = client(proxy.port, TTL_LONG).await;
    onlooker.keep_parent().await;
    let reader = client.lock(name).shared().acquire().await.expect("it is free");
    proxy.set_open(false);
    proxy.lose(Loss::Answer(CREATE));
    let request = client.lock(name).shared();
    let acquire = tokio::spawn(async move { request.acquire().await });
    soon("the message is dropped", proxy.lost()).await;
    onlooker.queue_of(2).await;
    acquire.abort();
    assert!(acquire.await.expect_err("it was dropped").is_cancelled());
    proxy.set_open(true);
    onlooker.queue_of(1).await;
    assert!(reader.is_held(), "the session is the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_was_lost_is_a_release() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let name = "lost-delete";
    let onlooker = Onlooker::at(server, name).await;
    let proxy = Proxy::to(server.port()).await;
    let client = client(proxy.port, TTL_LONG).await;
    for loss in [Loss::Answer(DELETE), Loss::Request(DELETE)] {
        let guard = client.lock(name).acquire().await.expect("it is free");
        proxy.lose(loss);
        guard.release().await.expect("it was held");
        soon("the message is dropped", proxy.lost()).await;
        onlooker.queue_of(0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_outlives_its_connection() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let name = "connection";
    let onlooker = Onlooker::at(server, name).await;
    let proxy = Proxy::to(server.port()).await;
    let client = client(proxy.port, TTL_SHORT).await;
    let guard = client.lock(name).acquire().await.expect("it is free");
    let queue = onlooker.queue_of(1).await;
    proxy.cut();
    let renewed = async || {
        let mut last = guard.remaining();
        while guard.remaining() <= last {
            last = guard.remaining();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // The first renewal may come from a message before the cut.
    for _ in 0..3 {
        soon("it is renewed", renewed()).await;
    }
    assert!(guard.is_held());
    assert_eq!(onlooker.queue_of(1).await, queue, "it is the same node");
    guard.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_and_a_waiter_outlive_a_crash_of_their_server() {
    let Some(mut server) = own(Kind::Zookeeper) else { return };
    let (name, port) = ("crash", server.port());
    let onlooker = Onlooker::at(&server, name).await;
    let holding = client(port, TTL_LONG).await;
    let guard = holding.lock(name).acquire().await.expect("it is free");
    let (sender, mut order) = mpsc::unbounded_channel();
    waiter(client(port, TTL_LONG).await, name, 0, sender);
    let queue = onlooker.queue_of(2).await;
    let server = tokio::task::spawn_blocking(move || {
        server.crash_and_restart();
        server
    });
    let server = server.await.expect("it starts again");
    let connected = async {
        while holding.lock("another").try_acquire().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("it is connected again", connected).await;
    assert!(guard.is_held());
    assert_eq!(Onlooker::at(&server, name).await.queue_of(2).await, queue, "they are the same nodes");
    let token = guard.token().get();
    guard.release().await.expect("it was held");
    let (_, next) = soon("the waiter is granted", order.recv()).await.expect("it waits");
    assert!(next > token, "tokens rise across a crash: {next} after {token}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_may_delete_the_node_of_a_holder_or_a_waiter() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let (name, port) = ("operator", server.port());
    let onlooker = Onlooker::at(server, name).await;
    let guard = client(port, TTL_LONG).await.lock(name).acquire().await.expect("it is free");
    let request = client(port, TTL_LONG).await.lock(name).wait(PATIENCE);
    let waiting = tokio::spawn(async move { request.acquire().await });
    let queue = onlooker.queue_of(2).await;
    onlooker.delete(&queue[1]).await;
    // The waiter reads the queue when the node before it is deleted.
    onlooker.delete(&queue[0]).await;
    assert_eq!(soon("the holder notices the loss", guard.lost()).await, Lost::Gone);
    let removed = soon("the wait fails", waiting).await.expect("no panic").expect_err("its node is gone");
    assert!(matches!(removed, Error::Lock(fencepost::Error::Refused(Refused::Cancelled))), "{removed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_odd_characters_are_separate_locks() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let client = client(server.port(), TTL_LONG).await;
    let long = "ü".repeat(256);
    let names = [
        "odd",
        "odd/a",
        "odd//a",
        "odd%2Fa",
        "odd a",
        "odd.a",
        ".",
        "..",
        "...",
        "ö\u{fff9}\u{e000}",
        "🔒",
        "%",
        "zookeeper",
        &long,
    ];
    let mut guards = Vec::new();
    for name in names {
        let guard = client.lock(name).try_acquire().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is free")));
    }
    for name in names {
        assert!(client.lock(name).try_acquire().await.expect("an answer").is_none(), "{name:?} is held");
    }
    for guard in guards {
        guard.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_of_a_name_is_deleted_when_its_queue_is_empty_and_tokens_keep_rising() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let name = "container";
    let onlooker = Onlooker::at(server, name).await;
    let client = client(server.port(), TTL_LONG).await;
    let mut last = 0;
    for _ in 0..2 {
        let guard = client.lock(name).acquire().await.expect("it is free");
        assert!(guard.token().get() > last);
        last = guard.token().get();
        guard.release().await.expect("it was held");
        let gone = async {
            while let (Some(_), watcher) =
                onlooker.zookeeper.check_and_watch_stat(&onlooker.parent).await.expect("an answer")
            {
                watcher.changed().await;
            }
        };
        soon("the node is deleted", gone).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chroot_is_created_and_its_locks_are_separate() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let (name, port) = ("chroot", server.port());
    let onlooker = Onlooker::at(server, name).await;
    let guard = client(port, TTL_LONG).await.lock(name).acquire().await.expect("it is free");
    let inside = Client::connect(&format!("zookeeper://127.0.0.1:{port}/team-a/locks/")).await.expect("it is created");
    let other = inside.lock(name).try_acquire().await.expect("an answer").expect("another lock");
    let path = format!("/team-a/locks/fencepost-locks/{name}");
    assert_eq!(onlooker.zookeeper.list_children(&path).await.expect("it is there").len(), 1);
    guard.release().await.expect("it was held");
    other.release().await.expect("it was held");
}

async fn bare(server: &Server, ttl: Duration) -> Zookeeper {
    Zookeeper::connect(&server.url(), ttl).await.expect("the server is up")
}

fn ask(name: &str) -> Ask {
    Ask { name: Name::new(name).expect("a name"), mode: Mode::Exclusive, ttl: TTL_LONG }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_lease_does_not_stay_as_long_as_its_session() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let onlooker = Onlooker::at(server, "dropped-lease").await;
    let zookeeper = bare(server, TTL_LONG).await;
    drop(zookeeper.acquire(&ask("dropped-lease")).await.expect("it is free"));
    onlooker.queue_of(0).await;
}

// Rule: holder-stops-first
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_is_about_a_message_that_the_leader_knows_of() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let began_at = clock::now();
    let zookeeper = bare(server, TTL_SHORT).await;
    let lease = zookeeper.acquire(&ask("proofs")).await.expect("it is free");
    let granted = lease.proof();
    assert_eq!(granted.ttl, TTL_SHORT);
    assert!(granted.sent_at >= began_at);
    let mut last = granted;
    for _ in 0..3 {
        // If the machine stalls, such a short session may end, and then the renewal fails.
        let Ok(proof) = soon("an answer", lease.renew()).await else { return };
        assert!(proof.sent_at > last.sent_at);
        assert!(clock::now().since(proof.sent_at) >= proof.ttl / 4, "at least half a tick has passed");
        last = proof;
    }
    lease.release().await.expect("it was held");
    let again = lease.release().await.expect_err("it was released");
    assert!(matches!(again, fencepost::Error::Refused(Refused::NotHeld)), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_has_the_ttl_that_the_server_grants_not_the_requested_one() {
    let Some(server) = shared(Kind::Zookeeper) else { return };
    let zookeeper = bare(server, TTL_LONG * 2).await;
    let lease = zookeeper.acquire(&ask("negotiated")).await.expect("it is free");
    assert_eq!(lease.proof().ttl, TTL_LONG);
    lease.release().await.expect("it was held");
}
