//! Calls beside the stream, over gRPC: reads and the operations of administrators.
//!
//! A call goes to the leader that the stream has found, or looks for the leader itself. It is retried only if that cannot do the
//! work twice: see [`Kind`].

use std::future::Future;
use std::time::Duration;

use fencepost_wire::v1;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use crate::client::Client;
use crate::driver::{Way, chain, endpoint, not_leader, reason};
use crate::error::{Error, Failed, Refused, Unknown};
use fencepost_wire::grpc::observe_service_client::ObserveServiceClient;

/// How often one call is sent before it fails.
const TRIES: usize = 6;
/// The pause between two tries if the leader is not known.
const PAUSE: Duration = Duration::from_millis(200);
/// One node gets the whole time divided by this, if there are other nodes: a node that hangs accepts connections and never answers.
const SHARE: u32 = 4;

/// Whether a call that broke off may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The call changes nothing, or doing it twice has the effect of doing it once: it is sent again.
    Repeatable,
    /// Like `Repeatable`, but the answer may take long.
    Long,
    /// The call must not be done twice. If it breaks off, its outcome is unknown.
    Once,
}

impl Client {
    /// Sends a call to the leader.
    pub(crate) async fn call<T, F>(&self, kind: Kind, call: impl Fn(Way) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut hint = None;
        let mut last = self.shared().failed();
        let mut no_leader = None;
        let share = self.call_timeout() / if self.shared().endpoints.len() > 1 { SHARE } else { 1 };
        for tried in 0..TRIES {
            if tried > 0 && self.shared().with(|state| state.is_refused) {
                break;
            }
            let way = self.way(hint.take(), tried)?;
            let limit = if kind == Kind::Repeatable { share } else { self.call_timeout() };
            // A call that cannot be given up early and sent to another node goes only to a node that answers.
            if kind != Kind::Repeatable
                && let Err(status) = answers(way.clone(), share).await
            {
                last = Failed::Unreachable { last: reason(&status, self.shared()) };
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let status = match within(limit, call(way)).await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) => status,
            };
            match not_leader(&status) {
                Some(Some(leader)) => hint = Some(leader),
                Some(None) => {
                    // The node says which members it hears. That is a better reason than another node that does not answer.
                    no_leader = Some(Failed::NoLeader { said: status.message().to_owned() });
                    tokio::time::sleep(PAUSE).await;
                }
                // The node was removed from the cluster: it did nothing, and never will.
                None if was_removed(&status) => {}
                None if !is_lost(&status) => return Err(refusal(&status)),
                None if kind == Kind::Once => return Err(Unknown::BrokeOff(status.message().to_owned()).into()),
                None => tokio::time::sleep(PAUSE).await,
            }
            last = Failed::Unreachable { last: reason(&status, self.shared()) };
        }
        // A client that was never connected knows from its stream what is wrong, in the words of the node. gRPC often sees only that the
        // connection was closed.
        if self.cluster().is_none() && self.shared().has_tried() {
            last = self.shared().failed();
        }
        Err(no_leader.unwrap_or(last).into())
    }

    /// Sends a call to one node, once.
    pub(crate) async fn call_at<T, F>(&self, address: &str, call: impl FnOnce(Way) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let way = self.way(Some(address.to_owned()), 0)?;
        let answered = within(self.call_timeout() / SHARE, call(way)).await;
        Ok(answered.map_err(|status| refusal(&status))?.into_inner())
    }

    /// A channel to the node in `hint`, else to the leader on the first try, else to the given nodes in turn.
    fn way(&self, hint: Option<String>, tried: usize) -> Result<Way, Error> {
        let shared = self.shared();
        let say = |channel: Channel| Way::new(channel, shared.caller.clone());
        let leader = || shared.with(|state| state.leader.as_ref().map(|(_, channel)| channel.clone()));
        if hint.is_none()
            && tried == 0
            && let Some(channel) = leader()
        {
            return Ok(say(channel));
        }
        let address = hint.unwrap_or_else(|| shared.endpoints[tried % shared.endpoints.len()].clone());
        match endpoint(shared, &address) {
            Ok(endpoint) => Ok(say(endpoint.connect_lazy())),
            Err(error) => Err(Failed::BadAddress(format!("{address}: {}", chain(&error))).into()),
        }
    }
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let in_time = tokio::time::timeout(limit, call).await;
    in_time.unwrap_or_else(|_| Err(Status::unavailable("no answer in time")))
}

/// Checks that a node answers, with any answer.
async fn answers(way: Way, limit: Duration) -> Result<(), Status> {
    let asked = async { ObserveServiceClient::new(way).get_status(v1::GetStatusRequest::default()).await };
    match within(limit, asked).await {
        Err(status) if is_lost(&status) => Err(status),
        _ => Ok(()),
    }
}

/// Whether this is not the answer of a node: the node did not answer, or the connection failed. A node's answer has no cause.
fn is_lost(status: &Status) -> bool {
    status.code() == Code::Unavailable || std::error::Error::source(status).is_some()
}

fn was_removed(status: &Status) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == "REMOVED")
}

/// The error for a status.
pub(crate) fn refusal(status: &Status) -> Error {
    let message = status.message().to_owned();
    let retry_after = status.get_details_retry_info().and_then(|info| info.retry_delay);
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => Refused::Denied(message).into(),
        Code::NotFound => Refused::NotFound.into(),
        Code::OutOfRange => Refused::Compacted(message).into(),
        Code::ResourceExhausted => Failed::NotTaken { message, retry_after }.into(),
        Code::InvalidArgument | Code::FailedPrecondition | Code::AlreadyExists | Code::Unimplemented => {
            Refused::Invalid(message).into()
        }
        Code::Unavailable => Failed::Unreachable { last: message }.into(),
        _ => Unknown::BrokeOff(message).into(),
    }
}
