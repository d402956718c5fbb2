//! The client: its connection in this process, and the requests that begin with it.
//!
//! Making a client starts no thread and sends nothing, so that a program can make one before it forks. The first request connects, in the
//! process that makes it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_backends::Promise;
use futures_util::future::join_all;
use pyo3::prelude::*;
use tokio::sync::OnceCell;

use crate::ask::{self, Ask, Mode, Terms, duration};
use crate::bridge::lock;
use crate::fork::PerProcess;
use crate::op::{Abandoned, Op, Outcome, Value};
use crate::problem::{Kind, Problem};
use crate::process::Process;
use crate::settings::{Settings, Wanted, WantedTls};
use crate::shown;
use crate::watch::{Source, Watch};

/// Up to this many sessions have exactly the TTL that a lock asks for. After that the TTL is rounded up, so that a program that computes its
/// TTLs does not open a session for each: there are at most 26 such TTLs up to the longest, a year.
const EXACT_SESSIONS_MAX: usize = 16;

/// The connection of a client in one process.
#[derive(Debug)]
pub(crate) struct Connected {
    id: u64,
    settings: Arc<Settings>,
    /// Empty before the first request, and after a close.
    client: Mutex<Arc<OnceCell<fencepost_backends::Client>>>,
    /// Sessions for locks whose TTL is above the client's, by their TTL.
    sessions: Mutex<HashMap<Duration, fencepost::Session>>,
    is_closed: AtomicBool,
}

/// Which session a lock belongs to.
pub(crate) enum Home {
    Client(fencepost::Client),
    Session(fencepost::Session),
}

