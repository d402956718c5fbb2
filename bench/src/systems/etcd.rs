//! etcd: three members, used through etcd's lock service.
//!
//! The calls are those of etcd's clients. Each contender has a lease. `Lock` gets the name and the lease, and returns a key when the
//! lock is held. `Unlock` gets that key. As in the Rust client, all contenders of a program share one channel, which has a connection
//! to each member and spreads the calls over them.

use std::future::ready;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use fencepost_testbed::{Kind, Server};
use futures_util::stream;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::transport::{Channel, Endpoint};

use self::lease::lease_client::LeaseClient;
use self::lease::{LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest};
use self::lock::lock_client::LockClient;
use self::lock::{LockRequest, UnlockRequest};
use super::servers;
use fencepost_load::contender::Contender;

use crate::system::{Program, System};

#[allow(missing_docs, unreachable_pub, reason = "generated")]
mod lease {
    tonic::include_proto!("etcdserverpb");
}
#[allow(missing_docs, unreachable_pub, reason = "generated")]
mod lock {
    tonic::include_proto!("v3lockpb");
}

const MEMBERS: usize = 3;
const LEASE_TTL_S: i64 = 60;
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Three members.
pub struct Etcd {
    servers: Vec<Server>,
}

/// A channel to all members.
struct EtcdProgram {
    channel: Channel,
}

impl Etcd {
    /// Starts the members.
    ///
    /// # Errors
    /// If etcd is not installed, or does not start.
    pub async fn start() -> anyhow::Result<Etcd> {
        Ok(Etcd { servers: servers::cluster(Kind::EtcdMember, MEMBERS).await? })
    }
}

#[async_trait]
impl System for Etcd {
    fn name(&self) -> &str {
        "etcd x3"
    }

    fn how(&self) -> &str {
        "three members; Lock and Unlock of etcd's lock service over gRPC, a lease of 60 s for each contender, one channel with a \
         connection to each member; every change is replicated and synced by a majority before it is answered"
    }

    async fn program(&self) -> anyhow::Result<Box<dyn Program>> {
        let endpoints = self.servers.iter().map(|server| {
            let place = format!("http://127.0.0.1:{}", server.port());
            Endpoint::from_shared(place).map(|endpoint| endpoint.tcp_nodelay(true))
        });
        let endpoints: Vec<Endpoint> = endpoints.collect::<Result<_, _>>()?;
        Ok(Box::new(EtcdProgram { channel: Channel::balance_list(endpoints.into_iter()) }))
    }

    fn processes(&self) -> Vec<u32> {
        servers::processes(&self.servers)
    }
}

#[async_trait]
impl Program for EtcdProgram {
    async fn contender(&self) -> anyhow::Result<Box<dyn Contender>> {
        let mut leases = LeaseClient::new(self.channel.clone());
        let granted =
            leases.lease_grant(LeaseGrantRequest { ttl: LEASE_TTL_S }).await.context("etcd grants no lease")?;
        let lease = granted.into_inner().id;
        let (lives, dropped) = oneshot::channel();
        tokio::spawn(keep(leases, lease, dropped));
        Ok(Box::new(EtcdContender { locks: LockClient::new(self.channel.clone()), lease, held: None, _lives: lives }))
    }
}

struct EtcdContender {
    locks: LockClient<Channel>,
    lease: i64,
    /// The key of the lock that was taken last.
    held: Option<Vec<u8>>,
    /// Dropped with the contender. That tells the task that keeps the lease alive to end it.
    _lives: oneshot::Sender<()>,
}

#[async_trait]
impl Contender for EtcdContender {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        let request = LockRequest { name: name.as_bytes().to_vec(), lease: self.lease };
        self.held = Some(self.locks.lock(request).await?.into_inner().key);
        Ok(())
    }

    async fn acquire_shared(&mut self, _: &str) -> anyhow::Result<()> {
        anyhow::bail!("etcd's lock service has no shared locks")
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let key = self.held.take().context("the contender holds no lock")?;
        self.locks.unlock(UnlockRequest { key }).await?;
        Ok(())
    }
}

/// Keeps a lease alive until its contender is dropped, and then ends it, so that nothing is left to expire during other measurements.
async fn keep(mut leases: LeaseClient<Channel>, id: i64, mut dropped: oneshot::Receiver<()>) {
    let mut ticks = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                // If it fails, the next keep-alive comes before the lease expires. If the lease expires, calls of the contender fail.
                if let Ok(answers) = leases.lease_keep_alive(stream::once(ready(LeaseKeepAliveRequest { id }))).await {
                    let _ = answers.into_inner().message().await;
                }
            }
            _ = &mut dropped => break,
        }
    }
    // Fails if etcd has already ended. Then there is no lease to revoke.
    let _ = leases.lease_revoke(LeaseRevokeRequest { id }).await;
}
