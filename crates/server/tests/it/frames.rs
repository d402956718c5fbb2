//! Framed connections, byte by byte: what a node answers to valid and to invalid frames.

use std::net::SocketAddr;

use crate::client::{Client, Running, config, lock, open, request, run_node, soon, until};
use fencepost_core::{Outcome, Wait};
use fencepost_server::Begin;
use fencepost_wire::{FRAME_GREETING, PEER_GREETING, api, put_frame, take_frame, v1};
use prost::bytes::{BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection that sends any bytes.
struct Raw {
    socket: TcpStream,
    came: BytesMut,
}

impl Raw {
    async fn connect(address: SocketAddr) -> Raw {
        Raw { socket: TcpStream::connect(address).await.expect("the node listens"), came: BytesMut::new() }
    }

    async fn greeted(address: SocketAddr) -> Raw {
        let mut raw = Raw::connect(address).await;
        raw.say_bytes(&FRAME_GREETING).await;
        raw
    }

    async fn say_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("the node reads");
    }

    async fn say(&mut self, message: &v1::ClientMessage) {
        let mut bytes = BytesMut::new();
        put_frame(message, &mut bytes);
        self.say_bytes(&bytes).await;
    }

    /// The next message. `None` if the node has hung up.
    async fn hear(&mut self) -> Option<v1::ServerMessage> {
        self.hear_as().await
    }

    async fn hear_as<Said: prost::Message + Default>(&mut self) -> Option<Said> {
        soon("the node answers", async {
            loop {
                if let Some(message) = take_frame(&mut self.came, 1 << 20).expect("a valid message") {
                    return Some(message);
                }
                // If the node hangs up with unread bytes left, the read fails.
                if self.socket.read_buf(&mut self.came).await.unwrap_or(0) == 0 {
                    return None;
                }
            }
        })
        .await
    }

    /// Why the node ends the connection. It must hang up then.
    async fn end(&mut self) -> v1::StreamEnd {
        let end = self.hear().await.expect("a last message").end.expect("an end");
        assert_eq!(self.hear().await, None);
        end
    }
}

fn begin() -> v1::ClientMessage {
    let begin = v1::StreamBegin { client: "tests".to_owned(), efficiency: false };
    v1::ClientMessage { begin: Some(begin), ..Default::default() }
}

/// A node in memory that leads.
async fn started() -> (Running, SocketAddr) {
    let node = run_node(config("n1", Begin::Found)).await;
    let address = node.config.client_listen;
    until("the node leads", async || {
        let mut raw = Raw::greeted(address).await;
        raw.say(&begin()).await;
        raw.hear().await?.hello
    })
    .await;
    (node, address)
}

#[tokio::test]
async fn a_lock_is_taken_over_frames_in_one_message_or_cut_into_bytes() {
    let (_node, address) = started().await;
    let mut raw = Raw::connect(address).await;
    // Everything at once, byte by byte: greeting, begin, open and acquire.
    let mut bytes = BytesMut::from(&FRAME_GREETING[..]);
    let asked = v1::ClientMessage {
        opens: vec![open(1, 60_000)],
        requests: vec![request(1, 1, 1, lock("a", Wait::No))],
        ..begin()
    };
    put_frame(&asked, &mut bytes);
    for byte in bytes {
        raw.say_bytes(&[byte]).await;
    }
    let mut granted = false;
    while !granted {
        let message = raw.hear().await.expect("the stream is open");
        for answer in message.decided.into_iter().flat_map(|decided| decided.answers) {
            let answer = api::answer_from_wire(answer).expect("a valid answer");
            granted |= matches!(answer.outcome, Outcome::Granted { .. });
        }
    }
}

