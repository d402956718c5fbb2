//! Sends messages to the other nodes: one framed connection to each, opened by this node, and one gRPC call per snapshot.
//!
//! A message that cannot be sent at once is dropped, as a network may do: consensus sends again. The peers come from the replicated
//! list of members. A new node has no list yet: it sends its answers to the address that the caller gave in its call.
//!
//! With TLS a member is identified by its name: a called node must show a certificate with the name of the member that was called, and
//! a calling node one with the name of the member that it claims to be. A name that is not on the list is refused, unless another
//! member vouches for it: see `docs/decisions/0014-peers-by-name.md`.

use fencepost_core::{KnownVersions, LogPosition};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fencepost_replica::{GroupId, Message, PeerMessage, encode_peer};
use fencepost_wire::bounds::MEMBERS_MAX;
use fencepost_wire::{Member, PEER_GREETING, ShownNode, api, v1};
use futures_core::Stream;
use futures_util::{Sink, SinkExt};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};

use crate::bounds::{PEER_ANSWER_BYTES_MAX, PEER_MESSAGE_BYTES_MAX, PEER_OUTBOX_BYTES_MAX, SNAPSHOT_PIECE_BYTES};
use crate::door::Connection;
use crate::engine::Shared;
use crate::frames::{Frames, frames};
use crate::peer_service::UNKNOWN_PEER;
use crate::tls::Calling;
use fencepost_wire::grpc::peer_service_client::PeerServiceClient;

/// The version of this software, as peers and observers see it.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Silence of a peer after which this node connects again.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const RECONNECT_WAIT: Duration = Duration::from_millis(200);
/// How long another node may refuse this one because it does not know it yet, before this node warns. A node that joins asks for the list of
/// members once a second.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(120);

/// What this node says about itself to its peers.
#[derive(Clone, Debug)]
pub(crate) struct Myself {
    pub(crate) group: GroupId,
    pub(crate) node: u64,
    pub(crate) peer_address: String,
    /// The format versions that it knows.
    pub(crate) known: KnownVersions,
    /// The TLS of its calls. `None` calls in plain text, and believes every caller's claim about itself.
    pub(crate) calling: Option<Calling>,
}

impl Myself {
    fn hello(&self, to: u64) -> v1::PeerHello {
        let (cluster_high, cluster_low) = api::halves(self.group.cluster);
        let (peer_address, version) = (self.peer_address.clone(), VERSION.to_owned());
        let (oldest_format, newest_format) = (self.known.oldest().get(), self.known.newest().get());
        let from = self.node;
        v1::PeerHello { cluster_high, cluster_low, from, to, peer_address, version, oldest_format, newest_format }
    }

    fn encode(&self, message: Message) -> Option<Vec<u8>> {
        let GroupId { cluster, group } = self.group;
        match encode_peer(&PeerMessage { cluster, group, message }) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::error!(%error, "a consensus message cannot be encoded for peers: it is dropped");
                None
            }
        }
    }
}

/// All peers.
pub(crate) struct Peers {
    myself: Myself,
    peers: BTreeMap<u64, Peer>,
    /// The name of each member, from the list.
    names: BTreeMap<u64, String>,
    /// The applied index when the list was last read.
    list_read_at: u64,
    /// Names of members, as another member reported them. Used while this node's own list is missing or behind.
    /// Invariant: emptied when the list changes, so that a removed member stays removed.
    vouched: BTreeMap<u64, String>,
    /// The software version of each peer, as the peer reported it. Invariant: when there are more than [`MEMBERS_MAX`], those of nodes
    /// that are not members are forgotten, since without TLS any caller can say hello under any id.
    versions: BTreeMap<u64, String>,
    /// Notified when this node has refused a caller that may be a member by now.
    strangers: Arc<Notify>,
    jobs: Vec<Job>,
    sent: Sent,
}

/// What was put into the send buffers of peers and left this node, unless a connection broke. Dropped messages are not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Consensus messages and snapshots. One frame may carry several messages.
    pub(crate) messages: u64,
    /// Bytes of these, without framing and TLS.
    pub(crate) bytes: u64,
}

struct Peer {
    way: Way,
    outbox: PeerOutbox,
}

/// The address of a peer, and the name that its certificate must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    address: String,
    name: Option<String>,
}

/// Work that takes longer than a turn. It runs in its own task.
pub(crate) enum Job {
    Talk { myself: Myself, node: u64, way: Way, outbox: PeerOutbox },
    Snapshot { myself: Myself, node: u64, way: Way, message: Message, position: LogPosition },
}

