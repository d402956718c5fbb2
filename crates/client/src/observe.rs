//! Read-only queries: who holds what, who waits and why, whether a token is still valid, and the state of the cluster.
//!
//! Every answer says which log entry it reflects ([`AsOf`]). Compare deadlines with the stamp of that entry, not with a clock.

use std::time::Duration;

use fencepost_core::{
    Acquire, Explanation, FreezeRecord, GrantId, GrantView, JobKey, JobRecord, JobView, Name, Page, SessionId, Token,
    TokenCheck, WaiterRecord,
};
use fencepost_wire::api::observe::{self, ReadAt};
use fencepost_wire::api::status::status_from_wire;
use fencepost_wire::v1;

use crate::calls::Kind::Repeatable;
use crate::client::Client;
use crate::error::{self, Error, Obstacle};
use fencepost_wire::grpc::observe_service_client::ObserveServiceClient;

/// How long the explanation of a wait that times out may take.
pub(crate) const EXPLAIN_PATIENCE: Duration = Duration::from_millis(500);

/// A session as observers see it, without what only its client may know, such as the secret.
pub use fencepost_wire::api::observe::Session as SessionView;
pub use fencepost_wire::api::status::{ClusterStatus, MemberLag, MemberRole, MemberState, MemberStatus};

/// An answer, and the log entry that it reflects.
#[derive(Clone, Debug, PartialEq)]
pub struct AsOf<T> {
    /// The entry, and its stamp.
    pub at: ReadAt,
    /// The answer.
    pub what: T,
}

/// The fields and methods of the answer can be used on the [`AsOf`] itself, without `.what`.
impl<T> std::ops::Deref for AsOf<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.what
    }
}

impl Client {
    /// Explains the state of a resource: who holds it and until when, who waits in which order, and what blocks the first waiter.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
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

    /// Asks about the names of a request in turn, until one is not free. All together it takes no longer than one question may.
    pub(crate) async fn explain_first_in_the_way(&self, names: &[Name]) -> Obstacle {
        let mut obstacle = Obstacle::NotExplained;
        let asking = async {
            for name in names {
                obstacle = self.explain_wait(name, None).await;
                if !obstacle.is_free() {
                    return;
                }
            }
        };
        // Too late: the last answer counts.
        let _ = tokio::time::timeout(EXPLAIN_PATIENCE, asking).await;
        obstacle
    }

