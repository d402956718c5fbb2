//! Locks in etcd: each contender creates a key under its own lease, and the oldest key holds the lock.
//!
//! The token is the revision that created the key, when the contender joined the queue. It rises with every write to the cluster,
//! so it also rises across names. `place.rs` has the recipe, `calls.rs` the calls to the members. Logins and TLS are not supported.

use async_trait::async_trait;
use fencepost::{Error as LockError, Lost, Token};

use crate::address::bad;
use crate::backend::{Ask, Backend, Lease, Proof};
use crate::error::Error;
use crate::promises::System;
use calls::Calls;
use place::{EtcdContender, KEY_PREFIX};
use proto::RangeRequest;

mod calls;
mod place;
#[allow(unreachable_pub, clippy::all, reason = "it is generated")]
mod proto {
    tonic::include_proto!("etcdserverpb");
}

/// A cluster of etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    calls: Calls,
}

impl Etcd {
    /// Connects to `etcd://host:port,host:port`. One member that answers is enough.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the address is not valid, [`fencepost::Failed::Unreachable`] if no member answers.
    pub async fn connect(address: &str) -> Result<Etcd, Error> {
        let calls = Calls::new(address).map_err(|why| bad(address, why))?;
        calls.range(RangeRequest { key: KEY_PREFIX.into(), ..Default::default() }).await?;
        Ok(Etcd { calls })
    }
}

#[async_trait]
impl Backend for Etcd {
    fn system(&self) -> System {
        System::Etcd
    }

    async fn try_acquire(&self, ask: &Ask) -> Result<Option<Box<dyn Lease>>, LockError> {
        // Reads first, so that trying a busy lock costs no write.
        if place::is_busy(&self.calls, ask).await? {
            return Ok(None);
        }
        Ok(EtcdContender::take(&self.calls, ask).await?.map(|contender| Box::new(contender) as Box<dyn Lease>))
    }

    async fn acquire(&self, ask: &Ask) -> Result<Box<dyn Lease>, LockError> {
        Ok(Box::new(EtcdContender::wait(&self.calls, ask).await?))
    }
}

/// The contender at the head of its queue holds the lock.
#[async_trait]
impl Lease for EtcdContender {
    fn token(&self) -> Option<Token> {
        self.fencing_token().ok()
    }

    fn proof(&self) -> Proof {
        self.last_proof()
    }

    async fn renew(&self) -> Result<Proof, LockError> {
        self.prolong().await
    }

    async fn ended(&self) -> Lost {
        self.gone().await
    }

    async fn release(&self) -> Result<(), LockError> {
        self.leave().await
    }
}
