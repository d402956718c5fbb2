//! ZooKeeper: an ensemble of three, used through the lock recipe of its Rust client, which is that of Apache Curator. Each contender
//! creates an ephemeral sequential node in the directory of the name. The first node holds the lock, and each other contender watches
//! the node before its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use fencepost_testbed::{Kind, Server};
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use super::servers;
use fencepost_load::contender::Contender;

use crate::system::{Program, System};

const MEMBERS: usize = 3;
/// Sessions of a program, one with each server. The contenders are spread over them. A usual program has one session, but then one
/// server would do all the work. 32 sessions were no faster with 256 contenders.
const SESSIONS: usize = 3;
/// Long enough for a busy machine on which all systems run.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// The parent of the directories of the names.
const ROOT: &str = "/locks";
/// The prefix of Curator's lock nodes.
const NODE: &str = "lock-";

/// Three servers.
pub struct Zookeeper {
    servers: Vec<Server>,
}

/// A session with each server.
struct ZookeeperProgram {
    sessions: Vec<Client>,
    next: AtomicUsize,
}

impl Zookeeper {
    /// Starts the servers.
    ///
    /// # Errors
    /// If ZooKeeper or Java is not installed, or the ensemble does not start.
    pub async fn start() -> anyhow::Result<Zookeeper> {
        let zookeeper = Zookeeper { servers: servers::cluster(Kind::ZookeeperMember, MEMBERS).await? };
        let session = connect(&zookeeper.servers[0]).await?;
        session.create(ROOT, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
        Ok(zookeeper)
    }
}

async fn connect(server: &Server) -> anyhow::Result<Client> {
    let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
    Ok(connector.connect(&format!("127.0.0.1:{}", server.port())).await?)
}

#[async_trait]
impl System for Zookeeper {
    fn name(&self) -> &str {
        "ZooKeeper x3"
    }

    fn how(&self) -> &str {
        "an ensemble of three; the lock recipe of the zookeeper-client crate (that of Curator) over one session with each server, \
         which all contenders share; every change is replicated and synced by a majority before it is answered"
    }

    async fn program(&self) -> anyhow::Result<Box<dyn Program>> {
        let mut sessions = Vec::new();
        for server in self.servers.iter().cycle().take(SESSIONS) {
            sessions.push(connect(server).await?);
        }
        Ok(Box::new(ZookeeperProgram { sessions, next: AtomicUsize::new(0) }))
    }

    fn processes(&self) -> Vec<u32> {
        servers::processes(&self.servers)
    }
}

#[async_trait]
impl Program for ZookeeperProgram {
    async fn contender(&self) -> anyhow::Result<Box<dyn Contender>> {
        let session = self.next.fetch_add(1, Ordering::Relaxed) % self.sessions.len();
        Ok(Box::new(ZookeeperContender { session: self.sessions[session].clone(), held: None }))
    }
}

struct ZookeeperContender {
    session: Client,
    /// The node of the lock that was taken last.
    held: Option<String>,
}

#[async_trait]
impl Contender for ZookeeperContender {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        let directory = format!("{ROOT}/{}", name.replace('/', ":"));
        // The server deletes empty containers after a while, so names do not pile up.
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(container)?;
        let lock = self.session.lock(LockPrefix::new_curator(&directory, NODE)?, b"", options).await?;
        self.held = Some(lock.lock_path().to_owned());
        // Dropping it would delete the node in the background, and `release` could not wait for that. So `release` deletes it.
        std::mem::forget(lock);
        Ok(())
    }

    async fn acquire_shared(&mut self, _: &str) -> anyhow::Result<()> {
        anyhow::bail!("the recipe of zookeeper-client has no shared locks")
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let node = self.held.take().context("the contender holds no lock")?;
        self.session.delete(&node, None).await?;
        Ok(())
    }
}