impl Peers {
    pub(crate) fn new(myself: Myself) -> Peers {
        Peers {
            myself,
            peers: BTreeMap::new(),
            names: BTreeMap::new(),
            list_read_at: 0,
            vouched: BTreeMap::new(),
            versions: BTreeMap::new(),
            strangers: Arc::default(),
            jobs: Vec::new(),
            sent: Sent::default(),
        }
    }

    /// The jobs to start.
    pub(crate) fn take_jobs(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }

    /// The list of members at this applied index. Connects to new members, and closes the connections to removed ones.
    pub(crate) fn follow(&mut self, applied_index: u64, members: impl Iterator<Item = Member>) {
        let members: BTreeMap<u64, Member> = members.map(|member| (member.node(), member)).collect();
        self.names = members.values().map(|member| (member.node(), member.name().to_owned())).collect();
        self.list_read_at = applied_index;
        self.vouched.clear();
        let way =
            |member: &Member| Way { address: member.peer_address().to_owned(), name: Some(member.name().to_owned()) };
        self.peers.retain(|node, peer| {
            let stays = members.get(node).is_some_and(|member| way(member) == peer.way);
            if !stays {
                peer.outbox.close();
            }
            stays
        });
        for (node, member) in &members {
            if !self.peers.contains_key(node) {
                self.begin(*node, way(member));
            }
        }
    }

    /// A node has called, and named this address. It is used if the list has no address for that node.
    pub(crate) fn met(&mut self, node: u64, address: &str) {
        if node != self.myself.node && !self.peers.contains_key(&node) {
            let name = self.vouched.get(&node).cloned();
            self.begin(node, Way { address: address.to_owned(), name });
        }
    }

    /// A peer has reported its software version.
    pub(crate) fn note_version(&mut self, node: u64, version: String) {
        self.versions.insert(node, version);
        if self.versions.len() > MEMBERS_MAX {
            self.versions.retain(|node, _| self.names.contains_key(node));
        }
    }

    /// The software version of a node, if it is known.
    pub(crate) fn version(&self, node: u64) -> Option<&str> {
        if node == self.myself.node { Some(VERSION) } else { self.versions.get(&node).map(String::as_str) }
    }

    /// Whether peers must show a certificate with their name.
    pub(crate) fn must_show_names(&self) -> bool {
        self.myself.calling.is_some()
    }

    /// Whether a certificate with these names belongs to any member. If not, this node asks other members for their list.
    pub(crate) fn knows(&self, names: &[String]) -> bool {
        let is_known = self.names.values().chain(self.vouched.values()).any(|name| names.contains(name));
        self.heed(is_known)
    }

    /// Whether a certificate with these names belongs to this member. If not, this node asks other members for their list.
    pub(crate) fn knows_as(&self, node: u64, names: &[String]) -> bool {
        let is_known =
            [&self.names, &self.vouched].into_iter().filter_map(|it| it.get(&node)).any(|it| names.contains(it));
        self.heed(is_known)
    }

    fn heed(&self, is_known: bool) -> bool {
        if !is_known {
            self.strangers.notify_one();
        }
        is_known
    }

    /// Notified when this node has refused a caller that may be a member by now.
    pub(crate) fn strangers(&self) -> Arc<Notify> {
        self.strangers.clone()
    }

    /// Whether a node that has applied the log this far knows the members at least as well as this node. A node that is behind would
    /// vouch for removed members.
    pub(crate) fn may_vouch(&self, applied_index: u64) -> bool {
        applied_index >= self.list_read_at
    }

    /// A member that has applied the log this far reports its list of members.
    pub(crate) fn vouch(&mut self, applied_index: u64, members: impl Iterator<Item = (u64, String)>) {
        // This node's own list may have changed since the question was sent.
        if !self.may_vouch(applied_index) {
            return;
        }
        self.vouched = members.filter(|(node, name)| *node != self.myself.node && !name.is_empty()).collect();
    }

    fn begin(&mut self, node: u64, way: Way) {
        let outbox = PeerOutbox::default();
        self.jobs.push(Job::Talk { myself: self.myself.clone(), node, way: way.clone(), outbox: outbox.clone() });
        self.peers.insert(node, Peer { way, outbox });
    }

    pub(crate) fn send(&mut self, message: Message) {
        if let Some(peer) = self.peers.get(&message.to)
            && let Some(bytes) = self.myself.encode(message)
        {
            let length = bytes.len();
            if peer.outbox.push(bytes) {
                self.count(length);
            }
        }
    }

