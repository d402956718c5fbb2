//! One session with ZooKeeper, and how long it is certainly alive.
//!
//! A session ends when the leader has had no keep-alive for the session timeout. Our server (the one that we are connected to)
//! answers us, but it reports our activity to the leader only every half tick, together with that of all other sessions. Our writes
//! go to the leader, but do not count as keep-alives there. So one answered read or write proves nothing: if our server is cut off
//! right after it, the leader counts from an earlier report.
//!
//! This is a proof: our server answers a message, half a tick passes, and then a write is committed. The write reaches the leader
//! after the report about the first message, because both use the same connection. The commit shows that the leader was still the
//! leader. (A new leader gives every session its full timeout. `sync` and a read are not enough, because a replaced leader may
//! answer them for a while.) So the session is alive until one timeout after we sent the first message.
//!
//! A task therefore writes at a steady pace, and each write confirms the one before. The write changes nothing: it is a transaction
//! that only checks that a node exists. There is one such task for each session, however many locks it holds.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost::{Error, Failed, Nanos, Refused, Unknown, clock};
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{self as zk, Acls, CreateMode, MultiWriteError, SessionState};

use crate::backend::{Proof, random};
use crate::backoff::Backoff;

/// Timeout of connecting, opening a session and creating the root.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// After this silence the client reconnects, to another server or the same one; sooner for a short session. The client's default is
/// two fifths of the session timeout, which is most of the time that a lock has left. A server that is still starting ignores
/// connections that come too early.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// A client that loses its server finds the next one within milliseconds. A request at that moment waits this long before it fails.
const RECONNECT_GRACE: Duration = Duration::from_millis(50);
/// The other servers report to the leader every half tick, and a session timeout is at least two ticks (`minSessionTimeout`). So
/// after a quarter of the session timeout the leader has the report.
const RELAYED_AFTER_PART: u32 = 4;
/// Shorter TTLs are raised to this. The client library limits each connection attempt by the TTL, so a shorter TTL leaves too
/// little time to connect. It would not help either: a server grants at least two ticks.
const TTL_MIN: Duration = Duration::from_millis(100);
/// ZooKeeper counts milliseconds in signed 32 bits.
const TTL_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// A session. It lives until its last user drops it, or until ZooKeeper ends it.
#[derive(Debug)]
pub(super) struct Session {
    client: zk::Client,
    /// The negotiated session timeout.
    ttl: Duration,
    /// When we sent the newest message that the leader certainly knows of.
    heard_at: watch::Sender<Nanos>,
}

