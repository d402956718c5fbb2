//! Tests that are specific to etcd: the queue of keys, and leases and keys that an operator removes by hand.
//!
//! The conformance suite (`tests/conformance`) covers what all systems have in common.

use std::future::Future;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::{Error, Failed, Lost, Name, Refused, Token};
use fencepost_backends::etcd::Etcd;
use fencepost_backends::{Ask, Backend, Client, Lease, Mode};
use fencepost_testbed::{Kind, Server, own, shared};
use futures_util::stream;
use proto::kv_client::KvClient;
use proto::lease_client::LeaseClient;
use proto::{KeyValue, LeaseKeepAliveRequest, LeaseRevokeRequest, RangeRequest, TxnRequest};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

#[allow(missing_docs, unreachable_pub, clippy::all, reason = "it is generated")]
mod proto {
    tonic::include_proto!("etcdserverpb");
}

/// Long enough for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Never expires during a test.
const TTL: Duration = Duration::from_secs(60);

type Granted = Result<Box<dyn Lease>, Error>;

/// etcd as an operator sees it.
struct Operator {
    channel: Channel,
}

impl Operator {
    fn of(server: &Server) -> Operator {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", server.port())).expect("an address");
        Operator { channel: endpoint.connect_lazy() }
    }

    /// The keys of a name, the oldest first.
    async fn queue(&self, name: &str) -> Vec<KeyValue> {
        let key = format!("fencepost/lock/{}/", name.replace('/', "%2F")).into_bytes();
        let mut range_end = key.clone();
        *range_end.last_mut().expect("it ends in a slash") += 1;
        let range = RangeRequest { key, range_end, ..Default::default() };
        let found = KvClient::new(self.channel.clone()).range(range).await.expect("etcd answers");
        let mut queue = found.into_inner().kvs;
        queue.sort_by_key(|kv| kv.create_revision);
        queue
    }

    /// Waits until the queue has `len` keys, and returns them.
    async fn queue_of(&self, name: &str, len: usize) -> Vec<KeyValue> {
        let same = async {
            loop {
                let queue = self.queue(name).await;
                if queue.len() == len {
                    return queue;
                }
                tokio::task::yield_now().await;
            }
        };
        within(same).await
    }

    async fn revoke(&self, id: i64) {
        LeaseClient::new(self.channel.clone()).lease_revoke(LeaseRevokeRequest { id }).await.expect("it was there");
    }

    async fn delete(&self, key: Vec<u8>) {
        let delete = proto::request_op::Request::DeleteRange(proto::DeleteRangeRequest { key });
        let success = vec![proto::RequestOp { request: Some(delete) }];
        let request = TxnRequest { success, ..Default::default() };
        KvClient::new(self.channel.clone()).txn(request).await.expect("etcd answers");
    }

    async fn has_lease(&self, id: i64) -> bool {
        let request = stream::iter([LeaseKeepAliveRequest { id }]);
        let kept = LeaseClient::new(self.channel.clone()).lease_keep_alive(request).await.expect("etcd answers");
        kept.into_inner().message().await.expect("etcd answers").expect("an answer to each").ttl > 0
    }
}

/// A proxy before etcd whose connections can be cut. New connections work at once.
struct Way {
    port: u16,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Way {
    async fn to(server: u16) -> Way {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let made = connections.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let connection = tokio::spawn(async move {
                    let mut far = TcpStream::connect(("127.0.0.1", server)).await.expect("etcd is there");
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
                made.lock().expect("no panic").push(connection);
            }
        });
        Way { port, connections }
    }

