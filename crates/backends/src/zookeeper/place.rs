//! One contender in the queue of a name: how it joins the queue, waits, and leaves.
//!
//! A contender is an ephemeral node. The node belongs to the session, so it stays as long as the process lives unless it is
//! deleted. A contender that leaves must retry until the node is gone. If the connection breaks before the answer to a create, it
//! is unknown whether the node exists. So its name has a unique part, by which we can find it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fencepost::{Error, Lost, Refused};
use zookeeper_client::{self as zk, Acls, CreateMode, EventType};

use super::queue::{self, Ahead};
use super::session::{Session, failed, is_broken_off};
use crate::backend::{Mode, random, unique};
use crate::backoff::Backoff;

/// A contender for a name: its node in the queue, before and after the node exists.
#[derive(Debug)]
pub(super) struct ZookeeperContender {
    session: Arc<Session>,
    root: String,
    /// The node whose children are the queue.
    parent: String,
    /// The start of our child's name.
    stem: String,
    taken: OnceLock<Taken>,
    /// Whether we have sent a delete. If so, a missing node is not a loss.
    given_up: AtomicBool,
}

#[derive(Debug)]
struct Taken {
    child: String,
    path: String,
    /// The transaction that created it.
    czxid: i64,
}

impl ZookeeperContender {
    /// A contender without a node.
    pub(super) fn new(
        session: Arc<Session>,
        root: &str,
        parent: &str,
        mode: Mode,
    ) -> Result<Arc<ZookeeperContender>, Error> {
        let stem = queue::stem(mode, &unique()?);
        let (root, parent) = (root.to_owned(), parent.to_owned());
        Ok(Arc::new(ZookeeperContender {
            session,
            root,
            parent,
            stem,
            taken: OnceLock::new(),
            given_up: AtomicBool::new(false),
        }))
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The transaction that created the node, if the node exists.
    pub(super) fn czxid(&self) -> Option<i64> {
        self.taken.get().map(|taken| taken.czxid)
    }

    /// Creates the node, at the end of the queue.
    pub(super) async fn take(&self) -> Result<(), Error> {
        let client = self.session.client();
        let prefix = format!("{}/{}", self.parent, self.stem);
        let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        loop {
            match client.create(&prefix, &[], &ephemeral).await {
                Ok((stat, number)) => {
                    self.set(format!("{}{number}", self.stem), stat.czxid);
                    return Ok(());
                }
                Err(zk::Error::NoNode) => self.make_parent().await?,
                Err(error) if is_broken_off(&error) => {
                    tracing::debug!(%error, "it is unknown whether a node was created; looking for it");
                    if self.look_for_it().await?.is_some() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// What is between our node and the lock.
    pub(super) async fn ahead(&self) -> Result<Ahead, zk::Error> {
        let Some(taken) = self.taken.get() else { return Ok(Ahead::NotThere) };
        // The server has confirmed our node, so it knows all earlier nodes. It may not know yet that some of them are deleted.
        match self.session.client().list_children(&self.parent).await {
            Ok(children) => Ok(queue::ahead(&children, &taken.child)),
            Err(zk::Error::NoNode) => Ok(Ahead::NotThere),
            Err(error) => Err(error),
        }
    }

    /// Waits until no node blocks ours. Survives broken connections, but not the end of the session.
    pub(super) async fn wait(&self) -> Result<(), Error> {
        let mut backoff = Backoff::for_unreachable();
        loop {
            match self.wait_for_one().await {
                Ok(Ahead::Nothing) => return Ok(()),
                Ok(Ahead::Child(_)) => backoff.reset(),
                // An operator can delete our node to remove us from the queue.
                Ok(Ahead::NotThere) => return Err(Refused::Cancelled.into()),
                Err(error) if is_broken_off(&error) => tokio::time::sleep(backoff.pause(random())).await,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Waits until the node that blocks ours is gone, and returns which it was.
    async fn wait_for_one(&self) -> Result<Ahead, zk::Error> {
        let ahead = self.ahead().await?;
        if let Ahead::Child(child) = &ahead {
            let path = format!("{}/{child}", self.parent);
            match self.session.client().get_and_watch_data(&path).await {
                // It also returns when the session ends. The next call then reports that.
                Ok((_, _, watcher)) => drop(watcher.changed().await),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ahead)
    }

    /// Whether our node still exists, as far as our server knows.
    pub(super) async fn is_there(&self) -> Result<bool, Error> {
        let Some(taken) = self.taken.get() else { return Ok(false) };
        Ok(self.session.client().check_stat(&taken.path).await.map_err(failed)?.is_some())
    }

    /// Returns when our node is gone.
    pub(super) async fn gone(&self) {
        let Some(taken) = self.taken.get() else { return };
        let mut backoff = Backoff::for_unreachable();
        loop {
            match self.session.client().get_and_watch_data(&taken.path).await {
                Ok((_, _, watcher)) => {
                    backoff.reset();
                    if watcher.changed().await.event_type == EventType::NodeDeleted {
                        return;
                    }
                }
                Err(error) if is_broken_off(&error) => tokio::time::sleep(backoff.pause(random())).await,
                Err(_) => return,
            }
            if self.session.is_over() {
                return;
            }
        }
    }

    /// Deletes our node. Retries until it is gone or the session has ended.
    ///
    /// # Errors
    /// [`Refused::Lost`] if the node was already gone.
    pub(super) async fn give_up(&self) -> Result<(), Error> {
        let mut backoff = Backoff::for_unreachable();
        loop {
            match self.delete().await {
                Ok(()) => return Ok(()),
                Err(error) if is_broken_off(&error) => tokio::time::sleep(backoff.pause(random())).await,
                Err(zk::Error::NoNode | zk::Error::SessionExpired | zk::Error::ClientClosed) => {
                    return Err(Lost::Gone.into());
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn delete(&self) -> Result<(), zk::Error> {
        let path = match self.taken.get() {
            Some(taken) => taken.path.clone(),
            None => match self.find().await? {
                Some(child) => format!("{}/{child}", self.parent),
                None => return Ok(()),
            },
        };
        let asked_before = self.given_up.swap(true, Ordering::AcqRel);
        match self.session.client().delete(&path, None).await {
            // We deleted it earlier, and the answer was lost.
            Err(zk::Error::NoNode) if asked_before => Ok(()),
            deleted => deleted,
        }
    }

    fn set(&self, child: String, czxid: i64) {
        let path = format!("{}/{child}", self.parent);
        // The unique part is in one node only, so an earlier call has set the same value.
        let _ = self.taken.set(Taken { child, path, czxid });
    }

    /// Finds out whether the node was created, after a broken connection.
    async fn look_for_it(&self) -> Result<Option<()>, Error> {
        let mut backoff = Backoff::for_unreachable();
        loop {
            match self.find_with_czxid().await {
                Ok(found) => return Ok(found.map(|(child, czxid)| self.set(child, czxid))),
                Err(error) if is_broken_off(&error) => tokio::time::sleep(backoff.pause(random())).await,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    async fn find_with_czxid(&self) -> Result<Option<(String, i64)>, zk::Error> {
        let Some(child) = self.find().await? else { return Ok(None) };
        let stat = self.session.client().check_stat(&format!("{}/{child}", self.parent)).await?;
        Ok(stat.map(|stat| (child, stat.czxid)))
    }

    /// Our child, if it exists. If it does not, it will not appear later: a request of an earlier connection is executed or refused
    /// by now, and `sync` makes a lagging server catch up.
    async fn find(&self) -> Result<Option<String>, zk::Error> {
        let children = children(&self.session, &self.parent).await?;
        Ok(children.into_iter().find(|child| child.starts_with(&self.stem)))
    }

    /// Creates the node of the name. It is a container: ZooKeeper deletes it after its last child, perhaps just before we join.
    async fn make_parent(&self) -> Result<(), Error> {
        let client = self.session.client();
        match client.create(&self.parent, &[], &CreateMode::Container.with_acls(Acls::anyone_all())).await {
            Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
            Err(zk::Error::NoNode) => {
                let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
                client.mkdir(&self.root, &persistent).await.map_err(failed)
            }
            // The next create shows whether the parent exists.
            Err(error) if is_broken_off(&error) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

/// All children of a queue, as the leader knows them.
pub(super) async fn children(session: &Session, parent: &str) -> Result<Vec<String>, zk::Error> {
    // Both requests are sent at once, in this order.
    let (sync, list) = (session.client().sync(parent), session.client().list_children(parent));
    sync.await?;
    match list.await {
        Err(zk::Error::NoNode) => Ok(Vec::new()),
        children => children,
    }
}
