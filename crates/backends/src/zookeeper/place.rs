//! One place in the queue of a name: how it is taken, how it is waited in, how it is given up.
//!
//! A place is an ephemeral node. It is the session's, and so it stays for as long as the process lives, if nobody deletes it: whoever
//! gives up must go on until it is gone. And whether it was made may be unknown, when the connection broke before the answer; so it
//! has a unique part, by which it is found again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fencepost::{Error, Lost, Refused};
use zookeeper_client::{self as zk, Acls, CreateMode, EventType};

use super::queue::{self, Ahead};
use super::session::{Session, failed, is_broken_off};
use crate::backend::{Mode, random, unique};
use crate::backoff::Backoff;

/// A place in a queue, or the wish for one.
#[derive(Debug)]
pub(super) struct Place {
    session: Arc<Session>,
    root: String,
    /// Whose children are the queue.
    parent: String,
    /// What our child's name begins with.
    stem: String,
    taken: OnceLock<Taken>,
    /// Whether its end was asked for: then it is no loss if it is gone.
    given_up: AtomicBool,
}

#[derive(Debug)]
struct Taken {
    child: String,
    path: String,
    /// The transaction that created it.
    czxid: i64,
}

impl Place {
    /// None is taken yet.
    pub(super) fn new(session: Arc<Session>, root: &str, parent: &str, mode: Mode) -> Result<Arc<Place>, Error> {
        let stem = queue::stem(mode, &unique()?);
        let (root, parent) = (root.to_owned(), parent.to_owned());
        Ok(Arc::new(Place { session, root, parent, stem, taken: OnceLock::new(), given_up: AtomicBool::new(false) }))
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The transaction that created it, once it is taken.
    pub(super) fn czxid(&self) -> Option<i64> {
        self.taken.get().map(|taken| taken.czxid)
    }

    /// Takes it, at the end of the queue.
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
                    tracing::debug!(%error, "nobody knows whether a place was taken: looking for it");
                    if self.look_for_it().await?.is_some() {
                        return Ok(());
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// What is between it and the lock.
    pub(super) async fn ahead(&self) -> Result<Ahead, zk::Error> {
        let Some(taken) = self.taken.get() else { return Ok(Ahead::NotThere) };
        // The server knows all who came before us, since it has told us that we came. Who has left, it may learn later.
        match self.session.client().list_children(&self.parent).await {
            Ok(children) => Ok(queue::ahead(&children, &taken.child)),
            Err(zk::Error::NoNode) => Ok(Ahead::NotThere),
            Err(error) => Err(error),
        }
    }

    /// Waits until nobody is in the way any more. It outlasts broken connections, but not the session.
    pub(super) async fn wait(&self) -> Result<(), Error> {
        let mut backoff = Backoff::for_unreachable();
        loop {
            match self.wait_for_one().await {
                Ok(Ahead::Nobody) => return Ok(()),
                Ok(Ahead::Somebody(_)) => backoff.reset(),
                // An operator may delete it, which is a way to send somebody home.
                Ok(Ahead::NotThere) => return Err(Refused::Cancelled.into()),
                Err(error) if is_broken_off(&error) => tokio::time::sleep(backoff.pause(random())).await,
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Waits until the one in the way has gone, if there is one, and says who it was.
    async fn wait_for_one(&self) -> Result<Ahead, zk::Error> {
        let ahead = self.ahead().await?;
        if let Ahead::Somebody(child) = &ahead {
            let path = format!("{}/{child}", self.parent);
            match self.session.client().get_and_watch_data(&path).await {
                // It returns as well when the session ends, and the next question says so.
                Ok((_, _, watcher)) => drop(watcher.changed().await),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ahead)
    }

    /// Whether it is still there, as far as the server that we are connected to knows.
    pub(super) async fn is_there(&self) -> Result<bool, Error> {
        let Some(taken) = self.taken.get() else { return Ok(false) };
        Ok(self.session.client().check_stat(&taken.path).await.map_err(failed)?.is_some())
    }

    /// Returns when it is gone.
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

    /// Deletes it, however often that has to be asked for, until the session is over.
    ///
    /// # Errors
    /// [`Refused::Lost`] if it was gone before.
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
            // It was us, and the answer was lost.
            Err(zk::Error::NoNode) if asked_before => Ok(()),
            deleted => deleted,
        }
    }

    fn set(&self, child: String, czxid: i64) {
        let path = format!("{}/{child}", self.parent);
        // The unique part is in one node only, so whoever was first has set the same.
        let _ = self.taken.set(Taken { child, path, czxid });
    }

    /// Whether it was taken after all.
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

    /// Our child, if it is there. If it is not, it will not come any more: what was sent on an earlier connection is done by now or
    /// refused, and `sync` makes a server that lags behind catch up.
    async fn find(&self) -> Result<Option<String>, zk::Error> {
        let children = children(&self.session, &self.parent).await?;
        Ok(children.into_iter().find(|child| child.starts_with(&self.stem)))
    }

    /// Its node goes when its last child has gone (a container), which may be the moment before we come. Then it is made again.
    async fn make_parent(&self) -> Result<(), Error> {
        let client = self.session.client();
        match client.create(&self.parent, &[], &CreateMode::Container.with_acls(Acls::anyone_all())).await {
            Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
            Err(zk::Error::NoNode) => {
                let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
                client.mkdir(&self.root, &persistent).await.map_err(failed)
            }
            // The next try finds out.
            Err(error) if is_broken_off(&error) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

/// All in a queue, as the leader knows them.
pub(super) async fn children(session: &Session, parent: &str) -> Result<Vec<String>, zk::Error> {
    // They are sent when they are made, one behind the other.
    let (sync, list) = (session.client().sync(parent), session.client().list_children(parent));
    sync.await?;
    match list.await {
        Err(zk::Error::NoNode) => Ok(Vec::new()),
        children => children,
    }
}
