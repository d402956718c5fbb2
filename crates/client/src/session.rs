//! Sessions that users open themselves, and [`Home`]: the session that a lock belongs to.
//!
//! The session that the clones of a client share is in `client.rs`. Both kinds use the same connection.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockMode, Metadata, SessionId, Ttl};

use crate::client::{Client, millis};
use crate::election::Election;
use crate::error::{Error, Refused};
use crate::guard::{Exclusive, Mixed};
use crate::lock::LockRequest;
use crate::semaphore::SemaphoreRequest;

/// A separate session on the connection of a client. Cloning it is cheap.
///
/// Everything that it holds ends with it. When the last clone and the last guard are dropped, it is closed in the background.
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

/// The settings of a new session. See [`Client::session`].
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

    /// How long the session lives without a keep-alive, at least 1 s.
    pub fn ttl(mut self, ttl: Duration) -> SessionBuilder {
        self.ttl = Some(ttl);
        self
    }

    /// Metadata, shown to people who ask whose session it is.
    pub fn metadata(mut self, metadata: impl Into<Vec<u8>>) -> SessionBuilder {
        self.metadata = Some(metadata.into());
        self
    }

    /// Creates the session. It is opened at the cluster with its first request.
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
    /// The id of the session, as observers see it. It is not a secret.
    pub fn id(&self) -> SessionId {
        self.inner.id
    }

    /// Whether the session lives, as far as this client knows.
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

    /// Closes the session: everything that it holds is given back at once.
    ///
    /// # Errors
    /// [`Error::Unknown`] if no answer came. Then the locks end at their deadline at the latest.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.client.close_session(self.inner.id).await
    }
}

/// The session that a lock belongs to. A guard keeps it, so that the client lives as long as the guard.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    /// The session that the clones of a client share.
    Client(Client),
    /// A separate session.
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

    /// The shared session of the efficiency tier.
    ///
    /// # Errors
    /// [`Refused::OtherTier`] for a separate session: it belongs to the correctness tier.
    pub(crate) fn efficiency(&self) -> Result<Home, Error> {
        match self {
            Home::Client(client) => Ok(Home::Client(client.efficiency())),
            Home::Session(_) => Err(Refused::OtherTier.into()),
        }
    }

    /// Whether a session that has ended may be replaced by a new one without telling the caller.
    pub(crate) fn reopens_session(&self) -> bool {
        matches!(self, Home::Client(_))
    }
}
