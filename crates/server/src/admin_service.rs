//! The admin service: acts on locks, changes of the members, leadership transfer and backups.
//!
//! Acts and member changes go through the log; the replica and the core decide about them. It checks only the form of a call.

use std::pin::Pin;
use std::time::Duration;

use fencepost_replica::{MemberChange, Role};
use fencepost_session::{End, Reason};
use fencepost_wire::api::{admin, observe};
use fencepost_wire::{Cause, Member, ShownNode, api, v1};
use futures_core::Stream;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status};

use crate::bounds::SNAPSHOT_PIECE_BYTES;
use crate::caller::{author, cause};
use crate::engine::Shared;
use crate::peer_service::versions;
use crate::status;
use fencepost_wire::grpc::admin_service_server::AdminService;

/// How long a leadership transfer may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct AdminEdge {
    pub(crate) shared: Shared,
}

impl AdminEdge {
    async fn change(
        &self,
        changes: Vec<MemberChange>,
        cause: Cause,
    ) -> Result<Response<v1::MemberChangeResponse>, End> {
        self.shared.change_members(changes, cause).await?;
        let engine = self.shared.engine();
        let replica = engine.replica();
        let (cluster_high, cluster_low) = api::halves(replica.group().cluster);
        let members = replica.members();
        let of_role = |role| members.iter().filter(move |it| it.role == role).map(|it| it.node).collect();
        Ok(Response::new(v1::MemberChangeResponse {
            cluster_high,
            cluster_low,
            group: replica.group().group,
            voters: of_role(Role::Voter),
            learners: of_role(Role::Learner),
        }))
    }
}

type BackupStream = Pin<Box<dyn Stream<Item = Result<v1::BackupChunk, Status>> + Send>>;

#[tonic::async_trait]
impl AdminService for AdminEdge {
    async fn act(&self, request: Request<v1::ActRequest>) -> Result<Response<v1::ActResponse>, Status> {
        let by = author(&request);
        let asked = admin::act_from_wire(request.into_inner(), by)
            .map_err(|error| status::of(End::invalid(error.for_caller())))?;
        let acted = self.shared.act(asked.clone()).await.map_err(status::of)?;
        tracing::info!(by = asked.by.as_str(), reason = asked.reason.as_str(), act = ?asked.act, outcome = ?acted.outcome, "an administrator acted");
        let (index, term) = (acted.position.index, acted.position.term);
        let at = observe::ReadAt { index, term, stamp: acted.stamp, ..observe::ReadAt::default() };
        Ok(Response::new(admin::acted_to_wire(at, &acted.outcome)))
    }

    async fn add_member(
        &self,
        request: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::MemberChangeResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason).map_err(status::of)?;
        let asked = request.into_inner();
        let v1::AddMemberRequest { node, name, peer_address, client_address, oldest_format, newest_format, .. } = asked;
        let member = Member::new(node, &name, &peer_address, &client_address)
            .map_err(|why| status::of(End::invalid(why.to_string())))?;
        // A member that calls again, perhaps from another address, is described again and keeps its vote.
        let (is_member, leads) = {
            let engine = self.shared.engine();
            let replica = engine.replica();
            (replica.members().iter().any(|it| it.node == node), replica.serves())
        };
        if newest_format != 0 {
            let known = versions(oldest_format, newest_format)?;
            // For a member, only its own connection counts: a caller's claim must not raise the active format version.
            if leads && !is_member {
                self.shared.engine().node_mut().replica_mut().handle_hello(node, known);
            }
        }
        let change = if is_member { MemberChange::Describe(member) } else { MemberChange::AddLearner(member) };
        self.change(vec![change], cause).await.map_err(status::of)
    }

    async fn promote_member(
        &self,
        request: Request<v1::PromoteMemberRequest>,
    ) -> Result<Response<v1::MemberChangeResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason).map_err(status::of)?;
        let v1::PromoteMemberRequest { node, replaces, .. } = request.into_inner();
        let promoted = MemberChange::Promote(node);
        self.change(std::iter::once(promoted).chain(replaces.map(MemberChange::Remove)).collect(), cause)
            .await
            .map_err(status::of)
    }

    async fn remove_member(
        &self,
        request: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::MemberChangeResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason).map_err(status::of)?;
        self.change(vec![MemberChange::Remove(request.into_inner().node)], cause).await.map_err(status::of)
    }

    async fn transfer_lead(
        &self,
        request: Request<v1::TransferLeadRequest>,
    ) -> Result<Response<v1::TransferLeadResponse>, Status> {
        let cause = cause(&request, &request.get_ref().reason).map_err(status::of)?;
        let asked = request.into_inner().node;
        let successor = {
            let mut engine = self.shared.engine();
            if !engine.replica().serves() {
                return Err(status::of(engine.not_leader()));
            }
            if asked == engine.replica().id() {
                return Ok(Response::new(v1::TransferLeadResponse { leader: asked }));
            }
            engine.begin_hand_over((asked != 0).then_some(asked), cause).ok_or_else(|| {
                status::of(End::new(Reason::NoSuccessor, "there is no such member with a vote that could lead"))
            })?
        };
        self.shared.ring();
        let mut progress = self.shared.progress();
        let led = progress.wait_for(|now| now.serves_in.is_none() && now.leader.is_some());
        match tokio::time::timeout(TRANSFER_TIMEOUT, led).await {
            Ok(Ok(now)) => Ok(Response::new(v1::TransferLeadResponse { leader: now.leader.unwrap_or_default() })),
            _ => {
                let node = ShownNode(successor);
                let message =
                    format!("node {node} did not take the lead in time: see whether it is up and has caught up");
                Err(status::of(End::new(Reason::NotTransferred, message)))
            }
        }
    }

    type BackupStream = BackupStream;

    async fn backup(&self, _: Request<v1::BackupRequest>) -> Result<Response<BackupStream>, Status> {
        self.shared.linearize().await.map_err(status::of)?;
        let (from, snapshots) = {
            let mut engine = self.shared.engine();
            let from = engine.replica().applied();
            engine.node_mut().replica_mut().snapshot_now();
            (from, engine.node().snapshots())
        };
        self.shared.ring();
        let mut progress = self.shared.progress();
        loop {
            let newest = progress.wait_for(|now| now.snapshot.is_some_and(|made| made >= from)).await;
            let position =
                newest.map_err(|_| status::of(End::shutting_down()))?.snapshot.expect("`wait_for` checked it");
            let (snapshots, found) = (snapshots.clone(), position);
            let read = tokio::task::spawn_blocking(move || snapshots.read(found)).await;
            match read.map_err(|error| status::of(End::new(Reason::Internal, error.to_string())))? {
                Ok(bytes) => {
                    let count = bytes.len().div_ceil(SNAPSHOT_PIECE_BYTES);
                    let pieces = (0..count).map(move |piece| {
                        let from = piece * SNAPSHOT_PIECE_BYTES;
                        let to = (from + SNAPSHOT_PIECE_BYTES).min(bytes.len());
                        Ok(v1::BackupChunk { data: bytes[from..to].to_vec() })
                    });
                    return Ok(Response::new(Box::pin(tokio_stream::iter(pieces).map(|piece| piece))));
                }
                // A newer snapshot replaced it meanwhile: reads that one.
                Err(_) if self.shared.engine().replica().newest_snapshot() != Some(position) => {}
                Err(error) => return Err(status::of(End::new(Reason::Internal, error.to_string()))),
            }
        }
    }
}
