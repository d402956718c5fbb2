//! A client's stream over frames or over gRPC. It sends exactly what a case tells it to, valid or not, and turns what it receives into
//! lines.
//!
//! It also checks what no golden file shows: every entry must be of the term that the hello names. Positions and stamps are not shown,
//! but a position that does not rise is.

use std::collections::VecDeque;
use std::fmt::Display;
use std::rc::Rc;

use fencepost_core::{Epoch, Outcome};
use fencepost_wire::{FRAME_GREETING, api, take_frame, v1};
use prost::Message;
use prost::bytes::{BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use super::open_session;
use super::story::{Door, Line, Story};
use crate::client::{channel, soon};

/// A client's stream.
pub(crate) struct Stream {
    name: &'static str,
    story: Rc<Story>,
    wire: Wire,
    received: VecDeque<Line>,
    /// The term of the hello.
    term: u64,
    last_index: u64,
    is_over: bool,
}

enum Wire {
    Frames { socket: TcpStream, came: BytesMut },
    Grpc { to_server: Option<mpsc::Sender<Vec<u8>>>, from_server: Result<Streaming<v1::ServerMessage>, Option<Status>> },
}

/// How a stream begins: the first frame, or the call and its header.
#[derive(Clone, Copy)]
pub(crate) struct Begin<'a> {
    pub(crate) client: &'a str,
    pub(crate) efficiency: bool,
}

impl Default for Begin<'_> {
    fn default() -> Self {
        Begin { client: "tests", efficiency: false }
    }
}

impl Stream {
    /// Connects. The first line is the hello, or the end of the stream.
    pub(crate) async fn connect(story: &Rc<Story>, name: &'static str, address: impl Display) -> Stream {
        Stream::begin(story, name, "connects", address, Begin::default(), v1::ClientMessage::default()).await
    }

    /// The same for the efficiency tier.
    pub(crate) async fn connect_efficiency(story: &Rc<Story>, name: &'static str, address: impl Display) -> Stream {
        let begin = Begin { efficiency: true, ..Begin::default() };
        let done = "connects to the efficiency tier";
        Stream::begin(story, name, done, address, begin, v1::ClientMessage::default()).await
    }

    /// Connects with this `begin`, and sends this first message.
    pub(crate) async fn begin(
        story: &Rc<Story>,
        name: &'static str,
        done: &str,
        address: impl Display,
        begin: Begin<'_>,
        first: v1::ClientMessage,
    ) -> Stream {
        let mut stream = Stream::dial(story, name, address, begin).await;
        let begin = v1::StreamBegin { client: begin.client.to_owned(), efficiency: begin.efficiency };
        match story.door {
            Door::Frames => {
                stream.send_raw(&FRAME_GREETING).await;
                stream.send(&[v1::ClientMessage { begin: Some(begin), ..first }]).await;
            }
            Door::Grpc if first == v1::ClientMessage::default() => {}
            Door::Grpc => stream.send(&[first]).await,
        }
        stream.hears(done, 1).await;
        stream
    }

    /// Connects and sends nothing yet. Over gRPC that is the call; over frames not even the greeting is sent.
    pub(crate) async fn dial(story: &Rc<Story>, name: &'static str, address: impl Display, begin: Begin<'_>) -> Stream {
        let wire = match story.door {
            Door::Frames => {
                let socket = TcpStream::connect(address.to_string()).await.expect("the node listens");
                Wire::Frames { socket, came: BytesMut::new() }
            }
            Door::Grpc => call(address, begin).await,
        };
        let story = story.clone();
        Stream { name, story, wire, received: VecDeque::new(), term: 0, last_index: 0, is_over: false }
    }

    /// Sends a message, and waits until `count` lines have come.
    pub(crate) async fn says(&mut self, done: &str, message: v1::ClientMessage, count: usize) {
        self.send(&[message]).await;
        self.hears(done, count).await;
    }

    /// The same for messages that reach the server together.
    pub(crate) async fn says_at_once(&mut self, done: &str, messages: &[v1::ClientMessage], count: usize) {
        self.send(messages).await;
        self.hears(done, count).await;
    }

    /// Sends bytes as a message, valid or not.
    pub(crate) async fn send_message_bytes(&mut self, message: &[u8]) {
        self.send_encoded(&[message.to_vec()]).await;
    }

