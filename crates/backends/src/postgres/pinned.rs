//! A connection that belongs to one lock: the session or transaction on it holds the lock and ends with it.
//!
//! Dropping it closes the socket, so no lock stays without a holder. An outcome is never unknown: if a lock may have been granted,
//! closing the connection releases it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Failed, Lost, Nanos, Refused, Token, Unknown, clock};
use tokio::io::AsyncReadExt;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

use super::{CALL_TIMEOUT, in_time, is_fatal, not_taken, said, unreachable};
use crate::backend::{Lease, Proof, Undo};

/// A connection, and why it ended.
pub(super) struct Pinned {
    pub(super) client: Client,
    /// The server process of our session.
    pub(super) process: i32,
    /// The process id in the server's greeting. A pooler sends an id of its own.
    greeted_by: i32,
    /// Why it ended; `None` while it is open.
    ended: watch::Receiver<Option<Lost>>,
    driver: AbortHandle,
}

impl Pinned {
    pub(super) async fn open(config: &Config) -> Result<Pinned, Error> {
        let late = |_| Failed::Unreachable { last: format!("no connection within {} s", CALL_TIMEOUT.as_secs()) };
        let (client, connection) =
            timeout(CALL_TIMEOUT, config.connect(NoTls)).await.map_err(late)?.map_err(|error| unreachable(&error))?;
        let (sender, ended) = watch::channel(None);
        let driver = tokio::spawn(async move {
            let why = match connection.await {
                Err(error) if is_timeout(error.code()) => Lost::DeadlinePassed,
                _ => Lost::Gone,
            };
            sender.send_replace(Some(why));
        });
        let mut pinned = Pinned { client, process: 0, greeted_by: 0, ended, driver: driver.abort_handle() };
        let select = async { pinned.client.query_typed_one("SELECT pg_backend_pid()", &[]).await?.try_get(0) };
        let process = nothing_done(in_time(select).await)?;
        pinned.greeted_by = greeted_by(&pinned.client).await?;
        pinned.process = process;
        Ok(pinned)
    }

    /// Whether we are connected to the server itself, and not to a pooler.
    pub(super) fn is_direct(&self) -> bool {
        self.process == self.greeted_by
    }

    /// Cancels the query if the caller stops waiting for the lock. A server process that waits for a lock does not notice at once
    /// that the connection is closed.
    pub(super) fn cancel_if_dropped(&self) -> Undo {
        let cancel = self.client.cancel_token();
        Undo::new(async move { drop(timeout(CALL_TIMEOUT, cancel.cancel_query(NoTls)).await) })
    }

    /// Why the connection ended, if it has.
    pub(super) fn end(&self) -> Option<Lost> {
        self.ended.borrow().clone()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Otherwise the driver would first wait for pending answers, and one of them may be the grant of a lock.
        self.driver.abort();
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("process", &self.process).finish_non_exhaustive()
    }
}

/// The process id in the server's greeting, which a cancel request needs. The library shows the id only inside a cancel request.
/// So this writes such a request into a pipe and reads the id from it. Nothing is sent.
async fn greeted_by(client: &Client) -> Result<i32, Error> {
    /// A cancel request: its length, the code for "cancel", the process id, and a secret, with four bytes each.
    const REQUEST_BYTES: usize = 16;
    let (near, mut far) = tokio::io::duplex(REQUEST_BYTES);
    let mut request = [0; REQUEST_BYTES];
    client.cancel_token().cancel_query_raw(near, NoTls).await.map_err(|error| unreachable(&error))?;
    far.read_exact(&mut request).await.map_err(|error| Failed::NotUnderstood(error.to_string()))?;
    let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = request;
    Ok(i32::from_be_bytes([a, b, c, d]))
}

/// Turns an unknown outcome into a failure. Right for a connection that is closed after an error: closing it undoes everything.
pub(super) fn nothing_done<T>(result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| match error {
        Error::Unknown(Unknown::BrokeOff(last)) => Failed::Unreachable { last }.into(),
        Error::Unknown(unknown) => Failed::Unreachable { last: unknown.to_string() }.into(),
        other => other,
    })
}

