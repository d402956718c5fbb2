//! Receives the messages of peers: consensus messages over frames, snapshots over gRPC.
//!
//! It checks that a caller belongs to this cluster and means this node. With TLS it also checks that the caller's certificate has the
//! name of the member that it claims to be, and that it sends only its own messages. The replica handles the messages.

use std::sync::Arc;

use fencepost_core::{FormatVersion, KnownVersions};
use fencepost_replica::decode_peer;
use fencepost_session::End;
use fencepost_wire::{ShownNode, api, v1};
use futures_util::SinkExt;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::StatusExt;

use crate::bounds::{PEER_MESSAGE_BYTES_MAX, PEER_VERSION_BYTES_MAX, SNAPSHOT_BYTES_MAX};
use crate::caller::OtherSide;
use crate::door::Connection;
use crate::engine::{Engine, Shared};
use crate::frames::{Frames, frames};
use crate::server::wait_until_closed;
use crate::status;
use fencepost_wire::grpc::peer_service_server::PeerService;

/// The reason for a caller whose certificate does not have the name of a member.
pub(crate) const UNKNOWN_PEER: &str = "UNKNOWN_PEER";

#[derive(Clone)]
pub(crate) struct PeerEdge {
    pub(crate) shared: Shared,
    pub(crate) closed: watch::Receiver<bool>,
}

/// The node at the other end of a connection.
struct Caller {
    /// The names in its certificate. `None` if peers need not show one.
    names: Option<Vec<String>>,
    node: u64,
}

impl PeerEdge {
    /// Checks the certificate before any message is read: it must have the name of a member.
    fn look_at(&self, side: Option<&OtherSide>) -> Result<Option<Vec<String>>, Status> {
        let engine = self.shared.engine();
        if !engine.peers.must_show_names() {
            return Ok(None);
        }
        let names = side.map(|side| side.names.to_vec()).unwrap_or_default();
        if engine.peers.knows(&names) { Ok(Some(names)) } else { Err(stranger(&names)) }
    }

    /// Checks the hello of a caller. It must belong to this cluster and mean this node, because an address may have moved to another
    /// node. And it must be the member that it claims to be.
    fn meet(&self, names: Option<Vec<String>>, hello: Option<v1::PeerHello>) -> Result<Caller, Status> {
        let hello = hello.ok_or_else(|| {
            status::reason(Code::InvalidArgument, "INVALID", "the first message of a peer must have `hello`")
        })?;
        let mut engine = self.shared.engine();
        let (group, me) = (engine.replica().group(), engine.replica().id());
        let cluster = api::whole(hello.cluster_high, hello.cluster_low);
        if cluster != group.cluster {
            let message = format!(
                "this is node {} of cluster {:032x}, and the caller is of cluster {cluster:032x}: check the addresses of the members",
                ShownNode(me),
                group.cluster
            );
            return Err(status::reason(Code::FailedPrecondition, "FOREIGN_CLUSTER", message));
        }
        if hello.to != me {
            let message = format!(
                "this is node {}, and the caller means node {}: check the addresses of the members",
                ShownNode(me),
                ShownNode(hello.to)
            );
            return Err(status::reason(Code::FailedPrecondition, "FOREIGN_NODE", message));
        }
        if hello.version.len() > PEER_VERSION_BYTES_MAX || hello.version.contains(char::is_control) {
            let message = format!("a version has at most {PEER_VERSION_BYTES_MAX} bytes and no control characters");
            return Err(status::reason(Code::InvalidArgument, "INVALID", message));
        }
        let known = versions(hello.oldest_format, hello.newest_format)?;
        let caller = Caller { names, node: hello.from };
        caller.check(&engine)?;
        engine.node_mut().replica_mut().handle_hello(hello.from, known);
        engine.peers.met(hello.from, &hello.peer_address);
        engine.peers.note_version(hello.from, hello.version);
        Ok(caller)
    }
}

/// The format versions that a node claims to know.
pub(crate) fn versions(oldest: u32, newest: u32) -> Result<KnownVersions, Status> {
    let known = FormatVersion::new(oldest).zip(FormatVersion::new(newest));
    known.and_then(|(oldest, newest)| KnownVersions::new(oldest, newest)).ok_or_else(|| {
        let message = format!(
            "a node claims to know the format versions {oldest} to {newest}: they count from 1, and the oldest comes first; start it \
             with a release of this project"
        );
        status::reason(Code::InvalidArgument, "INVALID", message)
    })
}

