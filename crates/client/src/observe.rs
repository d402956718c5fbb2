//! Looking on: who holds what, who waits and why, whether a token still stands. Nothing here changes anything.
//!
//! Every answer says as of which log entry it is; deadlines are to be compared with its stamp.

use fencepost_core::{
    Counts, Explanation, FreezeRecord, GrantId, GrantView, Page, SessionId, Token, TokenCheck, WaiterRecord,
};
use fencepost_wire::api::observe::{self, ReadAt};
use fencepost_wire::v1;

use crate::calls::Kind::Repeatable;
use crate::client::Client;
use crate::error::{self, Error};
use crate::rpc::observe_service_client::ObserveServiceClient;

/// A session as observers see it. What only its client knows is not in it.
pub use fencepost_wire::api::observe::Session as SessionView;

/// An answer, and as of which log entry it is.
#[derive(Clone, Debug, PartialEq)]
pub struct AsOf<T> {
    /// The entry, and its stamp.
    pub at: ReadAt,
    /// The answer.
    pub what: T,
}

/// What was read can be used as it is; when it was so is for those who care.
impl<T> std::ops::Deref for AsOf<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.what
    }
}

/// The cluster as the leader sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterStatus {
    /// The cluster's id.
    pub cluster: u128,
    /// The group.
    pub group: u64,
    /// The node that answered, and its version.
    pub node: u64,
    /// The version of the node that answered.
    pub version: String,
    /// The term.
    pub term: u64,
    /// Who leads, if it is known.
    pub leader: Option<u64>,
    /// The leader's address for clients, if it is known.
    pub leader_address: Option<String>,
    /// The last entry that was carried out.
    pub applied: ReadAt,
    /// The members.
    pub members: Vec<MemberStatus>,
    /// How much there is of everything.
    pub counts: Counts,
    /// The oldest token that a living grant has; stores may forget marks below it.
    pub oldest_live_token: Token,
    /// The node's disk is nearly full.
    pub disk_short: bool,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberStatus {
    /// Its id.
    pub node: u64,
    /// Its name.
    pub name: String,
    /// Where the other nodes reach it.
    pub peer_address: String,
    /// Where clients reach it.
    pub client_address: String,
    /// What it may do.
    pub role: MemberRole,
    /// Whether it leads.
    pub leads: bool,
    /// How much of the log it has, as far as the leader knows.
    pub matched_index: Option<u64>,
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberRole {
    /// It votes.
    Voter,
    /// It gets the log without a vote.
    Learner,
    /// It votes until the change under way is through.
    Leaving,
    /// What this version has no word for.
    Other,
}

impl Client {
    /// Why a resource is as it is: who holds it and until when, who waits in which order, and what is in the way of the first.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn explain(&self, name: impl AsRef<str>) -> Result<AsOf<Explanation>, Error> {
        let name = error::name(name.as_ref())?;
        let request = v1::ExplainRequest { name: name.as_str().to_owned(), ..v1::ExplainRequest::default() };
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).explain(request).await }
        };
        let (at, what) = observe::explanation_from_wire(self.call(Repeatable, ask).await?)?;
        Ok(AsOf { at, what })
    }

    /// Whether the grant with this token stands and holds the name: for stores that can ask but cannot keep a mark.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn check(&self, name: impl AsRef<str>, token: impl Into<Token>) -> Result<AsOf<TokenCheck>, Error> {
        let request = observe::check_request_to_wire(&error::name(name.as_ref())?, token.into());
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).check(request).await }
        };
        let (at, what) = observe::check_from_wire(self.call(Repeatable, ask).await?)?;
        Ok(AsOf { at, what })
    }

    /// A page of the grants that hold a name with this prefix, oldest first; `after` comes from the page before.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn grants(&self, prefix: &str, after: Option<GrantId>) -> Result<AsOf<Page<GrantView, GrantId>>, Error> {
        let after_grant = after.map_or(0, |after| after.0);
        let request =
            v1::ListGrantsRequest { prefix: prefix.to_owned(), after_grant, ..v1::ListGrantsRequest::default() };
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).list_grants(request).await }
        };
        let response = self.call(Repeatable, ask).await?;
        let rows = response.grants.into_iter().map(observe::grant_from_wire).collect::<Result<_, _>>()?;
        let next = response.next_after_grant.map(GrantId);
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what: Page { rows, next } })
    }

    /// A page of the living sessions, by id; `after` comes from the page before.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn sessions(&self, after: Option<SessionId>) -> Result<AsOf<Page<SessionView, SessionId>>, Error> {
        let after = after.map(observe::session_id_to_wire);
        let request = v1::ListSessionsRequest { after, ..v1::ListSessionsRequest::default() };
        let ask = |channel| async move { ObserveServiceClient::new(channel).list_sessions(request).await };
        let response = self.call(Repeatable, ask).await?;
        let rows = response.sessions.into_iter().map(observe::session_from_wire).collect::<Result<_, _>>()?;
        let next = response.next_after.map(observe::session_id_from_wire);
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what: Page { rows, next } })
    }

    /// One session, if it lives.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn find_session(&self, session: SessionId) -> Result<AsOf<Option<SessionView>>, Error> {
        let request = v1::GetSessionRequest { session: Some(observe::session_id_to_wire(session)), stale: false };
        let ask = |channel| async move { ObserveServiceClient::new(channel).get_session(request).await };
        let response = self.call(Repeatable, ask).await?;
        let what = response.session.map(observe::session_from_wire).transpose()?;
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what })
    }

    /// A page of the requests that wait for a name with this prefix, by arrival; `after` comes from the page before.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn waiters(
        &self,
        prefix: &str,
        after: Option<fencepost_core::Arrival>,
    ) -> Result<AsOf<Page<WaiterRecord, fencepost_core::Arrival>>, Error> {
        let after_arrival = after.map_or(0, |after| after.0);
        let request =
            v1::ListWaitersRequest { prefix: prefix.to_owned(), after_arrival, ..v1::ListWaitersRequest::default() };
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).list_waiters(request).await }
        };
        let response = self.call(Repeatable, ask).await?;
        let rows = response.waiters.into_iter().map(observe::waiter_from_wire).collect::<Result<_, _>>()?;
        let next = response.next_after_arrival.map(fencepost_core::Arrival);
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what: Page { rows, next } })
    }

    /// The freezes, by id.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn freezes(&self) -> Result<AsOf<Vec<FreezeRecord>>, Error> {
        let request = v1::ListFreezesRequest::default();
        let ask = |channel| async move { ObserveServiceClient::new(channel).list_freezes(request).await };
        let response = self.call(Repeatable, ask).await?;
        let what = response.freezes.into_iter().map(observe::freeze_from_wire).collect::<Result<_, _>>()?;
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what })
    }

    /// The cluster as the node sees it that answers: the leader, if it is known.
    ///
    /// # Errors
    /// [`Error::Failed`] if nobody could be asked.
    pub async fn status(&self) -> Result<ClusterStatus, Error> {
        let ask = |channel| async move {
            ObserveServiceClient::new(channel).get_status(v1::GetStatusRequest::default()).await
        };
        let response = self.call(Repeatable, ask).await?;
        Ok(ClusterStatus {
            cluster: fencepost_wire::api::whole(response.cluster_high, response.cluster_low),
            group: response.group,
            node: response.node,
            version: response.version,
            term: response.term,
            leader: response.leader,
            leader_address: response.leader_address,
            applied: observe::read_at_from_wire(response.applied)?,
            members: response.members.into_iter().map(member).collect(),
            counts: observe::counts_from_wire(response.counts)?,
            oldest_live_token: Token(response.oldest_live_token),
            disk_short: response.disk_short,
        })
    }
}

fn member(member: v1::MemberView) -> MemberStatus {
    let role = match member.role() {
        v1::MemberRole::Voter => MemberRole::Voter,
        v1::MemberRole::Learner => MemberRole::Learner,
        v1::MemberRole::Leaving => MemberRole::Leaving,
        v1::MemberRole::Unspecified => MemberRole::Other,
    };
    let v1::MemberView { node, name, peer_address, client_address, leads, matched_index, .. } = member;
    MemberStatus { node, name, peer_address, client_address, role, leads, matched_index }
}
