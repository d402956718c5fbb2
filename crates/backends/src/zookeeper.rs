//! Locks in ZooKeeper: each contender for a name has an ephemeral sequential node under it, and the first node holds the lock.
//!
//! Each contender watches only the node that blocks it, so a release wakes one waiter. The token is the transaction that created
//! the node (its czxid). ZooKeeper counts all transactions upwards, also across fail-overs and after names are deleted.
//!
//! A client has one session for all its locks. Their TTL is the negotiated session timeout: we request `ttl`, and the servers keep
//! it within their limits (2 to 20 ticks by default). `session.rs` describes how a session proves that it is alive. Needs ZooKeeper
//! 3.5 or later. Every client that may connect has full access to the nodes.

mod place;
mod queue;
mod session;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, Failed, Lost, Refused, Token, Unknown};
use tokio::time::timeout;

use self::place::{ZookeeperContender, children};
use self::queue::Ahead;
use self::session::{Session, failed};
use crate::backend::{Ask, Backend, Lease, Mode, Proof, Undo};
use crate::promises::System;

/// Timeout of joining the queue, of reading it once, and of leaving it. Each takes a few round trips with a write, and an election
/// takes a second or two.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Tokens stay below this bound, because some stores represent numbers exactly only below it.
const TOKEN_END: u64 = 1 << 53;

/// A ZooKeeper ensemble of any size.
#[derive(Debug)]
pub struct Zookeeper {
    cluster: String,
    root: String,
    ttl: Duration,
    /// The current session. When it has ended, the next request opens a new one.
    session: tokio::sync::Mutex<Arc<Session>>,
}

impl Zookeeper {
    /// Connects to `zookeeper://host:port,host:port/chroot`. The session, with its locks, outlives a silent client by `ttl`. A
    /// missing chroot is created.
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if no server answers.
    pub async fn connect(address: &str, ttl: Duration) -> Result<Zookeeper, Error> {
        let place = address.strip_prefix("zookeeper://").unwrap_or(address);
        let (cluster, chroot) = match place.find('/') {
            Some(at) => (&place[..at], place[at..].trim_end_matches('/')),
            None => (place, ""),
        };
        let root = queue::root(chroot);
        let session = Session::open(cluster, &root, ttl).await?;
        Ok(Zookeeper { cluster: cluster.to_owned(), root, ttl, session: tokio::sync::Mutex::new(session) })
    }

    /// A connected session.
    async fn session(&self) -> Result<Arc<Session>, Error> {
        loop {
            let session = {
                let mut session = self.session.lock().await;
                if session.is_over() {
                    *session = Session::open(&self.cluster, &self.root, self.ttl).await?;
                }
                session.clone()
            };
            session.connected().await?;
            if !session.is_over() {
                return Ok(session);
            }
        }
    }

    /// Joins the queue of a name. Dropping this future or the returned `Undo` leaves the queue.
    async fn queue(
        &self,
        session: Arc<Session>,
        parent: &str,
        mode: Mode,
    ) -> Result<(Arc<ZookeeperContender>, Undo), Error> {
        let contender = ZookeeperContender::new(session, &self.root, parent, mode)?;
        let undo = {
            let contender = contender.clone();
            Undo::new(async move { drop(contender.give_up().await) })
        };
        timeout(CALL_TIMEOUT, contender.take()).await.map_err(|_| Unknown::NoAnswer)??;
        Ok((contender, undo))
    }
}

#[async_trait]
impl Backend for Zookeeper {
    fn system(&self) -> System {
        System::Zookeeper
    }

    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, Error> {
        let parent = queue::parent(&self.root, ask.name.as_str());
        let session = self.session().await?;
        // Read first: a contender that joins the queue only to leave at once would block other clients that try.
        let look = timeout(CALL_TIMEOUT, children(&session, &parent)).await;
        let look = look.map_err(|_| Failed::Unreachable { last: "ZooKeeper did not answer in time".to_owned() })?;
        if queue::is_busy(&look.map_err(failed)?, ask.mode) {
            return Ok(None);
        }
        let (contender, undo) = self.queue(session, &parent, ask.mode).await?;
        let ahead = timeout(CALL_TIMEOUT, contender.ahead()).await.map_err(|_| Unknown::NoAnswer)?.map_err(failed)?;
        if let Ahead::Nothing = ahead {
            return granted(contender, undo).map(Some);
        }
        if let Ok(Ok(())) = timeout(CALL_TIMEOUT, contender.give_up()).await {
            undo.disarm();
        }
        Ok(None)
    }

