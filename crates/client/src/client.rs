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

use crate::address::{self, Address};
use crate::admin::Admin;
use crate::driver;
use crate::election::Election;
use crate::error::{Error, Failed};
use crate::events::Hook;
use crate::guard::{Exclusive, Mixed};
use crate::lock::LockRequest;
use crate::process::{Process, one_line};
use crate::semaphore::SemaphoreRequest;
use crate::session::{Home, SessionBuilder};
use crate::settings;
use crate::shared::{PendingRequest, Shared};
use crate::tls::Tls;
use crate::watch::WatchRequest;
use fencepost_session::client::NewSession;

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
    /// What the schemes of the addresses say about TLS.
    scheme_tls: Option<bool>,
    /// The error of the first address that is not valid. It is returned when the client connects.
    problem: Option<Failed>,
    ttl: Duration,
    name: Option<String>,
    labels: Vec<(String, String)>,
    connect_timeout: Duration,
    refused_timeout: Duration,
    call_timeout: Duration,
    drop_waits: Option<Duration>,
    pub(crate) hook: Hook,
}

impl Client {
    /// Connects to the cluster at `fencepost://host:port,host:port`, or at any other [`Address`]. Any of its nodes will do: the
    /// client finds the leader. For TLS see [`ClientBuilder::tls`].
    ///
    /// # Errors
    /// [`Failed::NothingListens`] if every address refuses the connection, which takes well under a second,
    /// [`Failed::Unreachable`] if no node could be reached within ten seconds, [`Failed::NoLeader`] if a node answered but no node
    /// leads, [`Failed::BadAddress`] if the address is not valid.
    pub async fn connect(address: &str) -> Result<Client, Error> {
        Client::builder().address(address)?.connect().await
    }

