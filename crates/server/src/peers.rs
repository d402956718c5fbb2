//! The way to the other nodes: one stream to each, which this node opened, and a call of its own for each snapshot.
//!
//! Whatever cannot be sent at once is dropped, as a network would: consensus sends again. Who the peers are is read from the
//! replicated list of members; a node that is new and has no list yet answers to where it was talked to from.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fencepost_replica::{GroupId, LogPosition, Message};
use fencepost_wire::{Member, PeerMessage, api, encode_peer, v1};
use futures_core::Stream;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};

use crate::bounds::{PEER_MESSAGE_BYTES_MAX, PEER_OUTBOX_BYTES_MAX, SNAPSHOT_PIECE_BYTES};
use crate::engine::Shared;
use crate::generated::peer_service_client::PeerServiceClient;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A peer that does not answer for so long is dialled anew.
const SILENCE_MAX: Duration = Duration::from_secs(5);
const RECONNECT_WAIT: Duration = Duration::from_millis(200);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(120);

/// Who this node is, to its peers.
#[derive(Clone, Debug)]
pub(crate) struct Myself {
    pub(crate) group: GroupId,
    pub(crate) node: u64,
    pub(crate) peer_address: String,
}

impl Myself {
    fn hello(&self, to: u64) -> v1::PeerHello {
        let (cluster_high, cluster_low) = api::halves(self.group.cluster);
        v1::PeerHello { cluster_high, cluster_low, from: self.node, to, peer_address: self.peer_address.clone() }
    }

    fn encode(&self, message: Message) -> Option<Vec<u8>> {
        let GroupId { cluster, group } = self.group;
        match encode_peer(&PeerMessage { cluster, group, message }) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                tracing::error!(%error, "a message of consensus has no form for peers: it is dropped");
                None
            }
        }
    }
}

/// All peers.
pub(crate) struct Peers {
    myself: Myself,
    peers: BTreeMap<u64, Peer>,
    jobs: Vec<Job>,
}

struct Peer {
    address: String,
    outbox: PeerOutbox,
}

/// Something that takes longer than a turn.
pub(crate) enum Job {
    Talk { myself: Myself, node: u64, address: String, outbox: PeerOutbox },
    Snapshot { myself: Myself, node: u64, address: String, message: Message, position: LogPosition },
}

impl Peers {
    pub(crate) fn new(myself: Myself) -> Peers {
        Peers { myself, peers: BTreeMap::new(), jobs: Vec::new() }
    }

    /// What is to be run beside the turns.
    pub(crate) fn take_jobs(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }

    /// The members are now these: new ones are talked to, those that went are not any more.
    pub(crate) fn follow(&mut self, members: impl Iterator<Item = Member>) {
        let members: BTreeMap<u64, Member> = members.map(|member| (member.node(), member)).collect();
        self.peers.retain(|node, peer| {
            let stays = members.get(node).is_some_and(|member| member.peer_address() == peer.address);
            if !stays {
                peer.outbox.close();
            }
            stays
        });
        for (node, member) in members {
            if !self.peers.contains_key(&node) {
                self.begin(node, member.peer_address().to_owned());
            }
        }
    }

    /// Somebody talked to us: that is where it can be answered, if we know nothing better.
    pub(crate) fn met(&mut self, node: u64, address: &str) {
        if node != self.myself.node && !self.peers.contains_key(&node) {
            self.begin(node, address.to_owned());
        }
    }

    fn begin(&mut self, node: u64, address: String) {
        let outbox = PeerOutbox::default();
        let (myself, to) = (self.myself.clone(), address.clone());
        self.jobs.push(Job::Talk { myself, node, address: to, outbox: outbox.clone() });
        self.peers.insert(node, Peer { address, outbox });
    }

    pub(crate) fn send(&mut self, message: Message) {
        if let Some(peer) = self.peers.get(&message.to)
            && let Some(bytes) = self.myself.encode(message)
        {
            peer.outbox.push(bytes);
        }
    }

    pub(crate) fn send_snapshot(&mut self, message: Message, position: LogPosition) {
        let node = message.to;
        // Without an address it counts as lost; consensus asks again.
        let address = self.peers.get(&node).map(|peer| peer.address.clone()).unwrap_or_default();
        self.jobs.push(Job::Snapshot { myself: self.myself.clone(), node, address, message, position });
    }
}

