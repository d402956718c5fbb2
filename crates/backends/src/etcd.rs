//! Locks in etcd: a key with a lease of its own for each who wants a lock, and whoever made the oldest key has it.
//!
//! The token is the revision that made the key, when its owner got in line. It rises with every write to the cluster, so also
//! over different names. `place.rs` has the recipe, `calls.rs` the way to the members. Neither logins nor TLS are known here.

use async_trait::async_trait;
use fencepost::{Error as LockError, Lost, Token};

use crate::address::bad;
use crate::backend::{Ask, Backend, Lease, Proof};
use crate::error::Error;
use crate::promises::System;
use calls::Calls;
use place::{KEY_PREFIX, Place};
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
    /// [`Error::BadAddress`] if it is none, [`fencepost::Failed::Unreachable`] if nobody answers there.
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
        // A lock that is busy costs no write.
        if place::is_busy(&self.calls, ask).await? {
            return Ok(None);
        }
        Ok(Place::take(&self.calls, ask).await?.map(|place| Box::new(place) as Box<dyn Lease>))
    }

    async fn acquire(&self, ask: &Ask) -> Result<Box<dyn Lease>, LockError> {
        Ok(Box::new(Place::wait(&self.calls, ask).await?))
    }
}

/// A lock is the first place of a queue.
#[async_trait]
impl Lease for Place {
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
