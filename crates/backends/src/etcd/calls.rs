//! Calls to etcd: which member is called, with which timeout, and what a failure means.
//!
//! Every call that changes something is idempotent. So a call that breaks off is sent to the next member. Only the caller of a
//! release needs to know that the call was repeated ([`Answer::repeated`]). This file knows nothing about locks.

use std::future::{Future, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::{Error, Failed, Refused, Unknown};
use futures_util::{StreamExt, stream};
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Status, Streaming};

use super::proto::event::EventType;
use super::proto::kv_client::KvClient;
use super::proto::lease_client::LeaseClient;
use super::proto::watch_client::WatchClient;
use super::proto::watch_create_request::FilterType;
use super::proto::watch_request::RequestUnion;
use super::proto::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, RangeRequest, RangeResponse,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};

/// Timeout of one call to one member. Longer than an election among the other members, with etcd's defaults.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a connection attempt. Shorter than a call, so that a dead machine leaves time to call another member.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between pings on a connection with open watches. etcd treats more than one ping in 5 s as an attack.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of the answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The default port of etcd.
const PORT_DEFAULT: u16 = 2379;
/// The error of a member that is cut off from the others. It has done nothing.
const NO_LEADER: &str = "etcdserver: no leader";
/// The error of a grant whose lease id is in use.
const LEASE_EXISTS: &str = "etcdserver: lease already exists";

/// The members of a cluster. Cloning it is cheap.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    members: Arc<[Channel]>,
    /// Index of the member that answered last. The next call goes to it first.
    current: Arc<AtomicUsize>,
}

/// The answer of a member.
pub(super) struct Answer<T> {
    pub(super) message: T,
    /// An earlier attempt of the same call broke off, so the cluster may have done it twice.
    pub(super) repeated: bool,
}

impl Calls {
    /// The members of an address. Sends nothing.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub(super) fn new(address: &str) -> Result<Calls, String> {
        let members = address.strip_prefix("etcd://").unwrap_or(address).trim_end_matches('/');
        let members: Vec<Channel> = members.split(',').map(member).collect::<Result<_, String>>()?;
        Ok(Calls { members: members.into(), current: Arc::default() })
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        let request = &request;
        let range = self.call(|channel| async move {
            Ok(KvClient::new(channel).range(needs_leader(request.clone())).await?.into_inner())
        });
        Ok(range.await?.message)
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<Answer<TxnResponse>, Error> {
        let request = &request;
        let txn = self.call(|channel| async move {
            Ok(KvClient::new(channel).txn(needs_leader(request.clone())).await?.into_inner())
        });
        txn.await
    }

    /// Creates a lease with this id, and returns its TTL.
    pub(super) async fn grant(&self, id: i64, ttl_s: i64) -> Result<Duration, Error> {
        let request = LeaseGrantRequest { ttl: ttl_s, id };
        let granted = self.call(|channel| async move {
            match LeaseClient::new(channel).lease_grant(needs_leader(request)).await {
                Ok(response) => Ok(response.into_inner().ttl),
                // The id is 63 random bits, so this lease is ours: an earlier attempt created it, and its answer was lost.
                Err(status) if status.message() == LEASE_EXISTS => Ok(ttl_s),
                Err(status) => Err(status),
            }
        });
        Ok(seconds(granted.await?.message))
    }

    /// Ends a lease, which deletes the keys under it. A missing lease counts as ended.
    pub(super) async fn revoke(&self, id: i64) -> Result<(), Error> {
        let revoked = self.call(|channel| async move {
            match LeaseClient::new(channel).lease_revoke(needs_leader(LeaseRevokeRequest { id })).await {
                Err(status) if status.code() != Code::NotFound => Err(status),
                _ => Ok(()),
            }
        });
        revoked.await.map(drop)
    }

