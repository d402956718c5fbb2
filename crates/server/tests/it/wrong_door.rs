//! Callers at the wrong port, with the wrong protocol, with or without TLS: each is told in its own protocol where to go, and none can
//! hold the door.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::client::authority::Authority;
use crate::client::{
    ObserveServiceClient, Running, TestDirectory, channel, config, get, run_node, soon, status_of, until,
};
use crate::tls::greet;
use fencepost_server::{Begin, Config, Server, TlsFiles};
use fencepost_wire::{FRAME_GREETING, FRAME_PROTOCOL, PEER_GREETING, put_frame, take_frame, v1};
use prost::bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::{Code, Status};

/// What a caller gets for these bytes, until the node hangs up.
async fn answer(address: SocketAddr, said: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).await.expect("the node listens");
    socket.write_all(said).await.expect("the node reads");
    let mut answer = Vec::new();
    soon("the node hangs up", socket.read_to_end(&mut answer)).await.expect("the answer is not lost in a reset");
    answer
}

/// What a client that speaks frames is told.
async fn client_is_told(address: SocketAddr) -> String {
    let begin = v1::StreamBegin { client: "tests".to_owned(), efficiency: false };
    let begin = v1::ClientMessage { begin: Some(begin), ..Default::default() };
    let end = frame_answer::<v1::ServerMessage>(address, &FRAME_GREETING, &begin).await.end.expect("an end");
    assert_eq!(end.reason, "WRONG_DOOR");
    end.message
}

/// What a node is told.
async fn peer_is_told(address: SocketAddr) -> String {
    let hello = v1::DeliverRequest { hello: Some(v1::PeerHello::default()), messages: Vec::new() };
    let told = frame_answer::<v1::DeliverResponse>(address, &PEER_GREETING, &hello).await;
    assert_eq!(told.reason, "WRONG_DOOR");
    told.message
}

async fn frame_answer<Told: prost::Message + Default>(
    address: SocketAddr,
    greeting: &[u8],
    first: &impl prost::Message,
) -> Told {
    let mut said = BytesMut::from(greeting);
    put_frame(first, &mut said);
    let mut came = BytesMut::from(&answer(address, &said).await[..]);
    take_frame(&mut came, 10_000).expect("a valid frame").expect("an answer")
}

/// The text of a status and of all its causes.
fn whole(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
}

/// The beginning of a TLS handshake, and a fatal alert `protocol_version`.
const CLIENT_HELLO: &[u8] = b"\x16\x03\x01\x00\xf0\x01\x00\x00\xec\x03\x03";
const ALERT: &[u8] = &[0x15, 3, 1, 0, 2, 2, 70];

struct Addresses {
    clients: SocketAddr,
    http: SocketAddr,
    peers: SocketAddr,
}

async fn started(config: Config) -> (Running, Addresses) {
    let node = run_node(config).await;
    let Config { client_listen: clients, http_listen: http, peer_listen: peers, .. } = node.config;
    (node, Addresses { clients, http, peers })
}

#[tokio::test]
async fn callers_at_the_wrong_port_are_told_where_to_go() {
    let (_node, Addresses { clients, http, peers }) = started(config("n1", Begin::Found)).await;
    let (for_clients, for_http, for_peers) = (clients.to_string(), format!("http://{http}"), peers.to_string());
    for address in [clients, http, peers] {
        assert_eq!(answer(address, CLIENT_HELLO).await, ALERT, "TLS where there is none");
    }
    says(&client_is_told(http).await, &["the port for HTTP", &for_clients]);
    says(&client_is_told(peers).await, &["the port for the other nodes", &for_clients]);
    says(&peer_is_told(clients).await, &["the port for clients", &for_peers]);
    says(&peer_is_told(http).await, &["the port for HTTP", &for_peers]);
    for (address, port) in [(clients, "the port for clients"), (peers, "the port for the other nodes")] {
        says(&get(address, "/healthz").await, &["HTTP/1.1 400", port, &for_http]);
    }
    let at_http = soon("gRPC is told", status_of(http)).await.expect_err("not the port for gRPC");
    says(&whole(&at_http), &["the port for HTTP", &for_clients]);
    assert_eq!(at_http.code(), Code::Unavailable, "so that a client tries elsewhere");
    let at_peers = soon("gRPC is told", status_of(peers)).await.expect_err("not the port for clients");
    says(&whole(&at_peers), &["the port for the other nodes", &for_clients]);
    assert_eq!(at_peers.code(), Code::Unimplemented);
}

/// A node with TLS on all ports. Clients need no certificate.
fn with_tls(directory: &TestDirectory, authority: &Authority) -> Config {
    let files = |file: &str, name: &str, clients_must_show: bool| {
        let (certificate, key) = authority.sign(&[name]).write(directory.path(), file);
        let authority = clients_must_show.then(|| authority.write(directory.path(), "authority.pem"));
        TlsFiles { certificate, key, authority }
    };
    Config {
        tls: Some(files("clients", "127.0.0.1", false)),
        peer_tls: Some(files("peers", "n1", true)),
        ..config("n1", Begin::Found)
    }
}