    async fn acquire(&self, ask: &Ask) -> Result<Box<dyn Lease>, Error> {
        let parent = queue::parent(&self.root, ask.name.as_str());
        let (contender, undo) = self.queue(self.session().await?, &parent, ask.mode).await?;
        contender.wait().await?;
        granted(contender, undo)
    }
}

/// A lock in ZooKeeper.
struct ZookeeperLease {
    contender: Arc<ZookeeperContender>,
    token: Token,
    granted: Proof,
    /// The newest proof that `renew` returned.
    proof: Mutex<Proof>,
    /// Deletes the node when the lease is dropped. Otherwise the session would keep it as long as the process lives.
    undo: Mutex<Option<Undo>>,
    released: AtomicBool,
}

/// The lease of the contender at the head of the queue.
fn granted(contender: Arc<ZookeeperContender>, undo: Undo) -> Result<Box<dyn Lease>, Error> {
    let token = token(contender.czxid())?;
    // No contender is ahead, and our node exists as long as the session is certainly alive.
    let granted = contender.session().proof();
    let (proof, undo, released) = (Mutex::new(granted), Mutex::new(Some(undo)), AtomicBool::new(false));
    Ok(Box::new(ZookeeperLease { contender, token, granted, proof, undo, released }))
}

fn token(czxid: Option<i64>) -> Result<Token, Error> {
    let token = czxid.and_then(|czxid| u64::try_from(czxid).ok()).filter(|token| (1..TOKEN_END).contains(token));
    token.map(Token).ok_or_else(|| {
        let message =
            format!("the transaction that created the node ({czxid:?}) is not a valid token: tokens are below 2^53");
        Failed::NotTaken { message, retry_after: None }.into()
    })
}

#[async_trait]
impl Lease for ZookeeperLease {
    fn token(&self) -> Option<Token> {
        Some(self.token)
    }

    fn proof(&self) -> Proof {
        self.granted
    }

    async fn renew(&self) -> Result<Proof, Error> {
        let known = *self.proof.lock().unwrap_or_else(PoisonError::into_inner);
        let proof = self.contender.session().proof_after(known).await?;
        // The server has seen the write behind this proof, so its answer about the node is no older than the write.
        match timeout(CALL_TIMEOUT, self.contender.is_there()).await.map_err(|_| Unknown::NoAnswer)?? {
            true => {
                *self.proof.lock().unwrap_or_else(PoisonError::into_inner) = proof;
                Ok(proof)
            }
            false => Err(Lost::Gone.into()),
        }
    }

    async fn ended(&self) -> Lost {
        tokio::select! {
            () = self.contender.gone() => {}
            () = self.contender.session().over() => {}
        }
        Lost::Gone
    }

    async fn release(&self) -> Result<(), Error> {
        if self.released.load(Ordering::Acquire) {
            return Err(Refused::NotHeld.into());
        }
        // If this future is dropped or gets no answer, `undo` continues in the background.
        let undo = self.undo.lock().unwrap_or_else(PoisonError::into_inner).take();
        let given_up = timeout(CALL_TIMEOUT, self.contender.give_up()).await.map_err(|_| Unknown::NoAnswer)?;
        if let Some(undo) = undo {
            undo.disarm();
        }
        if given_up.is_ok() {
            self.released.store(true, Ordering::Release);
        }
        given_up
    }
}

impl std::fmt::Debug for ZookeeperLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZookeeperLease").field("token", &self.token).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_outside_the_range_of_tokens_is_refused_with_the_reason() {
        assert_eq!(token(Some(0x1_0000_0001)).expect("an ordinary one"), Token(0x1_0000_0001));
        assert_eq!(token(Some((1 << 53) - 1)).expect("the last"), Token((1 << 53) - 1));
        for bad in [None, Some(-1), Some(0), Some(1 << 53), Some(i64::MAX)] {
            let refused = token(bad).expect_err("not a token");
            assert!(refused.is_failed() && refused.to_string().contains("below 2^53"), "{refused}");
        }
    }
}
