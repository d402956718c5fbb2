//! What administrators do: to locks, and to the cluster.

use std::pin::Pin;
use std::task::{Context, Poll};

use fencepost_core::{Act, FreezeId, GrantId, Permits, Reason, Scope, SessionId};
use fencepost_wire::api::admin;
use fencepost_wire::v1;
use futures_core::Stream;
use tonic::Streaming;

use crate::calls::Kind::{Long, Once, Repeatable};
use crate::calls::refusal;
use crate::client::Client;
use crate::error::{self, Error, Failed, refusals};
use fencepost_wire::grpc::admin_service_client::AdminServiceClient;

/// What administrators do. Begin with [`Client::admin`].
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
    /// The cluster that the node is or was a member of.
    pub cluster: u128,
    /// Its group.
    pub group: u64,
    /// Those who vote.
    pub voters: Vec<u64>,
    /// Those who get the log without a vote.
    pub learners: Vec<u64>,
}

/// A node that is to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Drawn at random by the node itself.
    pub node: u64,
    /// For people; no two members have the same.
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

    /// Why. It goes to the audit log, and to whom it hits.
    pub fn reason(mut self, reason: impl Into<String>) -> Admin {
        self.reason = reason.into();
        self
    }

    /// Breaks a grant, whole. Its holder is told, not stopped: only fencing stops its writes.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if no such grant stands.
    pub async fn break_grant(&self, grant: GrantId) -> Result<(), Error> {
        self.act(Act::Break { grant }).await
    }

    /// Ends a session with all that it holds. It may open another.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if no such session lives.
    pub async fn evict(&self, session: SessionId) -> Result<(), Error> {
        self.act(Act::Evict { session }).await
    }

    /// Lets new grants and upgrades of this name wait.
    ///
    /// # Errors
    /// [`crate::Refused::Rule`] if there are too many freezes.
    pub async fn freeze_name(&self, name: impl AsRef<str>) -> Result<FreezeId, Error> {
        self.freeze(Scope::Name(error::name(name.as_ref())?)).await
    }

    /// Lets new grants and upgrades of every name with this prefix wait; the empty prefix is every name.
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

    /// Ends the rest of a grant early.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if it does not rest.
    pub async fn waive_rest(&self, grant: GrantId) -> Result<(), Error> {
        self.act(Act::WaiveRest { grant }).await
    }

    /// Makes a name a semaphore for good, changes its limit, or takes the limit away.
    ///
    /// # Errors
    /// [`crate::Refused::Rule`] if the name is in use as a lock, or there are too many limits.
    pub async fn set_limit(&self, name: impl AsRef<str>, limit: Option<u32>) -> Result<(), Error> {
        let (name, limit) = (error::name(name.as_ref())?, limit.map(Permits::new).transpose()?);
        self.act(Act::SetLimit { name, limit }).await
    }

    /// Each act is its own repeat, so it can be sent again.
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
        let request = v1::AddMemberRequest { node, name, peer_address, client_address, ..Default::default() };
        let ask = |channel| {
            let request = request.clone();
            async move { AdminServiceClient::new(channel).add_member(request).await }
        };
        self.client.call(Once, ask).await.map(members)
    }

    /// Gives a learner that has caught up a vote. The node that it replaces loses its own in the same step.
    ///
    /// # Errors
    /// [`crate::Refused::Invalid`] if it has not caught up; [`Error::Unknown`] if the answer was lost.
    pub async fn promote_member(&self, node: u64, replaces: Option<u64>) -> Result<Members, Error> {
        let request = v1::PromoteMemberRequest { node, replaces };
        let ask = |channel| async move { AdminServiceClient::new(channel).promote_member(request).await };
        self.client.call(Once, ask).await.map(members)
    }

    /// Takes a node out for good. Its id never comes back.
    ///
    /// # Errors
    /// [`crate::Refused::NotFound`] if it is no member; [`Error::Unknown`] if the answer was lost.
    pub async fn remove_member(&self, node: u64) -> Result<Members, Error> {
        let request = v1::RemoveMemberRequest { node };
        let ask = |channel| async move { AdminServiceClient::new(channel).remove_member(request).await };
        self.client.call(Once, ask).await.map(members)
    }

    /// Lets another node lead, or the one that has the most of the log. Says who leads then.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the answer was lost.
    pub async fn transfer_lead(&self, node: Option<u64>) -> Result<u64, Error> {
        let request = v1::TransferLeadRequest { node: node.unwrap_or(0) };
        let ask = |channel| async move { AdminServiceClient::new(channel).transfer_lead(request).await };
        Ok(self.client.call(Once, ask).await?.leader)
    }

    /// A snapshot of the whole state, taken while serving, as the bytes of one file.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn backup(&self) -> Result<Backup, Error> {
        let ask = |channel| async move { AdminServiceClient::new(channel).backup(v1::BackupRequest {}).await };
        Ok(Backup { chunks: self.client.call(Long, ask).await? })
    }
}

fn members(response: v1::MemberChangeResponse) -> Members {
    let v1::MemberChangeResponse { cluster_high, cluster_low, group, voters, learners } = response;
    Members { cluster: fencepost_wire::api::whole(cluster_high, cluster_low), group, voters, learners }
}

/// The bytes of a backup, in pieces. It is whole only if it ended without an error.
#[derive(Debug)]
pub struct Backup {
    chunks: Streaming<v1::BackupChunk>,
}

impl Backup {
    /// The next piece; none at the end.
    ///
    /// # Errors
    /// [`Error::Unknown`] or [`Error::Failed`] if it broke off: throw away what came, and begin anew.
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
