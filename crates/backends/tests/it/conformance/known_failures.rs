//! Shows with real servers how locks of Redis fail. These are the reasons why Redis gives no lock with a token.
//!
//! If one of these tests fails, Redis no longer has the failure that it shows, and `promises.rs` may promise more. The tests in
//! `crates/cli/tests/real/efficiency.rs` run the same stories with Fencepost, which does not fail. `tests/known_failures_postgres.rs`
//! shows how advisory locks of Postgres fail through a transaction pooler.

use std::time::Duration;

use fencepost_backends::Client;
use fencepost_testbed::{Kind, Server, own};

use crate::conformance::bed::{PATIENCE, lock};
use crate::conformance::proxy::Proxy;

/// The master dies, and a replica that does not know the lock is promoted. It grants the lock to a second holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fail_over_of_redis_gives_one_lock_to_two() {
    let (Some(master), Some(replica)) = (own(Kind::Redis), own(Kind::Redis)) else { return };
    let replication = Proxy::to(master.port()).await;
    command(&replica, &["REPLICAOF", "127.0.0.1", &replication.port.to_string()]).await;
    eventually("the replica follows", async || {
        said(&replica, &["INFO", "replication"]).await.contains("link_status:up")
    })
    .await;

    // Replication is asynchronous: what the master grants now never reaches the replica.
    drop(replication);
    eventually("the replica is cut off", async || {
        said(&replica, &["INFO", "replication"]).await.contains("link_status:down")
    })
    .await;
    let first = Client::connect(&master.url()).await.expect("the master is up");
    let one = lock(&first, "nightly-report").acquire().await.expect("it is free");
    drop(master);
    command(&replica, &["REPLICAOF", "NO", "ONE"]).await;

    let second = Client::connect(&replica.url()).await.expect("the replica is up");
    let two = lock(&second, "nightly-report")
        .try_acquire()
        .await
        .expect("an answer")
        .expect("the replica does not know the first holder");
    assert!(one.is_held() && two.is_held(), "two holders, and both guards say that they hold it: {one:?} {two:?}");
}

/// The holder has three of five masters. One of the three restarts and loses its memory, and a second holder gets a majority, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_forgets_gives_a_redlock_to_two() {
    let masters: Vec<Server> = (0..5).filter_map(|_| own(Kind::Redis)).collect();
    let Ok([a, b, c, d, e]) = <[Server; 5]>::try_from(masters) else { return };
    let address = |ports: [u16; 5]| format!("redlock://{}", ports.map(|port| format!("127.0.0.1:{port}")).join(","));

    // The first client cannot reach two of the masters: these proxies end at once.
    let cut = [Proxy::to(d.port()).await.port, Proxy::to(e.port()).await.port];
    let first =
        Client::connect(&address([a.port(), b.port(), c.port(), cut[0], cut[1]])).await.expect("a majority is up");
    let one = lock(&first, "nightly-report").acquire().await.expect("three of five are enough");

    drop(c);
    let c = own(Kind::Redis).expect("it is installed");
    let second =
        Client::connect(&address([a.port(), b.port(), c.port(), d.port(), e.port()])).await.expect("all are up");
    let two =
        lock(&second, "nightly-report").try_acquire().await.expect("an answer").expect("three of five are enough");
    assert!(one.is_held() && two.is_held(), "two holders, and both guards say that they hold it: {one:?} {two:?}");
}

async fn said(server: &Server, words: &[&str]) -> String {
    let client = redis::Client::open(server.url()).expect("its own address");
    let mut connection = client.get_multiplexed_async_connection().await.expect("it is up");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.expect("it accepts the command")
}

async fn command(server: &Server, words: &[&str]) {
    assert_eq!(said(server, words).await, "OK");
}

async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let look = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("in time: {what}"));
}