    pub(crate) fn sent(&self) -> Sent {
        self.sent
    }

    fn count(&mut self, bytes: usize) {
        self.sent.messages += 1;
        self.sent.bytes += bytes as u64;
    }

    pub(crate) fn send_snapshot(&mut self, message: Message, position: LogPosition) {
        let node = message.to;
        // Without an address the snapshot counts as lost; consensus sends it again.
        let way = self.peers.get(&node).map(|peer| peer.way.clone()).unwrap_or_default();
        self.jobs.push(Job::Snapshot { myself: self.myself.clone(), node, way, message, position });
    }
}

impl Job {
    pub(crate) async fn run(self, shared: Shared) {
        match self {
            Job::Talk { myself, node, way, outbox } => talk(&shared, &myself, node, &way, outbox).await,
            Job::Snapshot { myself, node, way, message, position } => {
                let sent = send_snapshot(&shared, &myself, node, &way, message, position).await;
                match &sent {
                    Ok(bytes) => shared.engine().peers.count(*bytes),
                    Err(reason) => {
                        tracing::warn!(peer = %ShownNode(node), %reason, "a snapshot could not be sent: this node tries again");
                    }
                }
                shared.engine().node_mut().replica_mut().handle_snapshot_sent(node, sent.is_ok());
                shared.ring();
            }
        }
    }
}

const UNKNOWN_NAME: &str = "its name is not known, so its certificate cannot be checked";

/// A channel for a gRPC call.
fn dial(myself: &Myself, way: &Way) -> Result<Channel, String> {
    let scheme = if myself.calling.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{}", way.address))
        .map_err(|error| error.to_string())?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(SILENCE_MAX)
        .keep_alive_timeout(SILENCE_MAX);
    let endpoint = match (&myself.calling, &way.name) {
        (None, _) => endpoint,
        (Some(calling), Some(name)) => calling.member(endpoint, name)?,
        (Some(_), None) => return Err(UNKNOWN_NAME.to_owned()),
    };
    Ok(endpoint.connect_lazy())
}

/// Why a connection to a peer failed or ended.
struct Lost {
    reason: String,
    /// The peer does not know this node as a member. If it joins, it will soon.
    is_stranger: bool,
}

impl From<v1::DeliverResponse> for Lost {
    fn from(answer: v1::DeliverResponse) -> Lost {
        Lost { is_stranger: answer.reason == UNKNOWN_PEER, reason: answer.message }
    }
}

impl From<std::io::Error> for Lost {
    fn from(error: std::io::Error) -> Lost {
        match error.kind() {
            // The TLS library has a text about its own documentation for a peer that was killed.
            std::io::ErrorKind::UnexpectedEof => "it hung up".to_owned().into(),
            _ => error.to_string().into(),
        }
    }
}

impl From<String> for Lost {
    fn from(reason: String) -> Lost {
        Lost { reason, is_stranger: false }
    }
}

/// Keeps a connection to a peer until the peer's outbox is closed.
async fn talk(shared: &Shared, myself: &Myself, node: u64, way: &Way, outbox: PeerOutbox) {
    let mut was_reachable = true;
    let mut stranger_since: Option<Instant> = None;
    while !outbox.is_closed() {
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect(myself, way)).await;
        let said = match connected.unwrap_or_else(|_| Err("it did not answer in time".to_owned())) {
            Ok(connection) => say(connection, myself.hello(node), outbox.open()).await,
            Err(reason) => Err(reason.into()),
        };
        outbox.shut();
        if outbox.is_closed() {
            return;
        }
        if let Err(Lost { reason, is_stranger }) = said {
            let (id, address) = (ShownNode(node), &way.address);
            let peer = way.name.as_ref().map_or_else(|| id.to_string(), |name| format!("{name} ({id})"));
            let since = is_stranger.then(|| *stranger_since.get_or_insert_with(Instant::now));
            stranger_since = since;
            if since.is_some_and(|since| since.elapsed() < STRANGER_PATIENCE) {
                tracing::debug!(peer, address, reason, "a peer does not know this node yet: this node tries again");
            } else if std::mem::replace(&mut was_reachable, false) {
                // Logged once, not five times a second.
                tracing::warn!(peer, address, reason, "a peer cannot be reached: this node tries again");
            }
        }
        shared.engine().node_mut().replica_mut().handle_unreachable(node);
        tokio::time::sleep(RECONNECT_WAIT).await;
    }
}