    /// Cuts all connections. When it returns, nothing that was sent before can still arrive.
    async fn cut(&self) {
        let connections = std::mem::take(&mut *self.connections.lock().expect("no panic"));
        assert!(!connections.is_empty(), "there is no connection to cut");
        for connection in connections {
            connection.abort();
            let _ = connection.await;
        }
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it happens in time")
}

async fn connect(server: &Server) -> Arc<Etcd> {
    Arc::new(Etcd::connect(&server.url()).await.expect("etcd is there"))
}

fn ask(name: &str, mode: Mode) -> Ask {
    Ask { name: Name::new(name).expect("a name"), mode, ttl: TTL }
}

async fn acquire(etcd: &Etcd, name: &str) -> Box<dyn Lease> {
    within(etcd.acquire(&ask(name, Mode::Exclusive))).await.expect("it is free")
}

/// Waits for the lock in a task.
fn wait(etcd: &Arc<Etcd>, name: &str, mode: Mode) -> JoinHandle<Granted> {
    let (etcd, ask) = (etcd.clone(), ask(name, mode));
    tokio::spawn(async move { etcd.acquire(&ask).await })
}

async fn granted(waiter: JoinHandle<Granted>) -> Box<dyn Lease> {
    within(waiter).await.expect("no panic").expect("granted")
}

fn token(lease: &dyn Lease) -> Token {
    lease.token().expect("etcd has tokens")
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_granted_in_the_order_in_which_they_came() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    let first = acquire(&etcd, "fifo").await;
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 1..=3 {
        let (waiter, sender) = (wait(&etcd, "fifo", Mode::Exclusive), sender.clone());
        tokio::spawn(async move {
            let lease = granted(waiter).await;
            sender.send((number, token(&*lease))).expect("the test listens");
            lease.release().await.expect("it is held");
        });
        operator.queue_of("fifo", number + 1).await;
    }
    let mut last = token(&*first);
    first.release().await.expect("it is held");
    for expected in 1..=3 {
        let (number, token) = within(order.recv()).await.expect("three are granted");
        assert_eq!(number, expected);
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_leaves_breaks_no_chain_and_lets_no_waiter_in_early() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    let holder = acquire(&etcd, "chain").await;
    let in_the_middle = wait(&etcd, "chain", Mode::Exclusive);
    operator.queue_of("chain", 2).await;
    let may_be_granted = Arc::new(AtomicBool::new(false));
    let last = {
        let (waiter, may_be_granted) = (wait(&etcd, "chain", Mode::Exclusive), may_be_granted.clone());
        tokio::spawn(async move {
            let lease = granted(waiter).await;
            assert!(may_be_granted.load(Ordering::SeqCst), "granted while another client held it");
            lease
        })
    };
    operator.queue_of("chain", 3).await;
    in_the_middle.abort();
    operator.queue_of("chain", 2).await;
    // The last waiter has checked the queue by now, or does so while other waiters come and go.
    for _ in 0..10 {
        let other = wait(&etcd, "chain", Mode::Exclusive);
        operator.queue_of("chain", 3).await;
        other.abort();
        operator.queue_of("chain", 2).await;
    }
    may_be_granted.store(true, Ordering::SeqCst);
    holder.release().await.expect("it is held");
    let last = within(last).await.expect("granted when it was its turn");
    last.release().await.expect("it is held");
    operator.queue_of("chain", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_waits_only_for_the_writer_before_it() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    let name = "readers";
    let first_writer = acquire(&etcd, name).await;
    let mut waiting = Vec::new();
    for (already, mode) in [Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Shared].into_iter().enumerate() {
        waiting.push(wait(&etcd, name, mode));
        operator.queue_of(name, already + 2).await;
    }
    let [early, also_early, writer, late] = waiting.try_into().expect("four");
    first_writer.release().await.expect("it is held");
    let (early, also_early) = (granted(early).await, granted(also_early).await);
    assert!(!late.is_finished(), "a reader does not pass a writer that came before it");
    assert!(
        etcd.try_acquire(&ask(name, Mode::Shared)).await.expect("etcd answers").is_none(),
        "nor does a reader that only tries"
    );
    early.release().await.expect("it is held");
    assert!(!writer.is_finished(), "one reader is left");
    also_early.release().await.expect("it is held");
    let writer = granted(writer).await;
    writer.release().await.expect("it is held");
    granted(late).await.release().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_notices_that_its_key_is_gone() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    let holder = acquire(&etcd, "place").await;
    for by_hand in ["revoke", "delete"] {
        let waiter = wait(&etcd, "place", Mode::Exclusive);
        let queued = operator.queue_of("place", 2).await.remove(1);
        match by_hand {
            "revoke" => operator.revoke(queued.lease).await,
            _ => operator.delete(queued.key).await,
        }
        let refused = within(waiter).await.expect("no panic").expect_err("its key is gone");
        assert!(matches!(refused, Error::Refused(Refused::SessionEnded(None))), "{by_hand}: {refused}");
    }
    holder.release().await.expect("the holder still has its key");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_notices_that_its_lease_was_revoked() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let operator = Operator::of(server);
    let client = Client::connect(&server.url()).await.expect("etcd is there");
    for by_hand in ["revoke", "delete"] {
        let lock = client.lock("revoked").acquire().await.expect("it is free");
        assert!(lock.is_held());
        let held = operator.queue_of("revoked", 1).await.remove(0);
        assert_eq!(held.create_revision.unsigned_abs(), lock.token().get());
        match by_hand {
            "revoke" => operator.revoke(held.lease).await,
            _ => operator.delete(held.key).await,
        }
        assert_eq!(within(lock.lost()).await, Lost::Gone, "{by_hand}");
        let refused = lock.release().await.expect_err("it was lost");
        assert_eq!(refused.lost(), Some(Lost::Gone), "{by_hand}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_release_says_that_another_holder_has_the_lock() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    let lost = acquire(&etcd, "stale").await;
    operator.revoke(operator.queue_of("stale", 1).await[0].lease).await;
    let next = acquire(&etcd, "stale").await;
    let refused = lost.release().await.expect_err("another client holds it");
    assert!(matches!(refused, Error::Refused(Refused::NotOwner)), "{refused}");
    next.release().await.expect("the stale release did not affect it");
    let refused = next.release().await.expect_err("it was released");
    assert!(matches!(refused, Error::Refused(Refused::NotHeld)), "{refused}");
    let refused = next.renew().await.expect_err("it was released");
    assert!(refused.lost().is_some(), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn different_names_are_different_locks_whatever_characters_they_have() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let etcd = connect(server).await;
    let long = "é".repeat(256);
    let names =
        ["o", "o/", "o/p", "o%2Fp", "o/exclusive-", "/o", "/o/p", "o%", "o p", "o\u{fffd}", "🦀\u{10ffff}", &long];
    let mut held = Vec::new();
    for name in names {
        let lease = etcd.try_acquire(&ask(name, Mode::Exclusive)).await.expect("etcd answers");
        held.push(lease.unwrap_or_else(|| panic!("{name:?} is free")));
    }
    for (name, lease) in names.into_iter().zip(held) {
        let again = etcd.try_acquire(&ask(name, Mode::Exclusive)).await.expect("etcd answers");
        assert!(again.is_none(), "{name:?} is held");
        lease.release().await.expect("it is held");
        let again = etcd.try_acquire(&ask(name, Mode::Exclusive)).await.expect("etcd answers");
        again.expect("it was released").release().await.expect("it is held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_across_all_names() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let etcd = connect(server).await;
    let mut tokens = Vec::new();
    for name in ["t/1", "t/2", "t/1", "t/3", "t/2"] {
        let lease = acquire(&etcd, name).await;
        tokens.push(token(&*lease));
        lease.release().await.expect("it is held");
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn released_and_dropped_locks_leave_neither_key_nor_lease() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    let released = acquire(&etcd, "traces").await;
    let mut leases = vec![operator.queue_of("traces", 1).await[0].lease];
    released.release().await.expect("it is held");
    let dropped = acquire(&etcd, "traces").await;
    let waiter = wait(&etcd, "traces", Mode::Shared);
    leases.extend(operator.queue_of("traces", 2).await.iter().map(|kv| kv.lease));
    waiter.abort();
    operator.queue_of("traces", 1).await;
    drop(dropped);
    operator.queue_of("traces", 0).await;
    for lease in leases {
        within(async {
            while operator.has_lease(lease).await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_dropped_at_any_point_leave_the_lock_free() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    for polls in 0..40 {
        let (etcd, ask) = (etcd.clone(), ask("cut off", Mode::Exclusive));
        // Polls the request this many times, and drops it wherever it is then.
        let mut left = polls;
        let mut request = Box::pin(async move { etcd.acquire(&ask).await.map(drop) });
        std::future::poll_fn(|context| {
            left -= 1;
            if left < 0 { std::task::Poll::Ready(()) } else { request.as_mut().poll(context).map(drop) }
        })
        .await;
    }
    operator.queue_of("cut off", 0).await;
    acquire(&etcd, "cut off").await.release().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_does_not_stop_the_others() {
    let Some(server) = shared(Kind::Etcd) else { return };
    // It accepts connections and never answers.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mute_port = mute.local_addr().expect("it is bound").port();
    let address = format!("etcd://127.0.0.1:{mute_port},127.0.0.1:{}", server.port());
    let etcd = within(Etcd::connect(&address)).await.expect("one of them answers");
    acquire(&etcd, "mute").await.release().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_loses_neither_a_lock_nor_a_place_in_the_queue() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (way, operator) = (Way::to(server.port()).await, Operator::of(server));
    let etcd = Arc::new(Etcd::connect(&format!("etcd://127.0.0.1:{}", way.port)).await.expect("the proxy is up"));
    let holder: Arc<dyn Lease> = acquire(&etcd, "cut").await.into();
    let before = holder.proof();
    let next = wait(&etcd, "cut", Mode::Exclusive);
    operator.queue_of("cut", 2).await;
    let last = wait(&etcd, "cut", Mode::Exclusive);
    operator.queue_of("cut", 3).await;
    way.cut().await;
    within(async { while holder.renew().await.is_err() {} }).await;
    assert!(holder.proof().sent_at > before.sent_at, "it was renewed");
    holder.release().await.expect("it is held");
    let next = granted(next).await;
    // The new holder also notices a loss that happens while its connection is cut.
    way.cut().await;
    operator.revoke(operator.queue_of("cut", 2).await[0].lease).await;
    assert_eq!(within(next.ended()).await, Lost::Gone);
    granted(last).await.release().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_has_lost_neither_a_lock_nor_a_place_in_the_queue() {
    let Some(mut server) = own(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(&server).await, Operator::of(&server));
    let holder = acquire(&etcd, "restart").await;
    let waiter = wait(&etcd, "restart", Mode::Exclusive);
    operator.queue_of("restart", 2).await;
    server.crash_and_restart();
    within(async { while holder.renew().await.is_err() {} }).await;
    assert!(etcd.try_acquire(&ask("restart", Mode::Shared)).await.expect("it is back").is_none(), "it is still held");
    let first = token(&*holder);
    holder.release().await.expect("it is held");
    let next = granted(waiter).await;
    assert!(token(&*next) > first);
    next.release().await.expect("it is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_was_lost_is_still_a_release() {
    let Some(server) = shared(Kind::Etcd) else { return };
    let (etcd, operator) = (connect(server).await, Operator::of(server));
    let holder = acquire(&etcd, "unheard").await;
    let mut release = holder.release();
    // Sends the release, and does not wait for its answer.
    std::future::poll_fn(|context| {
        assert!(release.as_mut().poll(context).is_pending(), "not before etcd has answered");
        std::task::Poll::Ready(())
    })
    .await;
    operator.queue_of("unheard", 0).await;
    drop(release);
    within(holder.release()).await.expect("the first call has released it");
    let again = within(holder.release()).await.expect_err("it is no longer held");
    assert!(matches!(again, Error::Refused(Refused::NotHeld)), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_cluster_is_reported_as_unreachable() {
    let Some(server) = own(Kind::Etcd) else { return };
    let etcd = connect(&server).await;
    let address = server.url();
    drop(server);
    let failed = within(etcd.acquire(&ask("gone", Mode::Exclusive))).await.expect_err("the server is gone");
    assert!(matches!(failed, Error::Failed(Failed::Unreachable { .. }) | Error::Unknown(_)), "{failed}");
    let failed = within(Etcd::connect(&address)).await.expect_err("the server is gone");
    assert!(failed.to_string().contains("cannot be reached"), "{failed}");
}
