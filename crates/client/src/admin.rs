//! The operations of administrators, on locks and on the cluster.
//!
//! Acts on locks can be sent twice without harm, so a lost connection is retried. Changes of the members are sent once: if the answer
//! is lost, the outcome is unknown.

use std::pin::Pin;
use std::task::{Context, Poll};

use fencepost_core::{Act, FreezeId, GrantId, JobKey, Keep, Permits, Reason, Scope, SessionId};
use fencepost_wire::api::admin;
use fencepost_wire::v1;
use futures_core::Stream;
use tonic::Streaming;

use crate::calls::Kind::{Long, Once, Repeatable};
use crate::calls::refusal;
use crate::client::Client;
use crate::error::{self, Error, Failed, refusals};
use fencepost_wire::grpc::admin_service_client::AdminServiceClient;

/// The operations of administrators. Begin with [`Client::admin`].
///
/// ```no_run
/// # async fn example(client: fencepost::Client) -> Result<(), fencepost::Error> {
/// let admin = client.admin().reason("incident 4711");
/// let freeze = admin.freeze_prefix("orders/").await?;
/// admin.thaw(freeze).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
    reason: String,
}

/// The members after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    /// The id of the cluster whose members changed.
    pub cluster: u128,
    /// The id of the group whose members changed.
    pub group: u64,
    /// The members that vote.
    pub voters: Vec<u64>,
    /// The members that get the log without a vote.
    pub learners: Vec<u64>,
}

/// A new member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// The id of the node, which it has drawn at random.
    pub node: u64,
    /// The name for people. It is unique among the members.
    pub name: String,
    /// Where the other nodes reach it.
    pub peer_address: String,
    /// Where clients reach it.
    pub client_address: String,
}

impl Admin {
    pub(crate) fn new(client: Client) -> Admin {
        Admin { client, reason: String::new() }
    }

    /// The reason for what follows, at most 1 KiB. It goes to the log and to watchers, with the author: the name in this client's
    /// certificate, or `unverified USER@HOST`. The clients that an act hits are told its first 128 bytes.
    pub fn reason(mut self, reason: impl Into<String>) -> Admin {
        self.reason = reason.into();
        self
    }

    /// Ends a whole grant by force. Its holder is notified, but not stopped: only fencing stops its writes.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if there is no such grant.
    pub async fn break_grant(&self, grant: GrantId) -> Result<(), Error> {
        self.act(Act::Break { grant }).await
    }

    /// Ends a session and everything that it holds. Its client may open another one.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if there is no such session.
    pub async fn evict(&self, session: SessionId) -> Result<(), Error> {
        self.act(Act::Evict { session }).await
    }

    /// Makes new grants and upgrades of this name wait until the freeze ends.
    ///
    /// # Errors
    /// [`crate::Refused::Rule`] if there are too many freezes.
    pub async fn freeze_name(&self, name: impl AsRef<str>) -> Result<FreezeId, Error> {
        self.freeze(Scope::Name(error::name(name.as_ref())?)).await
    }

    /// Makes new grants and upgrades of every name with this prefix wait until the freeze ends. The empty prefix means every name.
    ///
    /// # Errors
    /// As [`Admin::freeze_name`].
    pub async fn freeze_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<FreezeId, Error> {
        self.freeze(Scope::Prefix(prefix.as_ref().into())).await
    }

    async fn freeze(&self, scope: Scope) -> Result<FreezeId, Error> {
        let mut id = [0; 16];
        let no_randomness =
            |error| Failed::NotTaken { message: format!("this machine has no randomness: {error}"), retry_after: None };
        getrandom::fill(&mut id).map_err(no_randomness)?;
        let freeze = FreezeId(u128::from_le_bytes(id));
        self.act(Act::Freeze { freeze, scope }).await?;
        Ok(freeze)
    }

    /// Ends one freeze.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if there is no such freeze.
    pub async fn thaw(&self, freeze: FreezeId) -> Result<(), Error> {
        self.act(Act::Thaw { freeze }).await
    }

    /// Ends the rest of a grant early: the time for which its lock delay keeps the resources busy.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if the grant is not resting.
    pub async fn waive_rest(&self, grant: GrantId) -> Result<(), Error> {
        self.act(Act::WaiveRest { grant }).await
    }

    /// Makes a name a permanent semaphore with this limit, changes its limit, or removes the limit with `None`.
    ///
    /// # Errors
    /// [`crate::Refused::Rule`] if the name is in use as a lock, or there are too many limits.
    pub async fn set_limit(&self, name: impl AsRef<str>, limit: Option<u32>) -> Result<(), Error> {
        let (name, limit) = (error::name(name.as_ref())?, limit.map(Permits::new).transpose()?);
        self.act(Act::SetLimit { name, limit }).await
    }

    /// Completes a job as succeeded, so that it is skipped. A client that works on it loses its lock. The record is kept for 30 days.
    ///
    /// # Errors
    /// [`crate::Refused::Rule`] if there is no room for another job.
    pub async fn complete_job(&self, name: impl AsRef<str>, key: impl AsRef<str>) -> Result<(), Error> {
        let (name, key) = (error::name(name.as_ref())?, JobKey::new(key.as_ref())?);
        self.act(Act::CompleteJob { name, key, keep: Keep::default() }).await
    }