#[tokio::test]
async fn an_invalid_frame_is_refused_with_what_is_wrong() {
    let (_node, address) = started().await;
    let reason = |end: v1::StreamEnd| (end.reason, end.message);

    let mut raw = Raw::greeted(address).await;
    raw.say(&v1::ClientMessage::default()).await;
    let (code, message) = reason(raw.end().await);
    assert!(code == "INVALID" && message.contains("must have `begin`"), "{message}");

    let mut raw = Raw::greeted(address).await;
    raw.say_bytes(&u32::MAX.to_be_bytes()).await;
    let (code, message) = reason(raw.end().await);
    assert!(code == "INVALID" && message.contains("at most"), "{message}");

    let mut raw = Raw::greeted(address).await;
    raw.say(&begin()).await;
    assert!(raw.hear().await.expect("a first message").hello.is_some());
    let mut noise = BytesMut::new();
    noise.put_u32(3);
    noise.put_slice(&[0xff; 3]);
    raw.say_bytes(&noise).await;
    let (code, message) = reason(raw.end().await);
    assert!(code == "INVALID" && message.contains("is not valid"), "{message}");

    let mut raw = Raw::connect(address).await;
    raw.say_bytes(b"FP/9").await;
    assert_eq!(raw.hear().await, None, "another version gets no answer");

    // The bad connections did no harm, and gRPC is served on the same port.
    let mut client = Client::connect(address).await.expect("the node serves");
    client.open(9, 60_000).await;
}

#[tokio::test]
async fn a_node_that_ends_says_so_on_every_connection() {
    let (node, address) = started().await;
    let mut raw = Raw::greeted(address).await;
    raw.say(&begin()).await;
    assert!(raw.hear().await.expect("a first message").hello.is_some());
    node.end.send(()).expect("the node runs");
    assert_eq!(raw.end().await.reason, "SHUTTING_DOWN");
    soon("the node ends", node.ended).await.expect("in good order");
}

#[tokio::test]
async fn a_peer_whose_version_is_too_long_or_has_control_characters_is_refused() {
    let (node, clients) = started().await;
    let status = crate::client::status_of(clients).await.expect("it answers");
    let versions = [("1".repeat(64), true), ("1".repeat(65), false), ("1.0\u{1b}[2J".to_owned(), false)];
    for (version, is_taken) in versions {
        let hello = v1::PeerHello {
            cluster_high: status.cluster_high,
            cluster_low: status.cluster_low,
            from: 77,
            to: status.node,
            peer_address: "127.0.0.1:1".to_owned(),
            version,
            oldest_format: 1,
            newest_format: 1,
        };
        let mut raw = Raw::connect(node.config.peer_listen).await;
        raw.say_bytes(&PEER_GREETING).await;
        let mut bytes = BytesMut::new();
        put_frame(&v1::DeliverRequest { hello: Some(hello.clone()), messages: Vec::new() }, &mut bytes);
        if is_taken {
            // It is read until a message that is not valid comes.
            put_frame(&v1::DeliverRequest { hello: None, messages: vec![vec![0xff]] }, &mut bytes);
        }
        raw.say_bytes(&bytes).await;
        let told = raw.hear_as::<v1::DeliverResponse>().await.expect("a reason");
        assert_eq!(told.message.contains("a version has at most 64 bytes"), !is_taken, "{hello:?}: {told:?}");
    }
}

#[tokio::test]
async fn a_peer_that_does_not_say_which_formats_it_knows_is_refused() {
    let (node, clients) = started().await;
    let status = crate::client::status_of(clients).await.expect("it answers");
    for (oldest_format, newest_format) in [(0, 0), (0, 1), (3, 2)] {
        let (cluster_high, cluster_low) = (status.cluster_high, status.cluster_low);
        let (from, to, peer_address, version) = (77, status.node, "127.0.0.1:1".to_owned(), String::new());
        let hello =
            v1::PeerHello { cluster_high, cluster_low, from, to, peer_address, version, oldest_format, newest_format };
        let mut raw = Raw::connect(node.config.peer_listen).await;
        raw.say_bytes(&PEER_GREETING).await;
        let mut bytes = BytesMut::new();
        put_frame(&v1::DeliverRequest { hello: Some(hello), messages: Vec::new() }, &mut bytes);
        raw.say_bytes(&bytes).await;
        let told = raw.hear_as::<v1::DeliverResponse>().await.expect("a reason");
        assert_eq!(told.reason, "INVALID");
        assert!(told.message.contains("they count from 1"), "{told:?}");
    }
}
