//! Tools of the server's tests: a client that sends exactly what a test tells it to, nodes that run until the test ends, and a
//! directory for their files.

#![allow(dead_code, unused_imports, reason = "each test uses its part")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_core::{
    Acquire, Action, Epoch, Lock, LockMode, Locks, Name, Outcome, Push, Request, RequestNumber, Seen, SessionId, Terms,
    Token, Wait,
};
use fencepost_server::{Begin, Config, Server, StartError};
use fencepost_wire::{api, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

pub(crate) mod authority;

pub(crate) use fencepost_wire::grpc::admin_service_client::AdminServiceClient;
pub(crate) use fencepost_wire::grpc::lock_service_client::LockServiceClient;
pub(crate) use fencepost_wire::grpc::observe_service_client::ObserveServiceClient;
pub(crate) use fencepost_wire::grpc::peer_service_client::PeerServiceClient;

/// Long enough for a slow machine. Most waits are much shorter.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something that must happen.
pub(crate) async fn soon<Found>(what: &str, future: impl Future<Output = Found>) -> Found {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("in time: {what}"))
}

/// Asks again and again until there is an answer.
pub(crate) async fn until<Found>(what: &str, mut ask: impl AsyncFnMut() -> Option<Found>) -> Found {
    soon(what, async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// A directory for the files of one test. Dropping it deletes the directory.
pub(crate) struct TestDirectory(PathBuf);

impl TestDirectory {
    pub(crate) fn new(name: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("fencepost-server-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        TestDirectory(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A node that runs until it is told to end.
pub(crate) struct Running {
    /// With the addresses that the node got, so that it can be started there again.
    pub(crate) config: Config,
    pub(crate) end: tokio::sync::oneshot::Sender<()>,
    pub(crate) ended: tokio::task::JoinHandle<()>,
}

/// Starts a node.
pub(crate) async fn run_node(mut config: Config) -> Running {
    // A node that is started again needs its old ports. An outgoing connection of another test may use one of them for a moment.
    let server = until(&format!("{} starts", config.name), async || match Server::start(config.clone()).await {
        Ok(server) => Some(server),
        Err(StartError::Listen { .. }) => None,
        Err(error) => panic!("{} starts: {error}", config.name),
    })
    .await;
    let addresses = (server.client_address(), server.http_address(), server.peer_address());
    (config.client_listen, config.http_listen, config.peer_listen) = addresses;
    let (end, told) = tokio::sync::oneshot::channel();
    let ended = tokio::spawn(async move {
        server.run_until(async { drop(told.await) }).await.expect("the node does not fail");
    });
    Running { config, end, ended }
}

/// A node on free ports of loopback.
pub(crate) fn config(name: &str, begin: Begin) -> Config {
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        name: name.to_owned(),
        begin,
        client_listen: free,
        http_listen: free,
        peer_listen: free,
        ..Config::default()
    }
}

/// A cluster of one, in memory.
pub(crate) async fn one_node() -> Server {
    let server = Server::start(config("alone", Begin::Found)).await.expect("the node starts");
    soon("it leads", server.wait_until_ready()).await;
    server
}

pub(crate) fn channel(address: impl std::fmt::Display) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy()
}

pub(crate) async fn status_of(address: impl std::fmt::Display) -> Result<v1::GetStatusResponse, Status> {
    let answer = ObserveServiceClient::new(channel(address)).get_status(v1::GetStatusRequest {}).await?;
    Ok(answer.into_inner())
}

/// A node's answer over HTTP, with its head.
pub(crate) async fn get(address: SocketAddr, path: &str) -> String {
    ask_http(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")).await
}

/// The answer to a request over HTTP that closes its connection.
pub(crate) async fn ask_http(address: SocketAddr, ask: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::TcpStream::connect(address).await.expect("the node listens");
    socket.write_all(ask.as_bytes()).await.expect("the node reads");
    let mut answer = String::new();
    soon("HTTP answers", socket.read_to_string(&mut answer)).await.expect("text");
    answer
}

/// The value of a metric at `/metrics`.
pub(crate) async fn metric(address: SocketAddr, name: &str) -> u64 {
    let text = get(address, "/metrics").await;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} is missing in {text}"))
}

/// A stream, and what it has received.
pub(crate) struct Client {
    to_server: mpsc::Sender<v1::ClientMessage>,
    from_server: Streaming<v1::ServerMessage>,
    pub(crate) hello: v1::Hello,
    /// Messages that came after the hello.
    pub(crate) messages: u64,
    waiting: std::collections::VecDeque<Heard>,
}

/// One answer, push or refusal of the server.
#[derive(Debug)]
pub(crate) enum Heard {
    Answer { index: u64, stamp_ms: u64, answer: api::Answer },
    Push { index: u64, push: Push },
    NotTaken(v1::NotTaken),
}

impl Client {
    pub(crate) async fn connect(address: impl std::fmt::Display) -> Result<Client, Status> {
        Client::connect_as("tests", channel(address)).await
    }

    /// A stream of the client with this name, on a connection that may be shared.
    pub(crate) async fn connect_as(who: &str, channel: Channel) -> Result<Client, Status> {
        Client::connect_to(who, channel, false).await
    }

    /// A stream of the efficiency tier.
    pub(crate) async fn connect_efficiency(address: impl std::fmt::Display) -> Result<Client, Status> {
        Client::connect_to("tests", channel(address), true).await
    }

    async fn connect_to(who: &str, channel: Channel, efficiency: bool) -> Result<Client, Status> {
        let (to_server, outgoing) = mpsc::channel(64);
        let mut locks = LockServiceClient::new(channel);
        let mut request = tonic::Request::new(ReceiverStream::new(outgoing));
        request.metadata_mut().insert("fencepost-client", who.parse().expect("a plain name"));
        let call =
            async { if efficiency { locks.connect_efficiency(request).await } else { locks.connect(request).await } };
        let mut from_server = soon("the server answers", call).await?.into_inner();
        let first = soon("it says hello", from_server.message()).await?.expect("a first message");
        let hello = first.hello.expect("the first message says hello");
        Ok(Client { to_server, from_server, hello, messages: 0, waiting: Default::default() })
    }

    pub(crate) async fn say(&self, message: v1::ClientMessage) {
        self.to_server.send(message).await.expect("the stream is open");
    }

    /// What the server says next.
    pub(crate) async fn hear(&mut self) -> Result<Heard, Status> {
        while self.waiting.is_empty() {
            let message = soon("the server says something", self.from_server.message()).await?;
            let message = message.ok_or_else(|| Status::ok("the stream ended"))?;
            self.messages += 1;
            for v1::Decided { index, stamp_ms, answers, pushes, .. } in message.decided {
                for answer in answers {
                    let answer = api::answer_from_wire(answer).expect("a known answer");
                    self.waiting.push_back(Heard::Answer { index, stamp_ms, answer });
                }
                for push in pushes {
                    let push = api::push_from_wire(push).expect("a known push");
                    self.waiting.push_back(Heard::Push { index, push });
                }
            }
            self.waiting.extend(message.not_taken.into_iter().map(Heard::NotTaken));
        }
        Ok(self.waiting.pop_front().expect("it is not empty"))
    }

    /// What has come already, without waiting.
    pub(crate) fn heard_already(&mut self) -> impl Iterator<Item = Heard> {
        self.waiting.drain(..)
    }

    /// The outcome of the next answer. Panics if something else comes first.
    pub(crate) async fn outcome(&mut self) -> Outcome {
        match self.hear().await.expect("the stream is open") {
            Heard::Answer { answer, .. } => answer.outcome,
            other => panic!("not an answer: {other:?}"),
        }
    }

    /// The end of a wait, which must come next.
    pub(crate) async fn wait_end(&mut self) -> (RequestNumber, Outcome) {
        match self.hear().await.expect("the stream is open") {
            Heard::Push { push: Push::Ended { number, outcome, .. }, .. } => (number, outcome),
            other => panic!("not the end of a wait: {other:?}"),
        }
    }

    pub(crate) async fn not_taken(&mut self) -> v1::NotTaken {
        match self.hear().await.expect("the stream is open") {
            Heard::NotTaken(not_taken) => not_taken,
            other => panic!("not a refusal: {other:?}"),
        }
    }

    /// Opens a session and waits until it is open.
    pub(crate) async fn open(&mut self, session: u128, ttl_ms: u64) {
        self.say(v1::ClientMessage { opens: vec![open(session, ttl_ms)], ..Default::default() }).await;
        assert_eq!(self.outcome().await, Outcome::Opened { epoch: Epoch(1) });
    }

    pub(crate) async fn ask(&mut self, session: u128, epoch: u64, number: u64, action: Action) -> Outcome {
        let requests = vec![request(session, epoch, number, action)];
        self.say(v1::ClientMessage { requests, ..Default::default() }).await;
        self.outcome().await
    }
}

/// The secret that the tests use for a session.
pub(crate) fn secret(session: u128) -> [u8; 32] {
    let mut secret = [7; 32];
    secret[..16].copy_from_slice(&session.to_le_bytes());
    secret
}

pub(crate) fn open(session: u128, ttl_ms: u64) -> v1::OpenSession {
    let (session_high, session_low) = api::halves(session);
    let secret = secret(session).to_vec();
    v1::OpenSession { session_high, session_low, secret, ttl_ms, metadata: Vec::new() }
}

/// An open with another secret than the session's own.
pub(crate) fn open_with(session: u128, ttl_ms: u64, secret: &[u8]) -> v1::OpenSession {
    let mut open = open(session, ttl_ms);
    open.secret = secret.to_vec();
    open
}

/// An open with this many bytes of metadata.
pub(crate) fn open_about(session: u128, ttl_ms: u64, metadata_bytes: usize) -> v1::OpenSession {
    let mut open = open(session, ttl_ms);
    open.metadata = vec![0; metadata_bytes];
    open
}

pub(crate) fn attach(session: u128, seen_mark: u64) -> v1::AttachSession {
    let seen = Seen { mark: seen_mark, ..Seen::default() };
    api::attach_to_wire(SessionId(session), &secret(session).into(), &seen)
}

pub(crate) fn request(session: u128, epoch: u64, number: u64, action: Action) -> v1::Request {
    let (session, epoch, number) = (SessionId(session), Epoch(epoch), RequestNumber(number));
    api::request_to_wire(&Request { session, epoch, number, seen: Seen::default(), action })
}

pub(crate) fn lock(name: &str, wait: Wait) -> Action {
    let lock = Lock { name: Name::new(name).expect("a plain name"), mode: LockMode::Exclusive };
    Action::Acquire(Acquire { locks: Locks::from_buf([lock]), owner: None, wait, terms: Terms::default() })
}

pub(crate) fn token(outcome: &Outcome) -> Token {
    match outcome {
        Outcome::Granted { token, .. } => *token,
        other => panic!("not granted: {other:?}"),
    }
}