    /// Asks what is in the way of a request. With the wait of a session, also for a cycle of sessions that this wait closes.
    pub(crate) async fn explain_wait(&self, name: &Name, waiting: Option<(SessionId, &Acquire)>) -> Obstacle {
        let wait = waiting.map(|(session, asked)| observe::explained_wait_to_wire(session, &asked.owner, &asked.locks));
        let request = v1::ExplainRequest { name: name.as_str().to_owned(), queue_max: 1, stale: false, wait };
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).explain(request).await }
        };
        let answered = tokio::time::timeout(EXPLAIN_PATIENCE, self.call(Repeatable, ask)).await;
        match answered.map(|answer| answer.map(observe::explanation_from_wire)) {
            Ok(Ok(Ok((at, what)))) => Obstacle::Explained(Box::new(AsOf { at, what })),
            _ => Obstacle::NotExplained,
        }
    }

    /// Whether the grant with this token still exists and holds the name. For stores that can ask but cannot keep a mark.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn check(&self, name: impl AsRef<str>, token: impl Into<Token>) -> Result<AsOf<TokenCheck>, Error> {
        let request = observe::check_request_to_wire(&error::name(name.as_ref())?, token.into());
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).check(request).await }
        };
        let (at, what) = observe::check_from_wire(self.call(Repeatable, ask).await?)?;
        Ok(AsOf { at, what })
    }

    /// A page of the grants that hold a name with this prefix, oldest first; `after` is the `next` of the page before.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
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

    /// A page of the living sessions, by id; `after` is the `next` of the page before.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn sessions(&self, after: Option<SessionId>) -> Result<AsOf<Page<SessionView, SessionId>>, Error> {
        let after = after.map(observe::session_id_to_wire);
        let request = v1::ListSessionsRequest { after, ..v1::ListSessionsRequest::default() };
        let ask = |channel| async move { ObserveServiceClient::new(channel).list_sessions(request).await };
        let response = self.call(Repeatable, ask).await?;
        let rows = response.sessions.into_iter().map(observe::session_from_wire).collect::<Result<_, _>>()?;
        let next = response.next_after.map(observe::session_id_from_wire);
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what: Page { rows, next } })
    }

    /// A job: its attempts, its last checkpoint, its completion with the result, and the client that works on it now.
    ///
    /// # Errors
    /// [`Error::Refused`] if the name or the key is not valid; [`Error::Failed`] if no node could be asked.
    pub async fn job(&self, name: impl AsRef<str>, key: impl AsRef<str>) -> Result<AsOf<JobView>, Error> {
        let (name, key) = (error::name(name.as_ref())?, JobKey::new(key.as_ref())?);
        let request = v1::GetJobRequest { job: Some(observe::job_id_to_wire(&name, &key)), stale: false };
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).get_job(request).await }
        };
        let (at, what) = observe::job_from_wire(self.call(Repeatable, ask).await?)?;
        Ok(AsOf { at, what })
    }

    /// A page of the remembered jobs of names with this prefix, by name and key; `after` is the `next` of the page before. Results,
    /// checkpoints and error texts are left out: [`Client::job`] has them.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn jobs(
        &self,
        prefix: impl AsRef<str>,
        after: Option<&(Name, JobKey)>,
    ) -> Result<AsOf<Page<JobRecord, (Name, JobKey)>>, Error> {
        let request = v1::ListJobsRequest {
            prefix: prefix.as_ref().to_owned(),
            after: after.map(|(name, key)| observe::job_id_to_wire(name, key)),
            ..v1::ListJobsRequest::default()
        };
        let ask = |channel| {
            let request = request.clone();
            async move { ObserveServiceClient::new(channel).list_jobs(request).await }
        };
        let response = self.call(Repeatable, ask).await?;
        let rows = response.jobs.into_iter().map(observe::job_record_from_wire).collect::<Result<_, _>>()?;
        let next = response.next_after.map(|job| observe::job_id_from_wire(Some(job))).transpose()?;
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what: Page { rows, next } })
    }

    /// One session, if it lives.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn find_session(&self, session: SessionId) -> Result<AsOf<Option<SessionView>>, Error> {
        let request = v1::GetSessionRequest { session: Some(observe::session_id_to_wire(session)), stale: false };
        let ask = |channel| async move { ObserveServiceClient::new(channel).get_session(request).await };
        let response = self.call(Repeatable, ask).await?;
        let what = response.session.map(observe::session_from_wire).transpose()?;
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what })
    }

    /// A page of the requests that wait for a name with this prefix, by arrival; `after` is the `next` of the page before.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
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
    /// [`Error::Failed`] if no node could be asked.
    pub async fn freezes(&self) -> Result<AsOf<Vec<FreezeRecord>>, Error> {
        let request = v1::ListFreezesRequest::default();
        let ask = |channel| async move { ObserveServiceClient::new(channel).list_freezes(request).await };
        let response = self.call(Repeatable, ask).await?;
        let what = response.freezes.into_iter().map(observe::freeze_from_wire).collect::<Result<_, _>>()?;
        Ok(AsOf { at: observe::read_at_from_wire(response.at)?, what })
    }

    /// The cluster as the leader sees it, whichever node is asked first. If no node leads, or the leader does not answer, it is the
    /// view of the node that was asked: [`ClusterStatus::is_of_leader`] says which one it is.
    ///
    /// # Errors
    /// [`Error::Failed`] if no node could be asked.
    pub async fn status(&self) -> Result<ClusterStatus, Error> {
        let ask = |channel| async move {
            ObserveServiceClient::new(channel).get_status(v1::GetStatusRequest::default()).await
        };
        let mut response = self.call(Repeatable, ask).await?;
        let leader = response.leader_address.clone().filter(|_| response.leader != Some(response.node));
        if let Some(leader) = leader
            && let Ok(its_own) = self.call_at(&leader, ask).await
            && its_own.leader == Some(its_own.node)
        {
            response = its_own;
        }
        Ok(status_from_wire(response)?)
    }
}