    /// Sends a keep-alive for a lease. A TTL of zero in the answer means that the lease does not exist.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<LeaseKeepAliveResponse, Error> {
        let kept = self.call(|channel| async move {
            let request = stream::once(ready(LeaseKeepAliveRequest { id }));
            let mut answers = LeaseClient::new(channel).lease_keep_alive(needs_leader(request)).await?.into_inner();
            answers.message().await?.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
        });
        Ok(kept.await?.message)
    }

    /// Watches for deletions of these keys, from a revision on.
    pub(super) async fn watch(&self, keys: &[Vec<u8>], start_revision: i64) -> Result<Watch, Error> {
        let opened = self.call(|channel| async move {
            let requests: Vec<WatchRequest> = keys.iter().map(|key| watch(key.clone(), start_revision)).collect();
            // The request stream stays open: its end would end the watch.
            let requests = stream::iter(requests).chain(stream::pending());
            Ok(WatchClient::new(channel).watch(needs_leader(requests)).await?.into_inner())
        });
        Ok(Watch { told: opened.await?.message })
    }

    /// Calls one member after another until one answers.
    async fn call<T, F>(&self, call: impl Fn(Channel) -> F) -> Result<Answer<T>, Error>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let (mut repeated, mut last) = (false, String::new());
        // One attempt more than there are members: a connection may have died since its last use.
        for _ in 0..=self.members.len() {
            let asked = self.current.load(Ordering::Relaxed);
            let status = match timeout(CALL_TIMEOUT, call(self.members[asked].clone())).await {
                Ok(Ok(message)) => return Ok(Answer { message, repeated }),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("timed out"),
            };
            if is_answer(&status) {
                return Err(refusal(&status));
            }
            repeated |= was_sent(&status);
            last = reason(&status);
            let next = (asked + 1) % self.members.len();
            // Does nothing if another call has already moved on to the next member.
            let _ = self.current.compare_exchange(asked, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        Err(if repeated { Unknown::BrokeOff(last).into() } else { Failed::Unreachable { last }.into() })
    }
}

/// A stream of deletions.
pub(super) struct Watch {
    told: Streaming<WatchResponse>,
}

impl Watch {
    /// Waits for the next deletion.
    ///
    /// # Errors
    /// If the stream ends. The caller must then read the current state.
    pub(super) async fn deletion(mut self) -> Result<(), Error> {
        loop {
            let told = self.told.message().await.map_err(|status| Unknown::BrokeOff(reason(&status)))?;
            let told = told.ok_or_else(|| Unknown::BrokeOff("the stream ended".to_owned()))?;
            if told.canceled || told.compact_revision != 0 {
                return Err(Unknown::BrokeOff(format!("the watch was cancelled: {}", told.cancel_reason)).into());
            }
            if told.events.iter().any(|event| event.r#type() == EventType::Delete) {
                return Ok(());
            }
        }
    }
}

pub(super) fn seconds(ttl_s: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl_s).unwrap_or(0))
}

fn member(place: &str) -> Result<Channel, String> {
    if place.is_empty() || place.contains(['/', '@', '?']) {
        return Err(format!("{place:?} is not host:port; logins and TLS are not supported for etcd"));
    }
    let parse = |place: String| Endpoint::from_shared(format!("http://{place}")).map_err(|error| reason(&error));
    let mut endpoint = parse(place.to_owned())?;
    if endpoint.uri().port().is_none() {
        endpoint = parse(format!("{place}:{PORT_DEFAULT}"))?;
    }
    let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
    // A watch can be silent for a long time. Without pings, a dead member would go unnoticed.
    Ok(endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT).connect_lazy())
}

fn watch(key: Vec<u8>, start_revision: i64) -> WatchRequest {
    let create = WatchCreateRequest { key, start_revision, filters: vec![FilterType::Noput.into()] };
    WatchRequest { request_union: Some(RequestUnion::Create(create)) }
}

/// Asks a member that is cut off from the others to fail the call and end its streams, instead of letting us wait.
fn needs_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}

/// Whether the status is the cluster's answer. If not, another member may answer differently.
fn is_answer(status: &Status) -> bool {
    use Code::{Aborted, Cancelled, DeadlineExceeded, Internal, Unavailable, Unknown};
    !matches!(status.code(), Aborted | Cancelled | DeadlineExceeded | Internal | Unavailable | Unknown)
}

/// Whether the cluster may have executed the call.
fn was_sent(status: &Status) -> bool {
    status.message() != NO_LEADER && !chain(status).any(|error| error.is::<ConnectError>())
}

fn refusal(status: &Status) -> Error {
    let message = status.message().to_owned();
    match status.code() {
        Code::NotFound => Refused::NotFound.into(),
        Code::PermissionDenied | Code::Unauthenticated => Refused::Denied(message).into(),
        _ => Failed::NotTaken { message, retry_after: None }.into(),
    }
}

/// The text of an error with its causes.
fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said: Vec<String> = match error.downcast_ref::<Status>() {
        Some(status) => vec![status.message().to_owned()],
        None => vec![error.to_string()],
    };
    said.extend(chain(error).map(|below| below.to_string()));
    said.dedup();
    said.join(": ")
}

fn chain(error: &dyn std::error::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |error: &&(dyn std::error::Error + 'static)| (*error).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_accepts_only_a_list_of_members() {
        let members = |address: &str| Calls::new(address).map(|calls| calls.members.len());
        assert_eq!(members("etcd://a:2379,b:2379,[::1]:2379/"), Ok(3));
        assert_eq!(members("etcd://a"), Ok(1));
        for bad in ["etcd://", "etcd://a,,b", "etcd://user:word@a:2379", "etcd://a/b", "etcd://a b"] {
            assert!(members(bad).is_err(), "{bad}");
        }
    }
}
