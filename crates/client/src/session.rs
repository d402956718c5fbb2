//! Sessions that users open for themselves, and where a lock belongs.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockMode, Metadata, SessionId, Ttl};

use crate::client::{Client, millis};
use crate::election::Election;
use crate::error::{Error, Refused};
use crate::guard::{Exclusive, Mixed};
use crate::lock::LockRequest;
use crate::semaphore::SemaphoreRequest;

/// A session of its own on a client's connection. Cloning it is cheap.
///
/// Everything that it holds ends with it. When the last clone and the last guard are gone, it is closed in the background.
#[derive(Clone, Debug)]
pub struct Session {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    id: SessionId,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let shared = self.client.shared();
        shared.with(|state| {
            if state.machine.is_alive(self.id) {
                state.machine.close_session(self.id, None);
            }
        });
        shared.wake.notify_one();
    }
}

/// What a session will be like. See [`Client::session`].
#[derive(Clone, Debug)]
pub struct SessionBuilder {
    client: Client,
    ttl: Option<Duration>,
    metadata: Option<Vec<u8>>,
}

impl SessionBuilder {
    pub(crate) fn new(client: Client) -> SessionBuilder {
        SessionBuilder { client, ttl: None, metadata: None }
    }

    /// How long it lives without a sign of life, at least 1 s.
    pub fn ttl(mut self, ttl: Duration) -> SessionBuilder {
        self.ttl = Some(ttl);
        self
    }

    /// For people who ask whose session it is.
    pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> SessionBuilder {
        self.metadata = Some(metadata.into());
        self
    }

    /// The session. It goes to the cluster with its first request.
    ///
    /// # Errors
    /// [`crate::Refused::BadWord`] if the TTL or the metadata is not valid.
    pub fn open(self) -> Result<Session, Error> {
        let ttl = self.ttl.map_or(Ok(self.client.ttl()), |ttl| Ok::<_, Error>(Ttl::new(millis(ttl)?.get())?))?;
        let metadata = self.metadata.map_or(Ok(self.client.metadata().clone()), |metadata| Metadata::new(&metadata))?;
        let id = self.client.open_session(ttl, metadata)?;
        Ok(Session { inner: Arc::new(Inner { client: self.client, id }) })
    }
}

impl Session {
    /// Its id, as observers see it. It is no secret.
    pub fn id(&self) -> SessionId {
        self.inner.id
    }

    /// Whether it lives, as far as this client knows.
    pub fn is_alive(&self) -> bool {
        self.inner.client.shared().with(|state| state.machine.is_alive(self.inner.id))
    }

    /// As [`Client::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest<Exclusive> {
        LockRequest::new(Home::Session(self.clone()), [(name, LockMode::Exclusive)])
    }

    /// As [`Client::lock_all`].
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockRequest<Exclusive> {
        LockRequest::new(Home::Session(self.clone()), names.into_iter().map(|name| (name, LockMode::Exclusive)))
    }

    /// As [`Client::lock_each`].
    pub fn lock_each<N: AsRef<str>>(&self, locks: impl IntoIterator<Item = (N, LockMode)>) -> LockRequest<Mixed> {
        LockRequest::new(Home::Session(self.clone()), locks)
    }

    /// As [`Client::semaphore`].
    pub fn semaphore(&self, name: impl AsRef<str>) -> SemaphoreRequest {
        SemaphoreRequest::new(Home::Session(self.clone()), name.as_ref())
    }

    /// As [`Client::election`].
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.inner.client.clone(), Home::Session(self.clone()), name.as_ref())
    }

    /// Closes it: everything that it holds is given back at once.
    ///
    /// # Errors
    /// [`Error::Unknown`] if no answer came. The locks then end with their deadline at the latest.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.client.close_session(self.inner.id).await
    }
}

/// Where a lock belongs, and what must live as long as it does.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    /// In the session that the clones of a client share.
    Client(Client),
    Session(Session),
}

impl Home {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Home::Client(client) => client,
            Home::Session(session) => &session.inner.client,
        }
    }

    pub(crate) fn session(&self) -> Result<SessionId, Error> {
        match self {
            Home::Client(client) => client.default_session(),
            Home::Session(session) => Ok(session.inner.id),
        }
    }

    /// The same place in the efficiency tier, if there is one.
    ///
    /// # Errors
    /// [`Refused::OtherTier`]: a session of its own is a session of one tier.
    pub(crate) fn efficiency(&self) -> Result<Home, Error> {
        match self {
            Home::Client(client) => Ok(Home::Client(client.efficiency())),
            Home::Session(_) => Err(Refused::OtherTier.into()),
        }
    }

    /// Whether a session that has ended can be replaced by a new one without anybody noticing.
    pub(crate) fn opens_anew(&self) -> bool {
        matches!(self, Home::Client(_))
    }
}