async fn connect(myself: &Myself, way: &Way) -> Result<Connection, String> {
    let mut socket = TcpStream::connect(&way.address).await.map_err(|error| error.to_string())?;
    socket.set_nodelay(true).map_err(|error| error.to_string())?;
    let connection = match (&myself.calling, &way.name) {
        (None, _) => {
            socket.write_all(&PEER_GREETING).await.map_err(|error| error.to_string())?;
            Connection::Plain(socket)
        }
        (Some(calling), Some(name)) => Connection::Tls(Box::new(calling.greet_member(socket, name).await?)),
        (Some(_), None) => return Err(UNKNOWN_NAME.to_owned()),
    };
    connection.notice_silence(SILENCE_MAX);
    Ok(connection)
}

/// Sends the messages of the outbox until the connection or the outbox is closed. The peer answers only to say why it hangs up.
async fn say(connection: Connection, hello: v1::PeerHello, mut outbox: PeerOutbox) -> Result<(), Lost> {
    let mut frames = frames::<v1::DeliverResponse>(connection, PEER_ANSWER_BYTES_MAX);
    let Err(lost) = send_all(&mut frames, hello, &mut outbox).await else { return Ok(()) };
    // A failed write can be seen before the reason that the peer gave for hanging up.
    match tokio::time::timeout(CONNECT_TIMEOUT, frames.next()).await {
        Ok(Some(Ok(answer))) => Err(answer.into()),
        _ => Err(lost),
    }
}

async fn send_all(
    frames: &mut Frames<v1::DeliverResponse>,
    hello: v1::PeerHello,
    outbox: &mut PeerOutbox,
) -> Result<(), Lost> {
    let first = v1::DeliverRequest { hello: Some(hello), messages: Vec::new() };
    frames.feed(first).await?;
    poll_fn(|context| {
        loop {
            let mut ways = Pin::new(&mut *frames);
            if let Poll::Ready(answer) = ways.as_mut().poll_next(context) {
                return Poll::Ready(Err(match answer {
                    Some(Ok(answer)) => answer.into(),
                    Some(Err(error)) => error.into(),
                    None => "it hung up".to_owned().into(),
                }));
            }
            let ready = Sink::<v1::DeliverRequest>::poll_ready(ways.as_mut(), context);
            let next = match ready.map_err(Lost::from)? {
                Poll::Ready(()) => Pin::new(&mut *outbox).poll_next(context),
                Poll::Pending => return Poll::Pending,
            };
            match next {
                Poll::Ready(Some(messages)) => ways.start_send(messages)?,
                Poll::Ready(None) | Poll::Pending => {
                    let flushed = Sink::<v1::DeliverRequest>::poll_flush(ways, context);
                    let flushed = flushed.map_err(Lost::from)?;
                    // The outbox is closed: done when everything is flushed.
                    return if next.is_ready() { flushed.map(Ok) } else { Poll::Pending };
                }
            }
        }
    })
    .await
}

async fn send_snapshot(
    shared: &Shared,
    myself: &Myself,
    node: u64,
    way: &Way,
    message: Message,
    position: LogPosition,
) -> Result<usize, String> {
    let snapshots = shared.engine().node().snapshots();
    let read =
        tokio::task::spawn_blocking(move || snapshots.read(position)).await.map_err(|error| error.to_string())?;
    let bytes = read.map_err(|error| error.to_string())?;
    let message = myself.encode(message).ok_or("its message cannot be encoded")?;
    let first = v1::InstallSnapshotRequest { hello: Some(myself.hello(node)), message, ..Default::default() };
    let pieces: Vec<v1::InstallSnapshotRequest> = bytes
        .chunks(SNAPSHOT_PIECE_BYTES)
        .map(|piece| v1::InstallSnapshotRequest { data: piece.to_vec(), ..Default::default() })
        .collect();
    let mut client = PeerServiceClient::new(dial(myself, way)?).max_encoding_message_size(PEER_MESSAGE_BYTES_MAX);
    let call = client.install_snapshot(tokio_stream::once(first).chain(tokio_stream::iter(pieces)));
    let sent = tokio::time::timeout(SNAPSHOT_TIMEOUT, call).await.map_err(|_| "it took too long")?;
    sent.map_err(|status| reason(&status))?;
    tracing::info!(peer = %ShownNode(node), bytes = bytes.len(), "a snapshot was sent");
    Ok(bytes.len())
}

/// The message of a status and of its causes. A refused certificate is the last cause.
pub(crate) fn reason(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(inner) = source {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = inner.source();
    }
    text
}