    /// Sends bytes as they are. Frames only.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        let Wire::Frames { socket, .. } = &mut self.wire else { panic!("only for frames") };
        socket.write_all(bytes).await.expect("the node reads");
    }

    /// Closes the outgoing half of the stream.
    pub(crate) async fn half_close(&mut self) {
        match &mut self.wire {
            Wire::Frames { socket, .. } => socket.shutdown().await.expect("the socket is open"),
            Wire::Grpc { to_server, .. } => drop(to_server.take()),
        }
    }

    /// Waits until `count` lines have come. The end of the stream is one line.
    pub(crate) async fn hears(&mut self, done: &str, count: usize) {
        let mut lines = Vec::new();
        for _ in 0..count {
            lines.push(self.next().await);
        }
        self.record(done, &lines);
    }

    /// Waits until the stream is over.
    pub(crate) async fn hears_end(&mut self, done: &str) {
        let mut lines = Vec::new();
        while !self.is_over || !self.received.is_empty() {
            lines.push(self.next().await);
        }
        self.record(done, &lines);
    }

    /// Records what else comes. Opens one more session: its answer goes through the log like all others, so nothing comes after it.
    pub(crate) async fn hears_nothing_else(&mut self) {
        let session = self.story.fresh_session();
        let opened = Outcome::Opened { epoch: Epoch(1) };
        let answer = Line { about: about(session), number: None, text: format!("{opened:?}") };
        self.send(&[open_session(session)]).await;
        let mut lines = Vec::new();
        loop {
            match self.next().await {
                line if line == answer => break,
                line => lines.push(line),
            }
        }
        if lines.is_empty() {
            lines.push(Line::of_stream("nothing else"));
        }
        self.record("waits for what else comes", &lines);
    }

    fn record(&self, done: &str, lines: &[Line]) {
        self.story.record(format!("{} {done}", self.name), lines);
    }

    async fn send(&mut self, messages: &[v1::ClientMessage]) {
        let encoded: Vec<Vec<u8>> = messages.iter().map(Message::encode_to_vec).collect();
        self.send_encoded(&encoded).await;
    }

    /// Sends a message without giving the node a chance to run. Frames only.
    pub(crate) fn send_now(&mut self, message: &v1::ClientMessage) {
        let Wire::Frames { socket, .. } = &mut self.wire else { panic!("only for frames") };
        let bytes = frames(&[message.encode_to_vec()]);
        assert_eq!(socket.try_write(&bytes).expect("the socket has room"), bytes.len(), "the socket takes all of it");
    }

    async fn send_encoded(&mut self, messages: &[Vec<u8>]) {
        match &mut self.wire {
            Wire::Frames { socket, .. } => socket.write_all(&frames(messages)).await.expect("the node reads"),
            Wire::Grpc { to_server: None, .. } => panic!("{} has closed its outgoing half", self.name),
            // Without an await in between, so that all go out together.
            Wire::Grpc { to_server: Some(to_server), .. } => {
                messages.iter().for_each(|message| to_server.try_send(message.clone()).expect("the stream is open"));
            }
        }
    }

    /// The next line.
    async fn next(&mut self) -> Line {
        while self.received.is_empty() {
            assert!(!self.is_over, "{} waits for more, and its stream is over", self.name);
            match soon("the node says something", self.wire.message()).await {
                Some(Ok(message)) => self.take(message),
                ended => {
                    self.is_over = true;
                    let text =
                        ended.map_or("ends without a word".to_owned(), |status| end_of_call(&status.unwrap_err()));
                    self.received.push_back(Line::of_stream(text));
                }
            }
        }
        let line = self.received.pop_front().expect("it is not empty");
        if let (Wire::Frames { .. }, true) = (&self.wire, line.text.starts_with("ends with ")) {
            assert!(soon("the node hangs up", self.wire.message()).await.is_none(), "nothing follows the end");
            self.is_over = true;
        }
        line
    }

    fn take(&mut self, message: v1::ServerMessage) {
        let v1::ServerMessage { hello, decided, not_taken, end, detached } = message;
        if let Some(hello) = hello {
            self.term = hello.term;
            let group = match hello.group.checked_sub(1 << 63) {
                None => hello.group.to_string(),
                Some(term) if term == hello.term => "of the term's efficiency tier".to_owned(),
                Some(term) => panic!("a group of term {term} in term {}", hello.term),
            };
            self.received.push_back(Line::of_stream(format!("hello, group {group}")));
        }
        for v1::Decided { index, term, answers, pushes, .. } in decided {
            assert_eq!(term, self.term, "entries are of the term that the hello named");
            if index <= self.last_index {
                self.received.push_back(Line::of_stream("an entry comes out of order"));
            }
            self.last_index = index;
            self.received.extend(answers.into_iter().map(answer));
            self.received.extend(pushes.into_iter().map(push));
        }
        self.received.extend(detached.into_iter().map(detached_line));
        self.received.extend(not_taken.into_iter().map(refused));
        if let Some(v1::StreamEnd { reason, message, leader }) = end {
            self.received.push_back(Line::of_stream(end_text(None, &reason, &message, leader.as_deref(), None)));
        }
    }
}