impl Job {
    pub(crate) async fn run(self, shared: Shared) {
        match self {
            Job::Talk { myself, node, address, outbox } => talk(&shared, &myself, node, &address, outbox).await,
            Job::Snapshot { myself, node, address, message, position } => {
                let sent = send_snapshot(&shared, &myself, node, &address, message, position).await;
                if let Err(reason) = &sent {
                    tracing::warn!(peer = format!("{node:x}"), %reason, "a snapshot could not be sent: it is tried again");
                }
                shared.engine().node_mut().replica_mut().handle_snapshot_sent(node, sent.is_ok());
                shared.ring();
            }
        }
    }
}

fn dial(address: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(SILENCE_MAX)
        .keep_alive_timeout(SILENCE_MAX)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20);
    Ok(endpoint.connect_lazy())
}

/// Keeps a stream to a peer for as long as it is a member.
async fn talk(shared: &Shared, myself: &Myself, node: u64, address: &str, outbox: PeerOutbox) {
    let mut was_reachable = true;
    while !outbox.is_closed() {
        let said = match dial(address) {
            Ok(channel) => {
                let mut client = PeerServiceClient::new(channel);
                let hello = v1::DeliverRequest { hello: Some(myself.hello(node)), messages: Vec::new() };
                let stream = tokio_stream::once(hello).chain(outbox.open());
                client.deliver(stream).await.map(|_| ()).map_err(|status| status.message().to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        outbox.shut();
        if outbox.is_closed() {
            return;
        }
        // Said once, not five times a second.
        if let Err(reason) = said
            && std::mem::replace(&mut was_reachable, false)
        {
            tracing::warn!(peer = format!("{node:x}"), address, %reason, "a peer cannot be reached: it is tried again");
        }
        shared.engine().node_mut().replica_mut().handle_unreachable(node);
        tokio::time::sleep(RECONNECT_WAIT).await;
    }
}

async fn send_snapshot(
    shared: &Shared,
    myself: &Myself,
    node: u64,
    address: &str,
    message: Message,
    position: LogPosition,
) -> Result<(), String> {
    let snapshots = shared.engine().node().snapshots();
    let read =
        tokio::task::spawn_blocking(move || snapshots.read(position)).await.map_err(|error| error.to_string())?;
    let bytes = read.map_err(|error| error.to_string())?;
    let message = myself.encode(message).ok_or("it has no form")?;
    let first = v1::InstallSnapshotRequest { hello: Some(myself.hello(node)), message, ..Default::default() };
    let pieces: Vec<v1::InstallSnapshotRequest> = bytes
        .chunks(SNAPSHOT_PIECE_BYTES)
        .map(|piece| v1::InstallSnapshotRequest { data: piece.to_vec(), ..Default::default() })
        .collect();
    let mut client = PeerServiceClient::new(dial(address).map_err(|error| error.to_string())?)
        .max_encoding_message_size(PEER_MESSAGE_BYTES_MAX);
    let call = client.install_snapshot(tokio_stream::once(first).chain(tokio_stream::iter(pieces)));
    let sent = tokio::time::timeout(SNAPSHOT_TIMEOUT, call).await.map_err(|_| "it took too long")?;
    sent.map(|_| tracing::info!(peer = format!("{node:x}"), bytes = bytes.len(), "a snapshot was sent"))
        .map_err(|status| status.message().to_owned())
}

#[derive(Default)]
struct PeerPending {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Whether a stream takes from here. If not, what comes is dropped.
    is_open: bool,
    is_closed: bool,
    reader: Option<Waker>,
}

/// What waits to go to one peer.
#[derive(Clone, Default)]
pub(crate) struct PeerOutbox(Arc<Mutex<PeerPending>>);

impl PeerOutbox {
    fn push(&self, message: Vec<u8>) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !pending.is_open || pending.bytes > PEER_OUTBOX_BYTES_MAX {
            return;
        }
        pending.bytes += message.len();
        pending.messages.push_back(message);
        if let Some(reader) = pending.reader.take() {
            reader.wake();
        }
    }

    /// Begins to take messages, for the stream that is returned.
    fn open(&self) -> PeerOutbox {
        self.change(|pending| pending.is_open = true);
        self.clone()
    }

    /// The stream is gone, and what waited for it.
    fn shut(&self) {
        self.change(|pending| {
            *pending = PeerPending { is_closed: pending.is_closed, ..PeerPending::default() };
        });
    }

    /// The peer is no member any more.
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
        // Whoever is no member any more still gets what was said before: also that it is none.
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
