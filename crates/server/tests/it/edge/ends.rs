//! How a stream ends at a leader: the client hangs up, sends something invalid or does not read, or the node shuts down.

use std::rc::Rc;

use fencepost_server::{Begin as Start, Server};
use fencepost_wire::{FRAME_GREETING, v1};
use tokio_stream::wrappers::ReceiverStream;

use super::story::{Door, Story, golden, golden_at};
use super::stream::{Begin, Stream};
use super::{acquire, attach_session, open_session, requests};
use crate::client::{LockServiceClient, channel, config, metric, one_node, run_node, soon, until};

/// One byte more than a node accepts.
const TOO_LONG: u32 = 256 * 1024 + 1;

async fn connect(story: &Rc<Story>, server: &Server) -> Stream {
    Stream::connect(story, "client", server.client_address()).await
}

async fn until_granted(server: &Server) {
    until("the lock is granted", async || (metric(server.http_address(), "fencepost_grants").await == 1).then_some(()))
        .await;
}

#[tokio::test]
async fn a_client_that_hangs_up() {
    let about = [
        "A client hangs up. Its earlier requests are carried out, though it gets no answers. Its session stays alive, and",
        "another stream attaches it.",
    ];
    golden("client-hangs-up", &about, async |story| {
        let server = one_node().await;
        let mut client = connect(&story, &server).await;
        client.says("opens session 1", open_session(1), 1).await;
        client.says("acquires a in its last message", requests([acquire(1, 1, 1, "a")]), 0).await;
        client.half_close().await;
        client.hears_end("hangs up").await;
        until_granted(&server).await;
        let mut second = Stream::connect(&story, "second", server.client_address()).await;
        second.says("attaches session 1", attach_session(1), 1).await;
        second.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn requests_behind_an_open_when_the_client_hangs_up() {
    let about = [
        "A client that opens, acquires and hangs up at once: the session is opened, and the requests held behind the open are forgotten.",
    ];
    golden("client-hangs-up-behind-open", &about, async |story| {
        let server = one_node().await;
        let mut client = connect(&story, &server).await;
        let message = v1::ClientMessage { requests: vec![acquire(1, 1, 1, "a")], ..open_session(1) };
        client.says("opens session 1 and acquires a in its last message", message, 0).await;
        client.half_close().await;
        client.hears_end("hangs up").await;
        until("the session is opened", async || {
            (metric(server.http_address(), "fencepost_sessions").await == 1).then_some(())
        })
        .await;
        let mut second = Stream::connect(&story, "second", server.client_address()).await;
        second.says("attaches session 1", attach_session(1), 1).await;
        second.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_whose_name_is_not_valid() {
    let about = [
        "A stream whose client has a name that is not valid is refused. Frames and gRPC differ in which names are valid.",
    ];
    golden("client-name-not-valid", &about, async |story| {
        let server = one_node().await;
        let (address, nothing) = (server.client_address(), v1::ClientMessage::default());
        let (done, long) = ("connects with a name of 257 bytes", "x".repeat(257));
        let begin = Begin { client: &long, ..Begin::default() };
        Stream::begin(&story, "client", done, address, begin, nothing.clone()).await;
        let begin = Begin { client: "", ..Begin::default() };
        Stream::begin(&story, "client", "connects with an empty name", address, begin, nothing.clone()).await;
        let begin = Begin { client: "Zoë", ..Begin::default() };
        Stream::begin(&story, "client", "connects with a name that is not ASCII", address, begin, nothing).await;
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_not_a_message() {
    let about = ["Bytes that are not a message end the stream. A field that the node does not know is skipped."];
    golden("message-is-noise", &about, async |story| {
        let server = one_node().await;
        let mut client = connect(&story, &server).await;
        client.says("opens session 1", open_session(1), 1).await;
        client.send_message_bytes(&[0xff; 3]).await;
        client.hears_end("sends three bytes of noise").await;
        let mut client = connect(&story, &server).await;
        client.send_message_bytes(&[0x0a, 0x01, 0xff]).await;
        client.hears_end("sends an open whose content is noise").await;
        let mut client = connect(&story, &server).await;
        // Field 15, a number.
        client.send_message_bytes(&[0x78, 0x01]).await;
        client.hears("sends a field that the node does not know", 0).await;
        client.hears_nothing_else().await;
    })
    .await;
}

#[tokio::test]
async fn a_message_that_is_too_long() {
    let about = ["A message that is longer than a node accepts ends the stream."];
    golden("message-too-long", &about, async |story| {
        let server = one_node().await;
        let mut client = connect(&story, &server).await;
        match story.door {
            // The length alone is enough. If the node hung up with unread bytes left, the client could lose the end message.
            Door::Frames => client.send_raw(&TOO_LONG.to_be_bytes()).await,
            Door::Grpc => client.send_message_bytes(&vec![0; TOO_LONG as usize]).await,
        }
        client.hears_end("sends a message of 262,145 bytes").await;
    })
    .await;
}

#[tokio::test]
async fn a_framed_connection_that_begins_badly() {
    let about = ["A framed connection begins with its greeting and a frame that has `begin`."];
    golden_at(&[Door::Frames], "frames-begin-badly", &about, async |story| {
        let server = one_node().await;
        let dial = async || Stream::dial(&story, "client", server.client_address(), Begin::default()).await;
        let mut client = dial().await;
        client.send_raw(b"FP/9").await;
        client.hears_end("greets in another version").await;
        let mut client = dial().await;
        client.send_raw(&FRAME_GREETING).await;
        client.says("opens session 1 in a first frame without `begin`", open_session(1), 1).await;
        let mut client = dial().await;
        client.send_raw(&FRAME_GREETING).await;
        client.send_raw(&TOO_LONG.to_be_bytes()).await;
        client.hears_end("begins with a frame of 262,145 bytes").await;
        let mut client = dial().await;
        client.send_raw(&FRAME_GREETING).await;
        client.send_message_bytes(&[0xff; 3]).await;
        client.hears_end("begins with a frame of noise").await;
        let mut client = dial().await;
        client.send_raw(&FRAME_GREETING).await;
        client.hears_end("greets and says nothing more").await;
    })
    .await;
}

#[tokio::test]
async fn a_frame_that_is_cut_short() {
    let about = [
        "If a client hangs up inside of a frame, the node closes the connection without a word. The same holds before the first frame.",
    ];
    golden_at(&[Door::Frames], "frame-cut-short", &about, async |story| {
        let server = one_node().await;
        let mut client = connect(&story, &server).await;
        client.send_raw(&[0, 0]).await;
        client.half_close().await;
        client.hears_end("sends half of a length and hangs up").await;
        let mut client = Stream::dial(&story, "client", server.client_address(), Begin::default()).await;
        client.send_raw(&FRAME_GREETING).await;
        client.half_close().await;
        client.hears_end("greets and hangs up").await;
    })
    .await;
}

/// More answers than fit into one send buffer: each keep-alive, of a session that is not bound, has two bytes and gets a refusal.
fn flood() -> v1::ClientMessage {
    v1::ClientMessage { keep_alives: vec![v1::KeepAlive::default(); 100_001], ..Default::default() }
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers() {
    let about = [
        "When more than 8 MiB of answers wait for a stream, they are dropped and the stream ends. The requests are carried out all the",
        "same, and an attach brings the answers back. One message that causes that many answers ends the stream of even a fast client.",
    ];
    golden("client-does-not-read", &about, async |story| {
        let server = one_node().await;
        let mut client = connect(&story, &server).await;
        client.says("opens session 1", open_session(1), 1).await;
        let message = v1::ClientMessage { requests: vec![acquire(1, 1, 1, "a")], ..flood() };
        client.says("causes 100,001 refusals and acquires a", message, 0).await;
        client.hears_end("reads").await;
        until_granted(&server).await;
        let mut second = Stream::connect(&story, "second", server.client_address()).await;
        second.says("attaches session 1", attach_session(1), 1).await;
        second.hears_nothing_else().await;
        let (done, begin) = ("causes 100,001 refusals in its first message", Begin::default());
        let mut third = Stream::begin(&story, "third", done, server.client_address(), begin, flood()).await;
        third.hears_end("reads on").await;
    })
    .await;
}

#[tokio::test]
async fn a_node_that_shuts_down() {
    let about = ["A node that shuts down and has no other members says so on every stream, of both tiers."];
    golden("node-shuts-down", &about, async |story| {
        let node = run_node(config("n1", Start::Found)).await;
        let address = node.config.client_listen;
        until_leads(address).await;
        let mut client = Stream::connect(&story, "client", address).await;
        let mut efficient = Stream::connect_efficiency(&story, "efficient", address).await;
        client.says("opens session 1", open_session(1), 1).await;
        node.end.send(()).expect("the node runs");
        client.hears_end("waits while the node shuts down").await;
        efficient.hears_end("waits while the node shuts down").await;
        drop((client, efficient));
        soon("the node ends", node.ended).await.expect("in good order");
    })
    .await;
}

/// Waits until a new node leads.
async fn until_leads(address: impl std::fmt::Display) {
    until("the node leads", async || crate::client::Client::connect(&address).await.ok()).await;
}

/// Streams that a node serves at the same time.
const STREAMS_MAX: usize = 20_000;

#[tokio::test]
async fn more_streams_than_a_node_serves() {
    let about = ["A node serves 20,000 streams. The next one is refused."];
    let server = one_node().await;
    let mut streams = Vec::new();
    let mut shared = channel(server.client_address());
    for number in 0..STREAMS_MAX {
        // A connection carries 256 streams.
        if number % 256 == 0 {
            shared = channel(server.client_address());
        }
        let (to_server, outgoing) = tokio::sync::mpsc::channel::<v1::ClientMessage>(1);
        let called = LockServiceClient::new(shared.clone()).connect(ReceiverStream::new(outgoing)).await;
        streams.push((to_server, called.expect("there is room").into_inner()));
    }
    golden("too-many-streams", &about, async |story| {
        connect(&story, &server).await;
    })
    .await;
}