impl Wire {
    /// The next message. `None` if the stream is closed without an end.
    async fn message(&mut self) -> Option<Result<v1::ServerMessage, Status>> {
        match self {
            Wire::Frames { socket, came } => loop {
                if let Some(message) = take_frame(came, 4 << 20).expect("a good frame") {
                    return Some(Ok(message));
                }
                // If the node hangs up before it has read everything, the read fails.
                if socket.read_buf(came).await.unwrap_or(0) == 0 {
                    return None;
                }
            },
            Wire::Grpc { from_server: Err(status), .. } => status.take().map(Err),
            Wire::Grpc { from_server: Ok(from_server), .. } => match from_server.message().await {
                Ok(Some(message)) => Some(Ok(message)),
                Ok(None) => Some(Err(Status::ok(""))),
                Err(status) => Some(Err(status)),
            },
        }
    }
}

fn frames(messages: &[Vec<u8>]) -> BytesMut {
    let mut bytes = BytesMut::new();
    for message in messages {
        bytes.put_u32(message.len() as u32);
        bytes.put_slice(message);
    }
    bytes
}

async fn call(address: impl Display, begin: Begin<'_>) -> Wire {
    let (to_server, outgoing) = mpsc::channel(64);
    let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
    let client = AsciiMetadataValue::try_from(begin.client.as_bytes()).expect("a header");
    request.metadata_mut().insert("fencepost-client", client);
    let path = match begin.efficiency {
        true => "/fencepost.v1.LockService/ConnectEfficiency",
        false => "/fencepost.v1.LockService/Connect",
    };
    let mut grpc = tonic::client::Grpc::new(channel(address));
    soon("the node listens", grpc.ready()).await.expect("the node listens");
    let called = grpc.streaming(request, PathAndQuery::from_static(path), AsGiven).await;
    let from_server = called.map(tonic::Response::into_inner).map_err(Some);
    Wire::Grpc { to_server: Some(to_server), from_server }
}

/// A codec that sends bytes as the message, valid or not.
struct AsGiven;

impl Codec for AsGiven {
    type Encode = Vec<u8>;
    type Decode = v1::ServerMessage;
    type Encoder = AsGiven;
    type Decoder = <ProstCodec<v1::ClientMessage, v1::ServerMessage> as Codec>::Decoder;

    fn encoder(&mut self) -> AsGiven {
        AsGiven
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<v1::ClientMessage, v1::ServerMessage>::default().decoder()
    }
}

impl Encoder for AsGiven {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

fn about(session: u128) -> String {
    format!("session {session}")
}

fn answer(answer: v1::Answer) -> Line {
    let api::Answer { session, number, outcome, repeat } = api::answer_from_wire(answer).expect("a known answer");
    let repeat = match repeat.map(|repeat| repeat.stands) {
        None => "",
        Some(true) => ", a repeat, the grant stands",
        Some(false) => ", a repeat",
    };
    Line { about: about(session.0), number: number.map(|number| number.0), text: format!("{outcome:?}{repeat}") }
}

fn push(push: v1::Push) -> Line {
    let push = api::push_from_wire(push).expect("a known push");
    Line { about: about(api::push_session(&push).0), number: None, text: format!("push {push:?}") }
}

/// A session that another stream has attached.
fn detached_line(detached: v1::Detached) -> Line {
    let v1::Detached { session_high, session_low, epoch } = detached;
    let session = api::whole(session_high, session_low);
    Line::of_stream(format!("session {session} was attached elsewhere, in epoch {epoch}"))
}

fn refused(refused: v1::NotTaken) -> Line {
    let retry = refused.retry_after_ms.map(|ms| format!(", retry after {ms} ms")).unwrap_or_default();
    let why = refused.why().as_str_name().trim_start_matches("NOT_TAKEN_WHY_");
    let text = format!("not taken, {why}{retry}: {}", refused.message);
    let session = api::whole(refused.session_high, refused.session_low);
    Line { about: about(session), number: Some(refused.number).filter(|number| *number != 0), text }
}

/// The end of a call, of any service.
pub(crate) fn end_of_call(status: &Status) -> String {
    let info = status.get_details_error_info();
    let leader = info.as_ref().and_then(|info| info.metadata.get("leader").cloned());
    let reason = info.map(|info| info.reason).unwrap_or_default();
    let retry_ms = status.get_details_retry_info().and_then(|retry| retry.retry_delay).map(|delay| delay.as_millis());
    end_text(Some(status.code()), &reason, status.message(), leader.as_deref(), retry_ms)
}

fn end_text(
    code: Option<tonic::Code>,
    reason: &str,
    message: &str,
    leader: Option<&str>,
    retry_ms: Option<u128>,
) -> String {
    let code = code.map(|code| format!("{code:?}, ")).unwrap_or_default();
    let reason = if reason.is_empty() { "no reason" } else { reason };
    let leader = leader.map(|leader| format!(", leader {leader}")).unwrap_or_default();
    let retry = retry_ms.map(|ms| format!(", retry after {ms} ms")).unwrap_or_default();
    let message = if message.is_empty() { "no message" } else { message };
    format!("ends with {code}{reason}{leader}{retry}: {message}")
}
