//! Calls beside the stream: reads and what administrators do. They go to the leader that the stream has found, or look for it.

use std::future::Future;
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt;

use crate::client::Client;
use crate::driver::{Way, chain, endpoint, not_leader, reason};
use crate::error::{Error, Failed, Refused, Unknown};

/// How often one call is sent before its failure is told.
const TRIES: usize = 6;
/// Between two tries when nobody knows who leads.
const PAUSE: Duration = Duration::from_millis(200);

/// What may be concluded if a call breaks off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It changes nothing, or doing it twice is doing it once: it is sent again.
    Repeatable,
    /// Nobody knows whether it was done.
    Once,
}

impl Client {
    /// Sends a call to the leader.
    pub(crate) async fn call<T, F>(&self, kind: Kind, call: impl Fn(Way) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut hint = None;
        let mut last = Error::Failed(Failed::Unreachable { last: self.shared().last_failure() });
        for tried in 0..TRIES {
            let way = self.way(hint.take(), tried)?;
            let status = match tokio::time::timeout(self.call_timeout(), call(way)).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::unavailable("no answer in time"),
            };
            match not_leader(&status) {
                Some(Some(leader)) => hint = Some(leader),
                Some(None) => tokio::time::sleep(PAUSE).await,
                None if status.code() != Code::Unavailable => return Err(refusal(&status)),
                None if kind == Kind::Once => return Err(Unknown::BrokeOff(status.message().to_owned()).into()),
                None => tokio::time::sleep(PAUSE).await,
            }
            last = Failed::Unreachable { last: reason(&status, self.shared()) }.into();
        }
        Err(last)
    }

    /// A way to the node that was named, else to the leader, else to one node after the other.
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

/// What a status says.
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