impl Connected {
    fn new(settings: Arc<Settings>) -> Connected {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (client, sessions, is_closed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Connected { id: NEXT.fetch_add(1, Relaxed), settings, client, sessions, is_closed }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Connects, unless that was done before. A failed attempt is made again by the next request.
    pub(crate) async fn client(&self) -> Result<fencepost_backends::Client, Problem> {
        self.admit()?;
        let client = lock(&self.client).clone();
        let client = client.get_or_try_init(|| self.settings.connect()).await?.clone();
        self.admit()?;
        Ok(client)
    }

    fn admit(&self) -> Result<(), Problem> {
        match self.is_closed.load(Relaxed) {
            true => Err(Problem::failed("the client is closed: connect again".to_owned())),
            false => Ok(()),
        }
    }

    /// The client of Fencepost, for what only Fencepost has.
    pub(crate) async fn native(&self, name: &str, needed: Promise) -> Result<fencepost::Client, Problem> {
        let client = self.client().await?;
        client.promised(name, fencepost::Tier::Correctness, needed)?;
        client.native(name).ok_or_else(|| Problem::unsupported(format!("this lock system has no {}", needed.name())))
    }

    pub(crate) fn is_above_ttl(&self, ttl: Option<Duration>) -> bool {
        ttl.is_some_and(|ttl| ttl > self.settings.ttl)
    }

    /// The session for a lock with this TTL: the client's, or one of that TTL if it is longer. The lock has a TTL of its own, so it ends in time
    /// in a session with a longer one, too.
    pub(crate) fn home(&self, native: &fencepost::Client, ttl: Option<Duration>) -> Result<Home, Problem> {
        let Some(ttl) = ttl.filter(|_| self.is_above_ttl(ttl)) else { return Ok(Home::Client(native.clone())) };
        let mut sessions = lock(&self.sessions);
        sessions.retain(|_, session| session.is_alive());
        let is_exact = sessions.len() < EXACT_SESSIONS_MAX || sessions.contains_key(&ttl);
        let ttl = if is_exact { ttl } else { rounded_up(ttl) };
        if let Some(session) = sessions.get(&ttl) {
            return Ok(Home::Session(session.clone()));
        }
        let session = native.session().ttl(ttl).open()?;
        sessions.insert(ttl, session.clone());
        Ok(Home::Session(session))
    }

    /// Gives back all locks of this connection and closes its sessions. No request is taken from now on.
    pub(crate) async fn close_all(self: &Arc<Self>, process: &'static Process) -> Result<(), Problem> {
        self.is_closed.store(true, Relaxed);
        let held = process.take_held_by(self.id);
        let releases = held.iter().filter_map(|held| held.take_grip_to_close()).map(|grip| grip.release());
        // A lock that was lost, or that its system could not release, ends with its TTL.
        join_all(releases).await;
        let client = std::mem::take(&mut *lock(&self.client));
        let Some(client) = client.get() else { return Ok(()) };
        let sessions: Vec<_> = lock(&self.sessions).drain().map(|(_, session)| session).collect();
        let closed = join_all(sessions.iter().map(|session| session.close())).await;
        if let Some(native) = client.native("") {
            native.close().await?;
        }
        Ok(closed.into_iter().collect::<Result<(), _>>()?)
    }
}

/// A client.
#[pyclass(frozen, module = "fencepost._core")]
pub(crate) struct Client {
    settings: Arc<Settings>,
    connected: PerProcess<Arc<Connected>>,
}

impl Client {
    /// The connection of this process, and the process.
    fn here(&self) -> Result<(&'static Process, Arc<Connected>), Problem> {
        let process = Process::here_or_new()?;
        let make = || {
            let connected = Arc::new(Connected::new(self.settings.clone()));
            process.note_connection(&connected);
            Ok::<_, Problem>(connected)
        };
        Ok((process, self.connected.get_or_make(make, drop)?))
    }

    fn start<W>(&self, work: impl FnOnce(&'static Process, Arc<Connected>) -> W) -> PyResult<Op>
    where
        W: Future<Output = Outcome> + Send + 'static,
    {
        let (process, connected) = self.here()?;
        let work = work(process, connected);
        Op::start(process, Abandoned::Cancelled, async move { work.await.map_err(Problem::of_a_request) })
    }
}

/// The next power of two in seconds, at most the longest TTL.
fn rounded_up(ttl: Duration) -> Duration {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    let seconds = ttl.as_secs().saturating_add(1).checked_next_power_of_two();
    // A TTL above the bound is refused as it is.
    seconds.map_or(ttl, Duration::from_secs).min(YEAR.max(ttl))
}

/// The authorities; the certificate and its key; the name in the nodes' certificates.
type TlsFiles = (Vec<u8>, Option<(Vec<u8>, Vec<u8>)>, Option<String>);

/// An optional duration in seconds.
fn seconds(seconds: Option<f64>) -> Result<Option<Duration>, Problem> {
    seconds.map(duration).transpose()
}

fn terms(wait: Option<f64>, ttl: Option<f64>, max_hold: Option<f64>) -> Result<Terms, Problem> {
    Ok(Terms { wait: seconds(wait)?, ttl: seconds(ttl)?, max_hold: seconds(max_hold)? })
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (address, ttl, name, labels, tls, connect_timeout, call_timeout))]
    fn new(
        address: Option<String>,
        ttl: Option<f64>,
        name: Option<String>,
        labels: Vec<(String, String)>,
        tls: Option<TlsFiles>,
        connect_timeout: Option<f64>,
        call_timeout: Option<f64>,
    ) -> PyResult<Client> {
        let tls = tls.map(|(ca, identity, server_name)| WantedTls { ca, identity, server_name });
        let (connect_timeout, call_timeout) = (seconds(connect_timeout)?, seconds(call_timeout)?);
        let wanted = Wanted { address, ttl: seconds(ttl)?, name, labels, tls, connect_timeout, call_timeout };
        Ok(Client { settings: Arc::new(Settings::new(wanted)?), connected: PerProcess::new() })
    }

    /// Asks for a lock. The result is a `Held`.
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn lock(
        &self,
        names: Vec<String>,
        mode: &str,
        efficiency: bool,
        owner: Option<String>,
        wait: Option<f64>,
        ttl: Option<f64>,
        max_hold: Option<f64>,
    ) -> PyResult<Op> {
        let mode = match mode {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            "update" => Mode::Update,
            other => return Err(Problem::new(Kind::Value, format!("{other:?} is not a mode")).into()),
        };
        let ask = Ask { names, mode, efficiency, owner, terms: terms(wait, ttl, max_hold)? };
        self.start(|process, connected| ask::acquire(process, connected, ask))
    }

    /// Asks for permits. The result is a `Held`.
    fn semaphore(
        &self,
        name: String,
        permits: u32,
        limit: Option<u32>,
        wait: Option<f64>,
        ttl: Option<f64>,
        max_hold: Option<f64>,
    ) -> PyResult<Op> {
        let terms = terms(wait, ttl, max_hold)?;
        self.start(|process, connected| ask::permits(process, connected, name, permits, limit, terms))
    }

    /// Campaigns in an election. The result is a `Held`.
    fn campaign(&self, name: String, value: Vec<u8>, wait: Option<f64>, ttl: Option<f64>) -> PyResult<Op> {
        let terms = terms(wait, ttl, None)?;
        self.start(|process, connected| ask::campaign(process, connected, name, value, terms))
    }

    /// Reads who leads.
    fn leader(&self, name: String) -> PyResult<Op> {
        self.start(|_, connected| async move {
            let native = connected.native(&name, Promise::Elections).await?;
            let leader = native.election(&name).leader().await?;
            Ok(Value::made(move |py| shown::leader(py, leader)))
        })
    }

    /// Observes changes of a leader. The result is a `Watch`.
    fn observe(&self, name: String) -> PyResult<Op> {
        self.start(|process, connected| async move {
            let native = connected.native(&name, Promise::Elections).await?;
            let source = Source::leader(native.election(&name).observe().await?);
            Ok(Value::made(move |py| Ok(Watch::new(process, source).into_pyobject(py)?.into_any().unbind())))
        })
    }

    /// Asks for a job. The result is a `Held`, or the fields of a completion if the job is completed.
    fn job(
        &self,
        name: String,
        key: String,
        keep: Option<f64>,
        wait: Option<f64>,
        ttl: Option<f64>,
        max_hold: Option<f64>,
    ) -> PyResult<Op> {
        let (keep, terms) = (seconds(keep)?, terms(wait, ttl, max_hold)?);
        self.start(|process, connected| ask::job(process, connected, name, key, keep, terms))
    }

    /// Watches events about names with this prefix. The result is a `Watch`.
    fn watch(&self, prefix: String, after: Option<&str>) -> PyResult<Op> {
        let after = after.map(shown::position).transpose()?;
        self.start(move |process, connected| async move {
            let native = connected.native(&prefix, Promise::Events).await?;
            let request = native.watch(prefix);
            let request = after.into_iter().fold(request, |request, after| request.after(after));
            let source = Source::Events(request.start().await?);
            Ok(Value::made(move |py| Ok(Watch::new(process, source).into_pyobject(py)?.into_any().unbind())))
        })
    }

    /// Explains the state of a name.
    fn explain(&self, name: String) -> PyResult<Op> {
        self.start(|_, connected| async move {
            let native = connected.native(&name, Promise::Explain).await?;
            let explained = native.explain(&name).await?;
            Ok(Value::made(move |py| shown::explanation(py, &explained)))
        })
    }

    /// Gives back all locks and closes the sessions. `None` if this process has not used the client. No request is taken from now on.
    fn close(&self) -> PyResult<Option<Op>> {
        let Some(process) = Process::here() else { return Ok(None) };
        let Some(connected) = self.connected.get() else { return Ok(None) };
        let close = async move {
            connected.close_all(process).await?;
            Ok(Value::Nothing)
        };
        Op::start(process, Abandoned::GoesOn, close).map(Some)
    }
}