/// Whether the server ended the session because it idled for too long.
fn is_timeout(code: Option<&SqlState>) -> bool {
    let idle_session = SqlState::from_code("57P05");
    code.is_some_and(|code| *code == idle_session || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT)
}

/// The lock that a pinned connection holds.
#[async_trait]
pub(super) trait Held: fmt::Debug + Send + Sync + 'static {
    /// Whether any error of the server releases the lock.
    const ENDS_WITH_AN_ERROR: bool;

    /// Asks the server whether the lock is still held.
    async fn is_held(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error>;

    /// Releases the lock. False if it was not held.
    async fn let_go(&self, pinned: &Pinned) -> Result<bool, tokio_postgres::Error>;
}

/// A lock with its own connection.
#[derive(Debug)]
pub(super) struct PinnedLease<H> {
    held: H,
    token: Token,
    proof: Proof,
    ended: watch::Receiver<Option<Lost>>,
    way: Mutex<Way>,
}

/// The connection of a lock.
#[derive(Debug)]
enum Way {
    Open(Arc<Pinned>),
    /// The lock was released or lost. Later calls get this answer.
    Closed(Refused),
}

impl<H: Held> PinnedLease<H> {
    pub(super) fn new(pinned: Pinned, held: H, token: Token, sent_at: Nanos, ttl: Duration) -> PinnedLease<H> {
        let (ended, proof) = (pinned.ended.clone(), Proof { sent_at, ttl });
        PinnedLease { held, token, proof, ended, way: Mutex::new(Way::Open(Arc::new(pinned))) }
    }

    /// Runs a call with a timeout. `Ok` if the lock was held, otherwise what the failure means for the lock.
    async fn heard(
        &self,
        pinned: &Pinned,
        call: impl Future<Output = Result<bool, tokio_postgres::Error>>,
    ) -> Result<(), Error> {
        match timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(Lost::Gone.into()),
            Ok(Err(error)) => Err(match error.as_db_error() {
                Some(_) if is_timeout(error.code()) => Lost::DeadlinePassed.into(),
                Some(db) if is_fatal(db) || H::ENDS_WITH_AN_ERROR => Lost::Gone.into(),
                Some(_) => not_taken(&error).into(),
                // Without its connection the lock is lost. The server will notice the end of the connection later.
                None => {
                    tracing::debug!(error = said(&error), "the connection that held a lock is gone");
                    pinned.end().unwrap_or(Lost::Gone).into()
                }
            }),
            Err(_) => Err(Unknown::NoAnswer.into()),
        }
    }
}

#[async_trait]
impl<H: Held> Lease for PinnedLease<H> {
    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    fn proof(&self) -> Proof {
        self.proof
    }

    async fn renew(&self) -> Result<Proof, Error> {
        let pinned = match &*self.way.lock().await {
            Way::Open(pinned) => pinned.clone(),
            Way::Closed(why) => return Err(why.clone().into()),
        };
        let sent_at = clock::now();
        self.heard(&pinned, self.held.is_held(&pinned)).await?;
        Ok(Proof { sent_at, ttl: self.proof.ttl })
    }

    async fn ended(&self) -> Lost {
        match self.ended.clone().wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Lost::Gone),
            Err(_) => Lost::Gone,
        }
    }

    async fn release(&self) -> Result<(), Error> {
        // A second release waits for the answer to the first.
        let mut way = self.way.lock().await;
        let pinned = match &*way {
            Way::Open(pinned) => pinned.clone(),
            Way::Closed(why) => return Err(why.clone().into()),
        };
        // From here on the connection is closed in every case, which releases the lock.
        *way = Way::Closed(Refused::NotHeld);
        let released = self.heard(&pinned, self.held.let_go(&pinned)).await;
        if let Err(Error::Refused(why)) = &released {
            *way = Way::Closed(why.clone());
        }
        released
    }
}