impl Caller {
    /// Checks that it is still the member that it claimed to be: members are removed while connections are open.
    fn check(&self, engine: &Engine) -> Result<(), Status> {
        match &self.names {
            Some(names) if !engine.peers.knows_as(self.node, names) => Err(stranger(names)),
            _ => Ok(()),
        }
    }

    /// Checks that a message is the caller's own.
    fn check_sender(&self, sender: u64) -> Result<(), Status> {
        if sender == self.node {
            return Ok(());
        }
        let (node, sender) = (ShownNode(self.node), ShownNode(sender));
        let message = format!("node {node} sent a message of node {sender}: a node sends only its own messages");
        Err(status::reason(Code::PermissionDenied, "FOREIGN_NAME", message))
    }
}

fn stranger(names: &[String]) -> Status {
    let message = format!(
        "the caller's certificate is for {names:?}, which does not match a member that this node knows: the caller needs a \
         certificate with its member's name. If it has one, this node has not heard of that member yet, and asks other nodes"
    );
    status::reason(Code::PermissionDenied, UNKNOWN_PEER, message)
}

fn bad(error: impl std::fmt::Display) -> Status {
    status::reason(Code::InvalidArgument, "INVALID", error.to_string())
}

impl PeerEdge {
    /// Serves a peer's framed connection until the peer hangs up or this node ends.
    pub(crate) async fn serve(self, connection: Connection) {
        let side = connection.other_side();
        let mut frames = frames::<v1::DeliverRequest>(connection, PEER_MESSAGE_BYTES_MAX);
        let refused = tokio::select! {
            taken = self.take_messages(&side, &mut frames) => taken.err(),
            // Without this, a connected peer would keep the node from ending.
            () = wait_until_closed(self.closed.clone()) => Some(status::of(End::shutting_down())),
        };
        if let Some(status) = refused {
            let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
            let why = v1::DeliverResponse { reason, message: status.message().to_owned() };
            // If this cannot be sent, the peer still sees that the connection is closed.
            let _ = frames.feed(why).await;
        }
        let _ = SinkExt::<v1::DeliverResponse>::close(&mut frames).await;
    }

    async fn take_messages(&self, side: &OtherSide, frames: &mut Frames<v1::DeliverRequest>) -> Result<(), Status> {
        let mut names = Some(self.look_at(Some(side))?);
        let mut caller = None;
        while let Some(delivered) = frames.next().await {
            let delivered = delivered.map_err(bad)?;
            if let Some(names) = names.take() {
                caller = Some(self.meet(names, delivered.hello)?);
            }
            let caller = caller.as_ref().expect("set with the first message");
            let mut engine = self.shared.engine();
            caller.check(&engine)?;
            let group = engine.replica().group();
            for bytes in &delivered.messages {
                let peer = decode_peer(bytes).map_err(|error| bad(error.problem()))?;
                if (peer.cluster, peer.group) != (group.cluster, group.group) {
                    return Err(status::reason(
                        Code::FailedPrecondition,
                        "FOREIGN_CLUSTER",
                        "a message of another group",
                    ));
                }
                caller.check_sender(peer.message.from)?;
                engine.node_mut().handle_message(peer.message);
            }
            drop(engine);
            self.shared.ring();
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl PeerService for PeerEdge {
    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::InstallSnapshotRequest>>,
    ) -> Result<Response<v1::InstallSnapshotResponse>, Status> {
        let names = self.look_at(request.extensions().get())?;
        let mut stream = request.into_inner();
        let first = stream.message().await?.ok_or_else(|| bad("the first message of a snapshot must have `hello`"))?;
        let caller = self.meet(names, first.hello)?;
        let peer = decode_peer(&first.message).map_err(|error| bad(error.problem()))?;
        caller.check_sender(peer.message.from)?;
        let mut bytes = first.data;
        while let Some(piece) = stream.message().await? {
            if bytes.len() + piece.data.len() > SNAPSHOT_BYTES_MAX {
                return Err(bad("the snapshot is larger than a node accepts"));
            }
            bytes.extend(piece.data);
        }
        tracing::info!(from = %ShownNode(peer.message.from), bytes = bytes.len(), "a snapshot was received");
        self.shared.engine().node_mut().handle_snapshot(peer.message, Arc::from(bytes));
        self.shared.ring();
        Ok(Response::new(v1::InstallSnapshotResponse {}))
    }
}