#[tokio::test]
async fn callers_in_plain_text_are_told_to_speak_tls() {
    let (directory, authority) = (TestDirectory::new("wrong-door-tls"), Authority::new());
    let (_node, Addresses { clients, http, peers }) = started(with_tls(&directory, &authority)).await;
    says(&client_is_told(clients).await, &["speaks TLS", "https://", "--ca", "ClientBuilder::tls"]);
    says(&client_is_told(http).await, &["the port for HTTP", &clients.to_string()]);
    says(&peer_is_told(peers).await, &["speaks TLS", "--peer-cert", "--peer-ca"]);
    says(&get(http, "/healthz").await, &["HTTP/1.1 400", "speaks TLS", "https://"]);
    says(&get(clients, "/healthz").await, &["HTTP/1.1 400", "the port for clients", &format!("https://{http}")]);
    let plain = soon("gRPC is told", status_of(clients)).await.expect_err("without TLS");
    says(&whole(&plain), &["speaks TLS", "--ca", "--join-ca"]);
}

#[tokio::test]
async fn callers_with_tls_at_the_wrong_port_are_told_so() {
    let (directory, authority) = (TestDirectory::new("wrong-door-alpn"), Authority::new());
    let (_node, Addresses { clients, http, peers }) = started(with_tls(&directory, &authority)).await;
    for (address, name) in [(http, ServerName::from(http.ip())), (peers, ServerName::try_from("n1").unwrap())] {
        let refused = greet(address, name, &authority, None, FRAME_PROTOCOL).await.expect_err("no frames of clients");
        says(&refused.to_string(), &["NoApplicationProtocol"]);
    }
    let name = ServerName::from(clients.ip());
    let mut browser = greet(clients, name, &authority, None, b"http/1.1").await.expect("the handshake succeeds");
    browser.write_all(b"GET / HTTP/1.1\r\nHost: n1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon("it is told", browser.read_to_string(&mut answer)).await.expect("the answer is not lost in a reset");
    says(&answer, &["HTTP/1.1 400", "the port for clients", &format!("https://{http}")]);
}

/// A node that joins keeps asking for nine seconds, because the others may start at the same time. That does not help here.
#[tokio::test]
async fn a_node_that_joins_at_a_wrong_port_or_without_tls_is_told_at_once() {
    let (directory, authority) = (TestDirectory::new("wrong-door-join"), Authority::new());
    let (_plain, plain) = started(config("n1", Begin::Found)).await;
    let (_tls, tls) = started(with_tls(&directory, &authority)).await;
    let join = |address: SocketAddr, config: Config| Config { begin: Begin::Join(vec![address.to_string()]), ..config };
    let n9 = || config("n9", Begin::Found);
    let begun = Instant::now();
    for (config, parts) in [
        (join(plain.http, n9()), ["the port for HTTP", &plain.clients.to_string()]),
        (join(plain.peers, n9()), ["the port for the other nodes", &plain.clients.to_string()]),
        (join(tls.clients, n9()), ["speaks TLS", "--join-ca"]),
        (join(plain.clients, with_tls(&directory, &authority)), ["speaks plain text", "without --peer-cert"]),
        (join(tls.http, with_tls(&directory, &authority)), ["not the port for clients", "check the port"]),
    ] {
        let error = Server::start(config).await.err().expect("there is no cluster to join").to_string();
        says(&error, &parts);
        assert!(!error.contains("http2"), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_caller_that_sends_on_or_stops_in_the_middle_of_a_word_is_cut_off() {
    let (_node, Addresses { clients, http, .. }) = started(config("n1", Begin::Found)).await;
    // It sends without end. The door drops a bounded part, then hangs up.
    let mut endless = TcpStream::connect(clients).await.unwrap();
    let cut_off = async {
        endless.write_all(b"GET / HTTP/1.1\r\n").await?;
        loop {
            endless.write_all(&[b'x'; 64 << 10]).await?;
        }
    };
    let cut_off: std::io::Result<()> = soon("it is cut off", cut_off).await;
    assert!(cut_off.is_err());
    // It got its answer and neither reads nor closes. The door hangs up, which a later write notices.
    let mut lingers = TcpStream::connect(http).await.unwrap();
    lingers.write_all(&FRAME_GREETING).await.unwrap();
    until("it is cut off", async || lingers.write_all(b"x").await.is_err().then_some(())).await;
    // One letter could be the beginning of several protocols. The door waits for the rest, but not for ever.
    let mut stops = TcpStream::connect(clients).await.unwrap();
    stops.write_all(b"P").await.unwrap();
    let mut answer = Vec::new();
    // With an unread letter the connection may be reset.
    let _ = soon("it is cut off", stops.read_to_end(&mut answer)).await;
    assert_eq!(answer, b"");
    // Others come in.
    until("the node serves", async || {
        let status = ObserveServiceClient::new(channel(clients)).get_status(v1::GetStatusRequest {}).await;
        status.is_ok().then_some(())
    })
    .await;
}
