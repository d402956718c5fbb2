//! The client: one connection to a cluster, its builder, and the session that all clones share.
//!
//! Every other request begins here, with a method of [`Client`]. The connection itself runs in `driver.rs`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use fencepost_core::{LockMode, Metadata, Millis, SessionId, Ttl, bounds};
use fencepost_wire::SessionSecret;
use tokio::runtime::Handle;

use crate::admin::Admin;
use crate::driver;
use crate::election::Election;
use crate::error::{Error, Failed};
use crate::guard::{Exclusive, Mixed};
use crate::lock::LockRequest;
use crate::process::{Process, one_line};
use crate::semaphore::SemaphoreRequest;
use crate::session::{Home, SessionBuilder};
use crate::shared::{PendingRequest, Shared};
use crate::tls::Tls;
use crate::watch::WatchRequest;
use fencepost_session::client::NewSession;

/// The port if an address has none.
const PORT: u16 = 7420;
/// How long one node may take to answer before the next is tried. A node that hangs accepts connections and never answers. A
/// client that dials it first must still find the others within seconds.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a cluster. Cloning it is cheap, and all clones share the connection and one session.
///
/// The session is opened with the first lock. When the last clone and the last guard are gone, it is closed in the background.
///
/// ```no_run
/// use std::time::Duration;
/// use fencepost::Client;
///
/// # async fn example() -> Result<(), fencepost::Error> {
/// let client = Client::connect("fencepost://127.0.0.1:7420").await?;
/// let lock = client.lock("wallet:user_123").wait(Duration::from_secs(5)).acquire().await?;
/// println!("write with token {}", lock.token());
/// lock.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    ttl: Ttl,
    metadata: Metadata,
    call_timeout: Duration,
    /// The session that all clones share. `None` before its first use and after a close.
    session: Mutex<Option<SessionId>>,
    /// The runtime on which the driver runs.
    runtime: Handle,
    /// A second client, with its own connection, for the efficiency tier: locks in the leader's memory only. Created at its first use.
    efficiency: OnceLock<Client>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.with(|state| state.closing = true);
        self.shared.wake.notify_one();
    }
}

/// How to connect. See [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    endpoints: Vec<String>,
    tls: Option<Tls>,
    /// A node was given with `https://`.
    says_https: bool,
    /// A node was given with `http://`.
    says_http: bool,
    ttl: Duration,
    name: Option<String>,
    labels: Vec<(String, String)>,
    connect_timeout: Duration,
    call_timeout: Duration,
    drop_waits: Option<Duration>,
}

impl Client {
    /// Connects to the cluster at `fencepost://host:port,host:port`. Any of its nodes will do: the client finds the leader. For
    /// TLS see [`ClientBuilder::tls`].
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if no node could be reached within ten seconds, [`Failed::NoLeader`] if a node answered but no node
    /// leads, [`Failed::BadAddress`] if the address is not valid.
    pub async fn connect(address: &str) -> Result<Client, Error> {
        Client::builder().address(address)?.connect().await
    }

