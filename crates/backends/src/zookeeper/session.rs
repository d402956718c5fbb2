//! One session with ZooKeeper, and how long it certainly lives.
//!
//! A session ends when the leader has heard nothing of it for its time-out. But it is not the leader who answers: the server that we
//! are connected to does, and tells the leader only every half tick who was there, together with all others. What we write goes to
//! the leader, and does not count there as a sign of life. So neither a read nor a write that was answered at once is a proof: if
//! our server was cut off right after it, the leader counts from an earlier message.
//!
//! What is a proof: a message that our server answered, then half a tick, then a write that was committed. The write came to the
//! leader after the news of the first message, on the same connection; and that it was committed says that the leader still was
//! one. (A new leader gives all sessions their whole time-out anew; `sync` and a read would not do, since a leader that has been
//! replaced may answer them for a while.) Then the session lives for its time-out after the first message was sent.
//!
//! So a task writes at a steady pace, and each write confirms the one before. What it writes changes nothing: a transaction that
//! only checks that a node is there. It is one for the session, however many locks it holds.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost::{Error, Failed, Nanos, Refused, Unknown, clock};
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{self as zk, Acls, CreateMode, MultiWriteError, SessionState};

use crate::backend::{Proof, random};
use crate::backoff::Backoff;

/// How long it may take to be connected, with a session, and the root there.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that says nothing for so long is left for another, or connected to anew; sooner, if the session is short. The client
/// would wait for two fifths of the session, which is most of what a lock has left. One that is just starting does not answer those
/// who come too early.
const SILENCE_MAX: Duration = Duration::from_secs(4);
/// A client that lost its server finds the next one within milliseconds. Who asks just then need not hear of it.
const RECONNECT_GRACE: Duration = Duration::from_millis(50);
/// The leader hears from the other servers every half tick, and a session lives for two ticks at least (`minSessionTimeout`). So
/// after a quarter of the time-out it has heard.
const RELAYED_AFTER_PART: u32 = 4;
/// No server gives less than two ticks, and the client's own time-outs for a connection are parts of this.
const TTL_MIN: Duration = Duration::from_millis(100);
/// ZooKeeper counts milliseconds in 32 bits with a sign.
const TTL_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// A session that lives until nobody has it any more, or ZooKeeper ends it.
#[derive(Debug)]
pub(super) struct Session {
    client: zk::Client,
    /// As negotiated.
    ttl: Duration,
    /// When we sent the last message that the leader certainly knows of.
    heard_at: watch::Sender<Nanos>,
}

