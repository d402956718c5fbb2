//! What peers say to this node. With TLS they are who their certificates say they are, and speak for nobody else.

use std::sync::Arc;

use fencepost_core::{FormatVersion, KnownVersions};
use fencepost_replica::decode_peer;
use fencepost_session::End;
use fencepost_wire::{api, v1};
use futures_util::SinkExt;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::StatusExt;

use crate::bounds::{PEER_MESSAGE_BYTES_MAX, PEER_VERSION_BYTES_MAX, SNAPSHOT_BYTES_MAX};
use crate::door::{Connection, ShownNames};
use crate::engine::{Engine, Shared};
use crate::frames::{Frames, frames};
use crate::server::wait_until_closed;
use crate::status;
use fencepost_wire::grpc::peer_service_server::PeerService;

#[derive(Clone)]
pub(crate) struct PeerEdge {
    pub(crate) shared: Shared,
    pub(crate) closed: watch::Receiver<bool>,
}

/// Who talks on a stream.
struct Caller {
    /// The names of its certificate; none if peers need not show one.
    names: Option<Vec<String>>,
    node: u64,
}

impl PeerEdge {
    /// Whose certificate this is, before anything that came with it is read.
    fn look_at(&self, shown: Option<&ShownNames>) -> Result<Option<Vec<String>>, Status> {
        let engine = self.shared.engine();
        if !engine.peers.must_show_names() {
            return Ok(None);
        }
        let names = shown.map(|shown| shown.0.to_vec()).unwrap_or_default();
        if engine.peers.knows(&names) { Ok(Some(names)) } else { Err(stranger(&names)) }
    }

    /// Whoever talks must be of this cluster and mean this node: an address may have been given to another one. And it must be
    /// the member that it says it is.
    fn meet(&self, names: Option<Vec<String>>, hello: Option<v1::PeerHello>) -> Result<Caller, Status> {
        let hello = hello.ok_or_else(|| {
            status::reason(Code::InvalidArgument, "INVALID", "a stream of a peer begins with who talks")
        })?;
        let mut engine = self.shared.engine();
        let (group, me) = (engine.replica().group(), engine.replica().id());
        let cluster = api::whole(hello.cluster_high, hello.cluster_low);
        if cluster != group.cluster {
            let message = format!(
                "this is node {me:x} of cluster {:032x}, and the caller is of cluster {cluster:032x}: look at the addresses of the members",
                group.cluster
            );
            return Err(status::reason(Code::FailedPrecondition, "FOREIGN_CLUSTER", message));
        }
        if hello.to != me {
            let message = format!(
                "this is node {me:x}, and the caller means node {:x}: look at the addresses of the members",
                hello.to
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

/// The format versions that a node says it knows.
pub(crate) fn versions(oldest: u32, newest: u32) -> Result<KnownVersions, Status> {
    let known = FormatVersion::new(oldest).zip(FormatVersion::new(newest));
    known.and_then(|(oldest, newest)| KnownVersions::new(oldest, newest)).ok_or_else(|| {
        let message = format!(
            "a node knows the format versions {oldest} to {newest}, as it says: they count from 1, and the oldest comes first; start \
             it with a release of this project"
        );
        status::reason(Code::InvalidArgument, "INVALID", message)
    })
}

impl Caller {
    /// Whether it is still the member that it said it is: members go while streams are open.
    fn check(&self, engine: &Engine) -> Result<(), Status> {
        match &self.names {
            Some(names) if !engine.peers.knows_as(self.node, names) => Err(stranger(names)),
            _ => Ok(()),
        }
    }

    /// What peers say on one stream they say in one name.
    fn check_sender(&self, sender: u64) -> Result<(), Status> {
        if sender == self.node {
            return Ok(());
        }
        let message = format!("node {:x} speaks for node {sender:x}: each speaks for itself", self.node);
        Err(status::reason(Code::PermissionDenied, "FOREIGN_NAME", message))
    }
}

fn stranger(names: &[String]) -> Status {
    let message = format!(
        "the caller's certificate is for {names:?}, and the members here do not have it so: it needs one with the name of its \
         member. If it has, this node has not heard of that member yet, and asks others"
    );
    status::reason(Code::PermissionDenied, "UNKNOWN_PEER", message)
}

fn bad(error: impl std::fmt::Display) -> Status {
    status::reason(Code::InvalidArgument, "INVALID", error.to_string())
}

impl PeerEdge {
    /// Takes what a peer says on its framed connection, for as long as both live.
    pub(crate) async fn serve(self, connection: Connection) {
        let names = connection.shown_names();
        let mut frames = frames::<v1::DeliverRequest>(connection, PEER_MESSAGE_BYTES_MAX);
        let refused = tokio::select! {
            taken = self.take_messages(&names, &mut frames) => taken.err(),
            // Whoever talks to a node that ends would otherwise keep it from ending.
            () = wait_until_closed(self.closed.clone()) => Some(status::of(End::shutting_down())),
        };
        if let Some(status) = refused {
            let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
            let why = v1::DeliverResponse { reason, message: status.message().to_owned() };
            // If it does not hear why, it hears that.
            let _ = frames.feed(why).await;
        }
        let _ = SinkExt::<v1::DeliverResponse>::close(&mut frames).await;
    }

    async fn take_messages(&self, names: &ShownNames, frames: &mut Frames<v1::DeliverRequest>) -> Result<(), Status> {
        let mut names = Some(self.look_at(Some(names))?);
        let mut caller = None;
        while let Some(delivered) = frames.next().await {
            let delivered = delivered.map_err(bad)?;
            if let Some(names) = names.take() {
                caller = Some(self.meet(names, delivered.hello)?);
            }
            let caller = caller.as_ref().expect("it was met with the first message");
            let mut engine = self.shared.engine();
            caller.check(&engine)?;
            let group = engine.replica().group();
            for bytes in &delivered.messages {
                let peer = decode_peer(bytes).map_err(bad)?;
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
        let first = stream.message().await?.ok_or_else(|| bad("a snapshot begins with who sends it"))?;
        let caller = self.meet(names, first.hello)?;
        let peer = decode_peer(&first.message).map_err(bad)?;
        caller.check_sender(peer.message.from)?;
        let mut bytes = first.data;
        while let Some(piece) = stream.message().await? {
            if bytes.len() + piece.data.len() > SNAPSHOT_BYTES_MAX {
                return Err(bad("the snapshot is larger than a node takes"));
            }
            bytes.extend(piece.data);
        }
        tracing::info!(from = format!("{:x}", peer.message.from), bytes = bytes.len(), "a snapshot came");
        self.shared.engine().node_mut().handle_snapshot(peer.message, Arc::from(bytes));
        self.shared.ring();
        Ok(Response::new(v1::InstallSnapshotResponse {}))
    }
}