    /// Connects with the settings that the command `fencepost` reads, too. Each comes from the environment, else from the TOML file
    /// that `FENCEPOST_CONFIG` names, else it has its default:
    ///
    /// | variable | key in the file | what | default |
    /// |---|---|---|---|
    /// | `FENCEPOST_SERVER` | `server` | the nodes: see [`Address`] | `127.0.0.1:7420` |
    /// | `FENCEPOST_TIMEOUT` | `timeout` | how long to look for the leader: see [`ClientBuilder::connect_timeout`] | 10 s |
    /// | `FENCEPOST_CA` | `ca` | use TLS, and trust nodes with a certificate from these authorities: the path of a PEM file | none |
    /// | `FENCEPOST_CERT` | `cert` | the certificate of this client: the path of a PEM file | none |
    /// | `FENCEPOST_KEY` | `key` | its private key: the path of a PEM file | none |
    /// | `FENCEPOST_SERVER_NAME` | `server-name` | the name in the nodes' certificates | the host of each node |
    ///
    /// [`ClientBuilder::from_env`] reads the same, for a client with more settings of its own.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), fencepost::Error> {
    /// let client = fencepost::Client::from_env().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Failed::BadSetting`] says which setting is not valid, and where it comes from. Otherwise as [`Client::connect`].
    pub async fn from_env() -> Result<Client, Error> {
        ClientBuilder::from_env()?.connect().await
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
            scheme_tls: None,
            problem: None,
            ttl: Duration::from_millis(bounds::SESSION_TTL_MS_DEFAULT),
            name: None,
            labels: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            refused_timeout: Duration::ZERO,
            call_timeout: Duration::from_secs(10),
            drop_waits: None,
            hook: Hook::default(),
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
    /// The settings that the command `fencepost` reads, too: see [`Client::from_env`].
    ///
    /// # Errors
    /// [`Failed::BadSetting`] says which setting is not valid, and where it comes from.
    pub fn from_env() -> Result<ClientBuilder, Error> {
        settings::builder(&settings::of_environment()?)
    }

    /// Adds the nodes of an address, such as `localhost`, `fencepost://host:port,host:port` or `https://host`: see [`Address`].
    ///
    /// # Errors
    /// [`Failed::BadAddress`] if the address is not valid.
    pub fn address(mut self, address: &str) -> Result<ClientBuilder, Error> {
        self.add(&address.parse()?)?;
        Ok(self)
    }

    /// Adds a node, as `host:port` or as any other [`Address`]. Without a scheme the client speaks TLS if
    /// [`ClientBuilder::tls`] is set. An address that is not valid is refused when the client connects.
    pub fn endpoint(mut self, node: impl AsRef<str>) -> ClientBuilder {
        let added = node.as_ref().parse().and_then(|node| self.add(&node));
        if let Err(problem) = added {
            self.problem.get_or_insert(problem);
        }
        self
    }

    fn add(&mut self, address: &Address) -> Result<(), Failed> {
        if let (Some(before), Some(now)) = (self.scheme_tls, address.tls())
            && before != now
        {
            return Err(address::mixed_schemes());
        }
        self.scheme_tls = self.scheme_tls.or(address.tls());
        self.endpoints.extend_from_slice(address.nodes());
        Ok(())
    }

    /// The nodes that were added, each as `host:port`.
    pub fn nodes(&self) -> &[String] {
        &self.endpoints
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

    /// How long [`ClientBuilder::connect`] looks for the leader: 10 s by default. It spends at most 2 s of it on one node. With this
    /// setting, it also waits for nodes that are not started yet: see [`ClientBuilder::refused_timeout`].
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        (self.connect_timeout, self.refused_timeout) = (timeout, timeout);
        self
    }

    /// How long [`ClientBuilder::connect`] goes on although every node refuses the connection, because none is started or the
    /// address is wrong. By default it fails when each has refused twice. [`ClientBuilder::connect_timeout`] sets this, too, and is
    /// the limit.
    pub fn refused_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.refused_timeout = timeout;
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
    /// [`Failed::NothingListens`] if every node refuses the connection, [`Failed::Unreachable`] if no node could be reached in
    /// time, [`Failed::NoLeader`] if a node answered but no node leads.
    pub async fn connect(self) -> Result<Client, Error> {
        let timeout = self.connect_timeout;
        let client = self.connect_in_background()?;
        let shared = client.shared().clone();
        let first = async {
            loop {
                let connected = shared.connected.notified();
                let (is_over, is_refused) =
                    shared.with(|state| (state.leader.is_some() || state.is_shut_down, state.is_refused));
                if is_over || is_refused {
                    return is_over;
                }
                connected.await;
            }
        };
        match tokio::time::timeout(timeout, first).await {
            Ok(true) => Ok(client),
            Ok(false) | Err(_) => Err(shared.failed().into()),
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
        if let Some(problem) = self.problem {
            return Err(problem.into());
        }
        if self.endpoints.is_empty() {
            return Err(Failed::BadAddress("no node was added: see ClientBuilder::endpoint".to_owned()).into());
        }
        self.check_tls()?;
        let ttl = Ttl::new(millis(self.ttl)?.get())?;
        let metadata = Metadata::new(self.metadata().as_bytes())?;
        let caller = driver::Caller::new(self.name.as_deref());
        let dial_timeout = self.connect_timeout.min(DIAL_TIMEOUT);
        let mut shared = Shared::new(self.endpoints, dial_timeout, caller, self.tls);
        (shared.drop_waits, shared.hook) = (self.drop_waits, self.hook);
        shared.refused_patience = self.refused_timeout;
        let shared = Arc::new(shared);
        let runtime = Handle::current();
        runtime.spawn(driver::drive(shared.clone()));
        Ok(Client::new(shared, ttl, metadata, self.call_timeout, runtime))
    }

    /// Refuses contradictory settings. A client follows the leader from node to node, so all nodes need the same settings.
    fn check_tls(&self) -> Result<(), Error> {
        let refused = |why: &str| Err(Failed::BadTls(why.to_owned()).into());
        match &self.tls {
            None if self.scheme_tls == Some(true) => refused(
                "https:// needs the authority that signed the nodes' certificates: give it with ClientBuilder::tls",
            ),
            Some(_) if self.scheme_tls == Some(false) => refused("http:// is plain text: use https://, or no scheme"),
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