impl Session {
    /// Connects, and makes the root if it is not there.
    pub(super) async fn open(cluster: &str, root: &str, ttl: Duration) -> Result<Arc<Session>, Error> {
        let opening = async {
            let (began_at, client) = connect(cluster, ttl.clamp(TTL_MIN, TTL_MAX)).await?;
            let asked_at = clock::now();
            client.mkdir(root, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.map_err(failed)?;
            // The leader itself opens sessions, so it heard the very first message.
            let session = Session { ttl: client.session_timeout(), client, heard_at: watch::Sender::new(began_at) };
            let session = Arc::new(session);
            tokio::spawn(beat(Arc::downgrade(&session), session.ttl, root.to_owned(), asked_at));
            Ok(session)
        };
        let late = |_| Error::from(Failed::Unreachable { last: "ZooKeeper did not answer in time".to_owned() });
        timeout(OPEN_TIMEOUT, opening).await.map_err(late)?
    }

    /// The way to the server.
    pub(super) fn client(&self) -> &zk::Client {
        &self.client
    }

    /// Whether it has ended, for ever.
    pub(super) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// Returns when it has ended.
    pub(super) async fn over(&self) {
        let mut watcher = self.client.state_watcher();
        while !self.is_over() {
            watcher.changed().await;
        }
    }

    /// Returns when there is a connection. What is asked without one is sent when there is one again, which may be too late.
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if there is none soon.
    pub(super) async fn connected(&self) -> Result<(), Error> {
        let connected = async {
            let mut watcher = self.client.state_watcher();
            while self.client.state() == SessionState::Disconnected {
                watcher.changed().await;
            }
        };
        let last = "the connection to ZooKeeper broke, and is being opened again";
        timeout(RECONNECT_GRACE, connected).await.map_err(|_| Failed::Unreachable { last: last.to_owned() }.into())
    }

    /// Until when it certainly lives, as far as is known now.
    pub(super) fn proof(&self) -> Proof {
        Proof { sent_at: *self.heard_at.borrow(), ttl: self.ttl }
    }

    /// The next proof after this one.
    ///
    /// # Errors
    /// [`Refused::SessionEnded`].
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

    /// A transaction that changes nothing. It is committed like any other.
    async fn write_nothing(&self, root: &str) -> Result<(), zk::Error> {
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version(root, -1)?;
        match writer.commit().await {
            // That the check failed was committed, too.
            Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => Ok(()),
            Err(MultiWriteError::RequestFailed { source }) => Err(source),
        }
    }
}

/// Connects, and says when it began to.
async fn connect(cluster: &str, ttl: Duration) -> Result<(Nanos, zk::Client), Error> {
    loop {
        let began_at = clock::now();
        let connector = zk::Client::connector().with_session_timeout(ttl).with_connection_timeout(SILENCE_MAX);
        // It gives up when each server was tried once. Else it would try for as long as the session is to live.
        match connector.with_fail_eagerly().connect(cluster).await {
            Ok(client) => return Ok((began_at, client)),
            // No try is longer than the session would live, which may be too short to be answered.
            Err(zk::Error::Timeout) => {}
            Err(error) => return Err(Failed::Unreachable { last: error.to_string() }.into()),
        }
    }
}

/// Writes for as long as there is a session. `answered_at` is when the last message was sent that our server has answered.
async fn beat(session: Weak<Session>, ttl: Duration, root: String, mut answered_at: Nanos) {
    let mut backoff = Backoff::for_unreachable();
    let relayed_after = ttl / RELAYED_AFTER_PART;
    let mut pause = relayed_after;
    loop {
        // Nobody's session is held here, or it would never be closed.
        tokio::time::sleep(pause).await;
        let Some(session) = session.upgrade().filter(|session| !session.is_over()) else { return };
        let sent_at = clock::now();
        match timeout(ttl, session.write_nothing(&root)).await {
            Ok(Ok(())) => {
                // At least `relayed_after` lies between this message and the answer to the one before.
                session.heard_at.send_replace(answered_at);
                answered_at = sent_at;
                backoff.reset();
                pause = relayed_after;
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "a sign of life was not answered, and is sent again");
                pause = backoff.pause(random()).min(relayed_after);
            }
            Err(_) => pause = Duration::ZERO,
        }
    }
}

/// Whether nobody knows what came of it. Asking again on the next connection is the way to find out.
pub(super) fn is_broken_off(error: &zk::Error) -> bool {
    use zk::Error::{ConnectionLoss, Custom, SessionMoved, Timeout, UnexpectedError, UnmarshalError};
    matches!(error, ConnectionLoss | Custom(_) | SessionMoved | Timeout | UnexpectedError(_) | UnmarshalError { .. })
}

/// What an error of a call means to the caller.
pub(super) fn failed(error: zk::Error) -> Error {
    match error {
        zk::Error::SessionExpired | zk::Error::ClientClosed => Refused::SessionEnded(None).into(),
        zk::Error::NoAuth | zk::Error::AuthFailed => Refused::Denied(format!("ZooKeeper says: {error}")).into(),
        error if is_broken_off(&error) => Unknown::BrokeOff(error.to_string()).into(),
        error => Failed::NotTaken { message: format!("ZooKeeper says: {error}"), retry_after: None }.into(),
    }
}
