//! What peers say to this node.

use std::sync::Arc;

use fencepost_wire::{api, decode_peer, v1};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::bounds::SNAPSHOT_BYTES_MAX;
use crate::engine::Shared;
use crate::generated::peer_service_server::PeerService;
use crate::status;

pub(crate) struct PeerEdge {
    pub(crate) shared: Shared,
    pub(crate) closed: watch::Receiver<bool>,
}

impl PeerEdge {
    /// Whoever talks must be of this cluster and mean this node: an address may have been given to another one.
    fn meet(&self, hello: Option<v1::PeerHello>) -> Result<(), Status> {
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
        engine.peers.met(hello.from, &hello.peer_address);
        Ok(())
    }
}

fn bad(error: impl std::fmt::Display) -> Status {
    status::reason(Code::InvalidArgument, "INVALID", error.to_string())
}

#[tonic::async_trait]
impl PeerService for PeerEdge {
    async fn deliver(
        &self,
        request: Request<Streaming<v1::DeliverRequest>>,
    ) -> Result<Response<v1::DeliverResponse>, Status> {
        let mut stream = request.into_inner();
        let mut is_first = true;
        let mut closed = self.closed.clone();
        loop {
            let delivered = tokio::select! {
                delivered = stream.message() => delivered?,
                // Whoever talks to a node that ends would otherwise keep it from ending.
                _ = closed.wait_for(|closed| *closed) => return Err(status::shutting_down()),
            };
            let Some(delivered) = delivered else { break };
            if std::mem::replace(&mut is_first, false) {
                self.meet(delivered.hello)?;
            }
            let mut engine = self.shared.engine();
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
                engine.node_mut().handle_message(peer.message);
            }
            drop(engine);
            self.shared.ring();
        }
        Ok(Response::new(v1::DeliverResponse {}))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::InstallSnapshotRequest>>,
    ) -> Result<Response<v1::InstallSnapshotResponse>, Status> {
        let mut stream = request.into_inner();
        let first = stream.message().await?.ok_or_else(|| bad("a snapshot begins with who sends it"))?;
        self.meet(first.hello)?;
        let peer = decode_peer(&first.message).map_err(bad)?;
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