    /// Builds a client with settings of your own.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fencepost::Error> {
    /// let client = fencepost::Client::builder()
    ///     .endpoint("10.0.0.1:7420")
    ///     .endpoint("10.0.0.2:7420")
    ///     .session_ttl(std::time::Duration::from_secs(15))
    ///     .name("billing")
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            endpoints: Vec::new(),
            tls: None,
            says_https: false,
            says_http: false,
            ttl: Duration::from_millis(bounds::SESSION_TTL_MS_DEFAULT),
            name: None,
            labels: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(10),
            drop_waits: None,
        }
    }

    /// An exclusive lock on one resource; `shared()` and `update()` make it another. A name that begins with `/` is a path, and
    /// a lock on it covers everything below.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest<Exclusive> {
        LockRequest::new(self.home(), [(name, LockMode::Exclusive)])
    }

    /// Exclusive locks on several resources, up to 64, that are granted together or not at all.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockRequest<Exclusive> {
        LockRequest::new(self.home(), names.into_iter().map(|name| (name, LockMode::Exclusive)))
    }

    /// Locks on several resources, each in its own mode, that are granted together or not at all.
    pub fn lock_each<N: AsRef<str>>(&self, locks: impl IntoIterator<Item = (N, LockMode)>) -> LockRequest<Mixed> {
        LockRequest::new(self.home(), locks)
    }

    /// Permits of a semaphore.
    pub fn semaphore(&self, name: impl AsRef<str>) -> SemaphoreRequest {
        SemaphoreRequest::new(self.home(), name.as_ref())
    }

    /// A leader election.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election::new(self.clone(), self.home(), name.as_ref())
    }

    /// The id of the cluster; `None` until a node has answered. Names, tokens and grant ids have a meaning within one cluster only.
    pub fn cluster(&self) -> Option<u128> {
        self.shared().with(|state| state.machine.cluster())
    }

    /// Events about names that begin with this prefix.
    pub fn watch(&self, prefix: impl Into<String>) -> WatchRequest {
        WatchRequest::new(self.clone(), prefix.into())
    }

    /// The operations of administrators.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// A separate session on this connection: what it holds ends with this session, not with another one.
    pub fn session(&self) -> SessionBuilder {
        SessionBuilder::new(self.clone())
    }

    /// Closes the session that the clones of this client share: everything that it holds is given back at once.
    ///
    /// # Errors
    /// [`Error::Unknown`] if no answer came. Then the locks end at their deadline at the latest.
    pub async fn close(&self) -> Result<(), Error> {
        if let Some(efficiency) = self.inner.efficiency.get() {
            // The efficiency client has no second client itself, so this recursion ends.
            Box::pin(efficiency.close()).await?;
        }
        let session = self.inner.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        match session {
            Some(session) => self.close_session(session).await,
            None => Ok(()),
        }
    }

    fn home(&self) -> Home {
        Home::Client(self.clone())
    }

    /// A client for the efficiency tier of the same cluster: its lock state is in the leader's memory only.
    // Rule: tier-efficiency
    pub(crate) fn efficiency(&self) -> Client {
        let connect = || {
            let shared = Arc::new(self.shared().to_efficiency());
            self.inner.runtime.spawn(driver::drive(shared.clone()));
            let Inner { ttl, metadata, call_timeout, runtime, .. } = &*self.inner;
            Client::new(shared, *ttl, metadata.clone(), *call_timeout, runtime.clone())
        };
        self.inner.efficiency.get_or_init(connect).clone()
    }

    fn new(shared: Arc<Shared>, ttl: Ttl, metadata: Metadata, call_timeout: Duration, runtime: Handle) -> Client {
        let (session, efficiency) = (Mutex::new(None), OnceLock::new());
        Client { inner: Arc::new(Inner { shared, ttl, metadata, call_timeout, session, runtime, efficiency }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        self.inner.call_timeout
    }

    pub(crate) fn ttl(&self) -> Ttl {
        self.inner.ttl
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.inner.metadata
    }

    /// The shared session. Opens a new one if there is none or it has ended.
    pub(crate) fn default_session(&self) -> Result<SessionId, Error> {
        let mut session = self.inner.session.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = *session
            && self.shared().with(|state| state.machine.is_alive(id))
        {
            return Ok(id);
        }
        let id = self.open_session(self.inner.ttl, self.inner.metadata.clone())?;
        *session = Some(id);
        Ok(id)
    }

    pub(crate) fn open_session(&self, ttl: Ttl, metadata: Metadata) -> Result<SessionId, Error> {
        let no_randomness =
            |error| Failed::NotTaken { message: format!("this machine has no randomness: {error}"), retry_after: None };
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(no_randomness)?;
        let secret = SessionSecret::draw(getrandom::fill).map_err(no_randomness)?;
        let id = SessionId(u128::from_le_bytes(id));
        let opened = self.shared().with(|state| {
            state.machine.open_session(NewSession { id, secret, ttl, metadata });
            !state.is_shut_down
        });
        if opened { Ok(id) } else { Err(Failed::ShutDown.into()) }
    }

    pub(crate) async fn close_session(&self, session: SessionId) -> Result<(), Error> {
        let pending = self.shared().close_session(session, self.call_timeout());
        match self.decided(pending).await {
            Ok(_) | Err(Error::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn decided(&self, pending: PendingRequest) -> Result<fencepost_core::Outcome, Error> {
        crate::error::decided(pending.await, || self.shared().failed())
    }
}

impl ClientBuilder {
    /// The nodes of `fencepost://host:port,host:port`. The scheme `https://` demands TLS, and `http://` plain text.
    ///
    /// # Errors
    /// [`Failed::BadAddress`] if the address is not valid.
    pub fn address(mut self, address: &str) -> Result<ClientBuilder, Error> {
        let bad = || Failed::BadAddress(address.to_owned());
        let (scheme, nodes) = address.split_once("://").ok_or_else(bad)?;
        let nodes = nodes.trim_end_matches('/');
        if !["fencepost", "https", "http"].contains(&scheme) {
            return Err(bad().into());
        }
        for node in nodes.split(',') {
            if node.is_empty() || node.contains(['/', '@', '?', ' ']) {
                return Err(bad().into());
            }
            self = match scheme {
                "fencepost" => self.endpoint(node),
                _ => self.endpoint(format!("{scheme}://{node}")),
            };
        }
        Ok(self)
    }

    /// Adds a node, as `host:port`. The default port is 7420. `https://host:port` demands TLS, and `http://host:port` plain text.
    /// Without a scheme the client speaks TLS if [`ClientBuilder::tls`] is set.
    pub fn endpoint(mut self, node: impl Into<String>) -> ClientBuilder {
        let mut node = node.into();
        for (scheme, is_said) in [("https://", &mut self.says_https), ("http://", &mut self.says_http)] {
            if let Some(rest) = node.strip_prefix(scheme) {
                node = rest.trim_end_matches('/').to_owned();
                *is_said = true;
            }
        }
        let has_port = node
            .rsplit_once(':')
            .is_some_and(|(host, port)| (!host.contains(':') || host.ends_with(']')) && port.parse::<u16>().is_ok());
        if !has_port {
            node = format!("{node}:{PORT}");
        }
        self.endpoints.push(node);
        self
    }

    /// Speaks TLS with every node: with the nodes given here, and with a leader that they name.
    pub fn tls(mut self, tls: Tls) -> ClientBuilder {
        self.tls = Some(tls);
        self
    }

    /// How long a session lives without a keep-alive: 30 s by default, at least 1 s. After a crash of the client, its locks become
    /// free after this time. Below 5 s a lock may be lost when the leader changes.
    pub fn session_ttl(mut self, ttl: Duration) -> ClientBuilder {
        self.ttl = ttl;
        self
    }

    /// The name of this client: shown to people who ask who holds a lock. Sessions with the same name are counted
    /// together.
    pub fn name(mut self, name: impl Into<String>) -> ClientBuilder {
        self.name = Some(name.into());
        self
    }

    /// Adds a label, which is shown to people who ask who holds a lock. The client adds its user, host, program, pid and start by
    /// itself; a label with one of these keys takes its place.
    pub fn label(mut self, key: impl Into<String>, value: impl Display) -> ClientBuilder {
        self.labels.push((key.into(), value.to_string()));
        self
    }

    /// How long [`ClientBuilder::connect`] looks for the leader: 10 s by default. It spends at most 2 s of it on one node.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.connect_timeout = timeout;
        self
    }

    /// How long an answer may take, in addition to the wait for a lock: 10 s by default. If there are several nodes, a read gives
    /// each of them a quarter of it, and then asks the next.
    pub fn call_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.call_timeout = timeout;
        self
    }

    /// Lets a dropped guard wait until its release is written, for this time at the most.
    #[cfg(feature = "blocking")]
    pub(crate) fn drop_waits(mut self, limit: Duration) -> ClientBuilder {
        self.drop_waits = Some(limit);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Failed::Unreachable`] if no node could be reached in time, [`Failed::NoLeader`] if a node answered but no node leads.
    pub async fn connect(self) -> Result<Client, Error> {
        let timeout = self.connect_timeout;
        let client = self.connect_in_background()?;
        let shared = client.shared().clone();
        let first = async {
            loop {
                let connected = shared.connected.notified();
                if shared.with(|state| state.leader.is_some() || state.is_shut_down) {
                    return;
                }
                connected.await;
            }
        };
        match tokio::time::timeout(timeout, first).await {
            Ok(()) => Ok(client),
            Err(_) => Err(shared.failed().into()),
        }
    }

    /// Returns a client at once and connects in the background. Requests wait for the connection.
    ///
    /// # Errors
    /// [`Failed::BadAddress`] if there is no node, [`Failed::BadTls`] if the TLS settings cannot work,
    /// [`crate::Refused::BadWord`] if the TTL is too short.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn connect_in_background(self) -> Result<Client, Error> {
        if self.endpoints.is_empty() {
            return Err(Failed::BadAddress(String::new()).into());
        }
        self.check_tls()?;
        let ttl = Ttl::new(millis(self.ttl)?.get())?;
        let metadata = Metadata::new(self.metadata().as_bytes())?;
        let caller = driver::Caller::new(self.name.as_deref());
        let dial_timeout = self.connect_timeout.min(DIAL_TIMEOUT);
        let mut shared = Shared::new(self.endpoints, dial_timeout, caller, self.tls);
        shared.drop_waits = self.drop_waits;
        let shared = Arc::new(shared);
        let runtime = Handle::current();
        runtime.spawn(driver::drive(shared.clone()));
        Ok(Client::new(shared, ttl, metadata, self.call_timeout, runtime))
    }

    /// Refuses contradictory settings. A client follows the leader from node to node, so all nodes need the same settings.
    fn check_tls(&self) -> Result<(), Error> {
        let refused = |why: &str| Err(Failed::BadTls(why.to_owned()).into());
        match &self.tls {
            _ if self.says_https && self.says_http => {
                refused("some nodes are https:// and some http://: use one of them")
            }
            None if self.says_https => refused(
                "https:// needs the authority that signed the nodes' certificates: give it with ClientBuilder::tls",
            ),
            Some(_) if self.says_http => refused("http:// is plain text: use https://, or no scheme"),
            Some(tls) => tls.check(),
            None => Ok(()),
        }
    }

    /// The metadata of the client's sessions: one line `key=value` for each fact. `docs/operating.md` has the format.
    fn metadata(&self) -> String {
        let mut facts: BTreeMap<String, String> = Process::this().facts().collect();
        facts.insert("sdk".to_owned(), format!("rust {}", env!("CARGO_PKG_VERSION")));
        facts.extend(self.name.iter().map(|name| ("name".to_owned(), one_line(name))));
        // A label takes the place of a fact with the same key: in a container, the user knows the host better.
        facts.extend(self.labels.iter().map(|(key, value)| (one_line(key), one_line(value))));
        let lines: Vec<String> = facts.iter().map(|(key, value)| format!("{key}={value}")).collect();
        lines.join("\n")
    }
}

/// A duration in the cluster's unit, rounded up to whole milliseconds.
pub(crate) fn millis(duration: Duration) -> Result<Millis, Error> {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    Ok(Millis::new(u64::try_from(ms).unwrap_or(u64::MAX))?)
}