#[derive(Default)]
struct PeerPending {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    /// A connection takes messages from here. If not, new messages are dropped.
    is_open: bool,
    /// The peer is no longer a member.
    is_closed: bool,
    reader: Option<Waker>,
}

/// The send buffer of one peer.
#[derive(Clone, Default)]
pub(crate) struct PeerOutbox(Arc<Mutex<PeerPending>>);

impl PeerOutbox {
    /// Adds a message. Returns false if it was dropped: there is no connection, or the buffer is full.
    fn push(&self, message: Vec<u8>) -> bool {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !pending.is_open || pending.bytes > PEER_OUTBOX_BYTES_MAX {
            return false;
        }
        pending.bytes += message.len();
        pending.messages.push_back(message);
        if let Some(reader) = pending.reader.take() {
            reader.wake();
        }
        true
    }

    /// Begins to take messages, for the returned stream.
    fn open(&self) -> PeerOutbox {
        self.change(|pending| pending.is_open = true);
        self.clone()
    }

    /// The connection is gone. Drops the messages that waited for it.
    fn shut(&self) {
        self.change(|pending| {
            *pending = PeerPending { is_closed: pending.is_closed, ..PeerPending::default() };
        });
    }

    /// The peer is no longer a member.
    fn close(&self) {
        self.change(|pending| pending.is_closed = true);
    }

    fn is_closed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_closed
    }

    fn change(&self, change: impl FnOnce(&mut PeerPending)) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = pending.reader.take();
        change(&mut pending);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Stream for PeerOutbox {
    type Item = v1::DeliverRequest;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::DeliverRequest>> {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A removed member still gets the queued messages, including the one that tells it so.
        if !pending.is_open || (pending.is_closed && pending.messages.is_empty()) {
            return Poll::Ready(None);
        }
        if pending.messages.is_empty() {
            pending.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let mut messages = Vec::with_capacity(pending.messages.len());
        let mut bytes = 0;
        while let Some(message) =
            pending.messages.pop_front_if(|message| bytes == 0 || bytes + message.len() < PEER_MESSAGE_BYTES_MAX / 2)
        {
            bytes += message.len();
            messages.push(message);
        }
        pending.bytes -= bytes;
        Poll::Ready(Some(v1::DeliverRequest { hello: None, messages }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn myself(group: GroupId) -> Myself {
        let (peer_address, known) = ("a:1".to_owned(), KnownVersions::THIS_BUILD);
        Myself { group, node: 1, peer_address, known, calling: None }
    }

    #[test]
    fn a_name_counts_while_the_list_has_it_or_a_member_that_is_not_behind_vouches_for_it() {
        let group = GroupId { cluster: 1, group: 1 };
        let mut peers = Peers::new(myself(group));
        let member = |node, name| Member::new(node, name, "b:1", "b:2").expect("a good member");
        let names = |name: &str| vec![name.to_owned()];
        let says = |node, name: &str| std::iter::once((node, name.to_owned()));
        assert!(!peers.knows(&names("n2")), "without a list no name is known");
        assert!(!peers.knows(&[]));

        peers.follow(5, [member(2, "n2")].into_iter());
        assert!(peers.knows(&names("n2")) && peers.knows_as(2, &names("n2")));
        assert!(!peers.knows_as(3, &names("n2")) && !peers.knows_as(2, &names("n3")));
        peers.vouch(4, says(3, "n3"));
        assert!(!peers.knows_as(3, &names("n3")), "a member that is behind does not know which members were removed");
        peers.vouch(5, says(3, "n3"));
        assert!(peers.knows(&names("n3")) && peers.knows_as(3, &names("n3")));
        assert!(peers.knows_as(2, &names("n2")) && !peers.knows_as(2, &names("n3")));

        peers.follow(6, [member(2, "n2")].into_iter());
        assert!(!peers.knows(&names("n3")), "a new list replaces what was vouched for");
    }

    #[test]
    fn versions_of_members_are_kept_and_those_of_callers_under_other_ids_are_bounded() {
        let group = GroupId { cluster: 1, group: 1 };
        let mut peers = Peers::new(myself(group));
        peers.follow(5, std::iter::once(Member::new(2, "n2", "b:1", "b:2").expect("a good member")));
        peers.note_version(2, "1.2.3".to_owned());
        for stranger in 100..10_000 {
            peers.note_version(stranger, "9".repeat(64));
            assert!(peers.versions.len() <= MEMBERS_MAX);
        }
        assert_eq!((peers.version(1), peers.version(2)), (Some(VERSION), Some("1.2.3")));
    }
}