    /// Forgets a job that is not held, so that it runs again.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if nothing is remembered of it, [`crate::Refused::Rule`] if it is held.
    pub async fn forget_job(&self, name: impl AsRef<str>, key: impl AsRef<str>) -> Result<(), Error> {
        let (name, key) = (error::name(name.as_ref())?, JobKey::new(key.as_ref())?);
        self.act(Act::ForgetJob { name, key }).await
    }

    /// Allows jobs again after a backup was restored. Before that, find out which jobs were completed after the backup was made, and
    /// complete them with [`Admin::complete_job`].
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn allow_jobs(&self) -> Result<(), Error> {
        self.act(Act::AllowJobs).await
    }

    /// Doing an act twice has the effect of doing it once, so it can be sent again.
    async fn act(&self, act: Act) -> Result<(), Error> {
        let request = admin::act_to_wire(&Reason::new(&self.reason)?, &act);
        let ask = |channel| {
            let request = request.clone();
            async move { AdminServiceClient::new(channel).act(request).await }
        };
        let (_, outcome) = admin::acted_from_wire(self.client.call(Repeatable, ask).await?)?;
        refusals(outcome).map(drop)
    }

    /// Adds a node as a learner. It gets the log, and no vote yet.
    ///
    /// # Errors
    /// [`crate::Refused::Invalid`] if the name or the node is a member already; [`Error::Unknown`] if the answer was lost.
    pub async fn add_member(&self, member: NewMember) -> Result<Members, Error> {
        let NewMember { node, name, peer_address, client_address } = member;
        let request = v1::AddMemberRequest {
            node,
            name,
            peer_address,
            client_address,
            reason: self.reason.clone(),
            ..Default::default()
        };
        let ask = |channel| {
            let request = request.clone();
            async move { AdminServiceClient::new(channel).add_member(request).await }
        };
        self.client.call(Once, ask).await.map(members)
    }

    /// Gives a vote to a learner that has caught up. If it replaces a node, that node loses its vote in the same step.
    ///
    /// # Errors
    /// [`crate::Refused::Invalid`] if it has not caught up; [`Error::Unknown`] if the answer was lost.
    pub async fn promote_member(&self, node: u64, replaces: Option<u64>) -> Result<Members, Error> {
        let request = v1::PromoteMemberRequest { node, replaces, reason: self.reason.clone() };
        let ask = |channel| {
            let request = request.clone();
            async move { AdminServiceClient::new(channel).promote_member(request).await }
        };
        self.client.call(Once, ask).await.map(members)
    }

    /// Removes a node permanently. Its id cannot be used again.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if it is not a member; [`Error::Unknown`] if the answer was lost.
    pub async fn remove_member(&self, node: u64) -> Result<Members, Error> {
        let request = v1::RemoveMemberRequest { node, reason: self.reason.clone() };
        let ask = |channel| {
            let request = request.clone();
            async move { AdminServiceClient::new(channel).remove_member(request).await }
        };
        self.client.call(Once, ask).await.map(members)
    }

    /// Transfers the leadership to this node, or to the node that has most of the log. Returns the new leader.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the answer was lost.
    pub async fn transfer_lead(&self, node: Option<u64>) -> Result<u64, Error> {
        let request = v1::TransferLeadRequest { node: node.unwrap_or(0), reason: self.reason.clone() };
        let ask = |channel| {
            let request = request.clone();
            async move { AdminServiceClient::new(channel).transfer_lead(request).await }
        };
        Ok(self.client.call(Once, ask).await?.leader)
    }

    /// A snapshot of the whole state, as the bytes of one file. The cluster serves requests meanwhile.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn backup(&self) -> Result<Backup, Error> {
        let ask = |channel| async move { AdminServiceClient::new(channel).backup(v1::BackupRequest {}).await };
        Ok(Backup { chunks: self.client.call(Long, ask).await? })
    }
}

fn members(response: v1::MemberChangeResponse) -> Members {
    let v1::MemberChangeResponse { cluster_high, cluster_low, group, voters, learners } = response;
    Members { cluster: fencepost_wire::api::whole(cluster_high, cluster_low), group, voters, learners }
}

/// The bytes of a backup, in pieces. The backup is complete only if it ends without an error.
#[derive(Debug)]
pub struct Backup {
    chunks: Streaming<v1::BackupChunk>,
}

impl Backup {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Unknown`] or [`Error::Failed`] if the backup broke off: throw the pieces away, and start again.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match self.chunks.message().await {
            Ok(chunk) => Ok(chunk.map(|chunk| chunk.data)),
            Err(status) => Err(refusal(&status)),
        }
    }
}

impl Stream for Backup {
    type Item = Result<Vec<u8>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let chunk = std::task::ready!(Pin::new(&mut self.chunks).poll_next(context));
        Poll::Ready(chunk.map(|chunk| chunk.map(|chunk| chunk.data).map_err(|status| refusal(&status))))
    }
}