impl Session {
    /// Connects, and creates the root if it is missing.
    pub(super) async fn open(cluster: &str, root: &str, ttl: Duration) -> Result<Arc<Session>, Error> {
        let opening = async {
            let (began_at, client) = connect(cluster, ttl.clamp(TTL_MIN, TTL_MAX)).await?;
            let asked_at = clock::now();
            client.mkdir(root, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.map_err(failed)?;
            // The leader itself opens sessions, so it knows of the first message.
            let session = Session { ttl: client.session_timeout(), client, heard_at: watch::Sender::new(began_at) };
            let session = Arc::new(session);
            tokio::spawn(beat(Arc::downgrade(&session), session.ttl, root.to_owned(), asked_at));
            Ok(session)
        };
        let late = |_| Error::from(Failed::Unreachable { last: "ZooKeeper did not answer in time".to_owned() });
        timeout(OPEN_TIMEOUT, opening).await.map_err(late)?
    }

    /// The connection.
    pub(super) fn client(&self) -> &zk::Client {
        &self.client
    }

    /// Whether the session has ended for good.
    pub(super) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// Returns when the session has ended.
    pub(super) async fn over(&self) {
        let mut watcher = self.client.state_watcher();
        while !self.is_over() {
            watcher.changed().await;
        }
    }

    /// Waits a short time for a connection. Without one, the client would queue a request until it reconnects, which may be too late.
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if there is no connection within [`RECONNECT_GRACE`].
    pub(super) async fn connected(&self) -> Result<(), Error> {
        let connected = async {
            let mut watcher = self.client.state_watcher();
            while self.client.state() == SessionState::Disconnected {
                watcher.changed().await;
            }
        };
        let last = "the connection to ZooKeeper broke, and the client is reconnecting";
        timeout(RECONNECT_GRACE, connected).await.map_err(|_| Failed::Unreachable { last: last.to_owned() }.into())
    }

    /// The newest proof that the session is alive.
    pub(super) fn proof(&self) -> Proof {
        Proof { sent_at: *self.heard_at.borrow(), ttl: self.ttl }
    }

    /// Waits for a proof that the session is alive and that is newer than `known`.
    ///
    /// # Errors
    /// [`Refused::SessionEnded`] if the session ends first.
    pub(super) async fn proof_after(&self, known: Proof) -> Result<Proof, Error> {
        let mut heard_at = self.heard_at.subscribe();
        tokio::select! {
            () = self.over() => {}
            heard = heard_at.wait_for(|heard_at| *heard_at > known.sent_at) => if heard.is_ok() {
                return Ok(self.proof());
            },
        }
        Err(Refused::SessionEnded(None).into())
    }

    /// Commits a transaction that changes nothing. The leader commits it like any other.
    async fn write_nothing(&self, root: &str) -> Result<(), zk::Error> {
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version(root, -1)?;
        match writer.commit().await {
            // A failed check is committed, too.
            Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => Ok(()),
            Err(MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }
}

/// Connects, and returns when the attempt began.
async fn connect(cluster: &str, ttl: Duration) -> Result<(Nanos, zk::Client), Error> {
    loop {
        let began_at = clock::now();
        let connector = zk::Client::connector().with_session_timeout(ttl).with_connection_timeout(SILENCE_MAX);
        // Fails after one attempt at each server. Otherwise the client would retry for a whole session timeout.
        match connector.with_fail_eagerly().connect(cluster).await {
            Ok(client) => return Ok((began_at, client)),
            // An attempt takes at most the session timeout, which may be too short for an answer. Retries until `OPEN_TIMEOUT`.
            Err(zk::Error::Timeout) => {}
            Err(error) => return Err(Failed::Unreachable { last: error.to_string() }.into()),
        }
    }
}

/// Calls [`Session::write_nothing`] at a steady pace until the session ends. `answered_at` is the instant when we sent the newest
/// message that our server has answered.
async fn beat(session: Weak<Session>, ttl: Duration, root: String, mut answered_at: Nanos) {
    let mut backoff = Backoff::for_unreachable();
    let relayed_after = ttl / RELAYED_AFTER_PART;
    let mut pause = relayed_after;
    loop {
        // Holds only a weak reference while it sleeps, so that the last user can drop the session.
        tokio::time::sleep(pause).await;
        let Some(session) = session.upgrade().filter(|session| !session.is_over()) else { return };
        let sent_at = clock::now();
        match timeout(ttl, session.write_nothing(&root)).await {
            Ok(Ok(())) => {
                // At least `relayed_after` has passed between the answer to the previous message and this message.
                session.heard_at.send_replace(answered_at);
                answered_at = sent_at;
                backoff.reset();
                pause = relayed_after;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the periodic write of a session failed; retrying");
                pause = backoff.pause(random()).min(relayed_after);
            }
            Err(_) => pause = Duration::ZERO,
        }
    }
}

/// Whether the outcome of the call is unknown. The caller finds out by asking again on the next connection.
pub(super) fn is_broken_off(error: &zk::Error) -> bool {
    use zk::Error::{ConnectionLoss, Custom, SessionMoved, Timeout, UnexpectedError, UnmarshalError};
    matches!(error, ConnectionLoss | Custom(_) | SessionMoved | Timeout | UnexpectedError(_) | UnmarshalError { .. })
}

/// What an error of a call means for the caller.
pub(super) fn failed(error: zk::Error) -> Error {
    match error {
        zk::Error::SessionExpired | zk::Error::ClientClosed => Refused::SessionEnded(None).into(),
        zk::Error::NoAuth | zk::Error::AuthFailed => Refused::Denied(format!("ZooKeeper says: {error}")).into(),
        error if is_broken_off(&error) => Unknown::BrokeOff(error.to_string()).into(),
        error => Failed::NotTaken { message: format!("ZooKeeper says: {error}"), retry_after: None }.into(),
    }
}
