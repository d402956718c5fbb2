//! A first connect to addresses where no node runs fails at once and says so, in every kind of client. With a timeout it goes on.
//!
//! What decides is in `crates/session/src/client/reconnect.rs`, with its own tests.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fencepost::{Client, ClientBuilder, Error, Failed};
use fencepost_testing::TestServer;
use tokio::net::TcpSocket;

/// Far above what two refusals take on a busy machine, and far below the ten seconds that a client looks for a leader.
const AT_ONCE: Duration = Duration::from_secs(5);

/// An address that refuses connections while the socket lives: bound, but not listening.
fn refuses() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = socket.local_addr().expect("it is bound");
    (socket, address)
}

#[track_caller]
fn names_all(error: Error, refusing: &[SocketAddr]) {
    let said = error.to_string();
    assert!(matches!(error, Error::Failed(Failed::NothingListens { .. })), "{error:?}");
    assert!(refusing.iter().all(|address| said.contains(&address.to_string())), "{said}");
    assert!(said.contains("fencepost dev") && said.contains("connect_timeout"), "{said}");
}

#[tokio::test]
async fn a_first_connect_fails_at_once_and_names_the_addresses() {
    let ((_one, one), (_two, two)) = (refuses(), refuses());
    let begun = Instant::now();
    let error = Client::connect(&format!("fencepost://{one},{two}")).await.expect_err("no node runs there");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    names_all(error, &[one, two]);
}

#[tokio::test]
async fn calls_of_a_client_that_connects_in_the_background_fail_as_soon() {
    let (_socket, address) = refuses();
    let client = Client::builder().endpoint(address.to_string()).connect_in_background().unwrap();
    let begun = Instant::now();
    names_all(client.lock("a").acquire().await.expect_err("no node runs there"), &[address]);
    names_all(client.lock("a").efficiency().acquire().await.expect_err("no node runs there"), &[address]);
    names_all(client.status().await.expect_err("no node runs there"), &[address]);
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
}

#[cfg(feature = "blocking")]
#[test]
fn the_blocking_twin_fails_at_once_and_goes_on_with_a_timeout() {
    let (_socket, address) = refuses();
    let begun = Instant::now();
    let error =
        fencepost::blocking::Client::connect(&format!("fencepost://{address}")).expect_err("no node runs there");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    names_all(error, &[address]);
    let begun = Instant::now();
    names_all(fencepost::blocking::Client::with(patient(address)).expect_err("no node runs there"), &[address]);
    assert!(begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn the_efficiency_tier_fails_at_once_when_it_first_connects() {
    let server = TestServer::start();
    let (client, address) = (server.client().await.unwrap(), server.address());
    drop(server);
    let begun = Instant::now();
    let error = client.lock("a").efficiency().acquire().await.expect_err("the node is gone");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    names_all(error, &[address]);
    // The other tier was connected, so it says what it saw last.
    let error = client.lock("a").acquire().await.expect_err("the node is gone");
    assert!(matches!(error, Error::Failed(Failed::Unreachable { .. })), "{error:?}");
}

#[tokio::test]
async fn the_efficiency_tier_goes_on_with_a_timeout() {
    let (_socket, address) = refuses();
    let client = patient(address).connect_in_background().unwrap();
    let begun = Instant::now();
    names_all(client.lock("a").efficiency().acquire().await.expect_err("no node runs there"), &[address]);
    assert!(begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
}

/// The patience of the connection is no patience of a request: it ends when its own time is over, and nothing was sent.
#[tokio::test]
async fn a_request_does_not_wait_longer_than_it_asked_for_while_the_first_connect_goes_on() {
    let (_socket, address) = refuses();
    let builder = Client::builder().endpoint(address.to_string()).connect_timeout(10 * AT_ONCE);
    let client = builder.call_timeout(PATIENCE).connect_in_background().unwrap();
    let short = Duration::from_millis(100);
    let begun = Instant::now();
    names_all(client.lock("a").wait(short).acquire().await.map(drop).expect_err("no node runs there"), &[address]);
    let fast = client.lock("a").efficiency().wait(short).acquire().await.map(drop);
    names_all(fast.expect_err("no node runs there"), &[address]);
    assert!(begun.elapsed() < 2 * AT_ONCE, "{:?}", begun.elapsed());
}

#[cfg(feature = "blocking")]
#[test]
fn the_efficiency_tier_of_the_blocking_twin_fails_as_soon_and_goes_on_as_long() {
    for patience in [None, Some(PATIENCE)] {
        let server = TestServer::start();
        let address = server.address();
        let builder = Client::builder().endpoint(address.to_string());
        let builder = patience.into_iter().fold(builder, ClientBuilder::connect_timeout);
        let client = fencepost::blocking::Client::with(builder).unwrap();
        drop(server);
        let begun = Instant::now();
        let error = client.acquire(client.lock("a").efficiency()).map(drop).expect_err("the node is gone");
        let took = begun.elapsed();
        assert!(took < AT_ONCE && took >= patience.unwrap_or_default(), "{took:?}");
        names_all(error, &[address]);
        let error = client.acquire(client.lock("a")).map(drop).expect_err("the node is gone");
        assert!(matches!(error, Error::Failed(Failed::Unreachable { .. })), "{error:?}");
    }
}

/// Long enough for more than two refusals.
const PATIENCE: Duration = Duration::from_millis(700);

fn patient(address: SocketAddr) -> ClientBuilder {
    Client::builder().endpoint(address.to_string()).connect_timeout(PATIENCE)
}

#[tokio::test]
async fn a_timeout_makes_a_first_connect_go_on() {
    let (socket, address) = refuses();
    for builder in [patient(address), Client::builder().endpoint(address.to_string()).refused_timeout(PATIENCE)] {
        let begun = Instant::now();
        names_all(builder.connect().await.expect_err("no node runs there"), &[address]);
        assert!(begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
    }
    // A client that waits finds the program that listens later.
    let client = Client::builder().endpoint(address.to_string()).connect_timeout(4 * AT_ONCE);
    let connecting = tokio::spawn(client.connect());
    let listener = socket.listen(1).expect("the port is ours");
    let dialled = tokio::time::timeout(2 * AT_ONCE, listener.accept()).await;
    assert!(dialled.is_ok_and(|accepted| accepted.is_ok()), "it dials again");
    connecting.abort();
}
