//! What a process has once: the runtime thread, the bridge thread, and the locks that it holds.
//!
//! A [`Process`] is made at the first use and never freed, so that every object can refer to it. A child of a fork makes its own and
//! leaves the one of its parent alone.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::bridge::{Bridge, lock};
use crate::client::Connected;
use crate::fork::PerProcess;
use crate::held::HeldLock;
use crate::logs;
use crate::problem::Problem;

/// The process that this is. An ancestor's stays where it is.
static HERE: PerProcess<&'static Process> = PerProcess::new();

/// Requests are taken.
const OPEN: u8 = 0;
/// The program ends: waits end, and no request is taken.
const CLOSING: u8 = 1;
/// The interpreter may be gone: no thread may attach to it.
const SEALED: u8 = 2;

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) runtime: Handle,
    pub(crate) bridge: Bridge,
    /// `OPEN`, then `CLOSING`, then `SEALED`.
    stage: AtomicU8,
    /// The threads that are in a wait, and so detached from the interpreter or about to attach to it.
    waiting: AtomicUsize,
    /// The locks that the program holds. They stay here when the garbage collector takes their Python objects: it must not release a lock
    /// that the program counts on.
    held: Mutex<HashMap<u64, Arc<HeldLock>>>,
    /// The connections of this process, to be closed at its end.
    connections: Mutex<Vec<Weak<Connected>>>,
    /// Dropping it ends the runtime thread.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    /// Ends when the runtime thread has ended.
    runtime_ended: Mutex<mpsc::Receiver<()>>,
}

impl Process {
    /// The process that this is, if it has been used. Takes no lock.
    pub(crate) fn here() -> Option<&'static Process> {
        HERE.get()
    }

    /// The process that this is. Starts its threads if it has not been used.
    pub(crate) fn here_or_new() -> Result<&'static Process, Problem> {
        HERE.get_or_make(
            || Process::start().map_err(|error| Problem::failed(format!("no thread for the connection: {error}"))),
            |unused| unused.stop_threads(Duration::ZERO),
        )
    }

    fn start() -> std::io::Result<&'static Process> {
        logs::watch();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let (ends, ended) = mpsc::channel();
        let process: &'static Process = Box::leak(Box::new(Process {
            runtime: runtime.handle().clone(),
            bridge: Bridge::default(),
            stage: AtomicU8::new(OPEN),
            waiting: AtomicUsize::new(0),
            held: Mutex::default(),
            connections: Mutex::default(),
            stop: Mutex::new(Some(stop)),
            runtime_ended: Mutex::new(ended),
        }));
        thread::Builder::new().name("fencepost".to_owned()).spawn(move || {
            let _: Result<(), _> = runtime.block_on(stopped);
            runtime.shutdown_background();
            drop::<mpsc::Sender<()>>(ends);
        })?;
        thread::Builder::new().name("fencepost-bridge".to_owned()).spawn(|| process.bridge.run())?;
        Ok(process)
    }

    /// Fails if the program is about to end.
    pub(crate) fn admit(&self) -> Result<(), Problem> {
        match self.stage.load(Ordering::Acquire) {
            OPEN => Ok(()),
            _ => Err(Problem::failed("the program ends: no request is taken any more".to_owned())),
        }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.stage.load(Ordering::Acquire) == SEALED
    }

    /// Counts a thread as waiting until the result is dropped.
    pub(crate) fn enter_wait(&'static self) -> Result<Waiting, Problem> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let waiting = Waiting(self);
        self.admit()?;
        Ok(waiting)
    }

    /// Keeps a lock until it is released, lost and seen, or its client is closed.
    pub(crate) fn keep(&self, held: &Arc<HeldLock>) {
        lock(&self.held).insert(held.id(), held.clone());
    }

    pub(crate) fn let_go(&self, id: u64) -> Option<Arc<HeldLock>> {
        lock(&self.held).remove(&id)
    }

    /// The locks of one connection, which are no longer kept here.
    pub(crate) fn take_held_by(&self, connection: u64) -> Vec<Arc<HeldLock>> {
        let mut held = lock(&self.held);
        let ids: Vec<u64> = held.values().filter(|it| it.connection() == connection).map(|it| it.id()).collect();
        ids.iter().filter_map(|id| held.remove(id)).collect()
    }

    /// Remembers a connection, to close it at the end.
    pub(crate) fn note_connection(&self, connected: &Arc<Connected>) {
        let mut connections = lock(&self.connections);
        connections.retain(|it| it.strong_count() > 0);
        connections.push(Arc::downgrade(connected));
    }

    /// Gives all locks back and closes all sessions, up to the limit; then ends both threads. From then on no thread of this crate
    /// attaches to the interpreter. The caller must not be attached.
    fn shut_down(&'static self, limit: Duration) {
        if self.stage.compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        let until = Instant::now() + limit;
        let connections: Vec<_> = lock(&self.connections).iter().filter_map(Weak::upgrade).collect();
        if !connections.is_empty() {
            self.finish_within(limit, async move {
                futures_util::future::join_all(connections.iter().map(|it| it.close_all(self))).await;
            });
        }
        // Threads in a wait look at the stage every 100 ms, and leave with an exception.
        while self.waiting.load(Ordering::Acquire) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        self.stage.store(SEALED, Ordering::Release);
        self.stop_threads(until.saturating_duration_since(Instant::now()).max(Duration::from_millis(100)));
        // Their guards have no runtime any more, and Python may still refer to them.
        std::mem::forget(std::mem::take(&mut *lock(&self.held)));
    }

    /// Runs a future on the runtime thread and waits for it, up to the limit.
    fn finish_within(&self, limit: Duration, work: impl Future<Output = ()> + Send + 'static) {
        let (done, wait) = mpsc::channel::<()>();
        self.runtime.spawn(async move {
            work.await;
            drop(done);
        });
        let _ = wait.recv_timeout(limit);
    }

    fn stop_threads(&self, limit: Duration) {
        drop(lock(&self.stop).take());
        self.bridge.close(limit);
        let _ = lock(&self.runtime_ended).recv_timeout(limit);
    }
}

/// Whether the program is ending, and does not wait for this thread.
pub(crate) fn is_left_behind(py: Python<'_>) -> bool {
    Process::here().is_some_and(|process| process.admit().is_err()) && is_daemon(py).unwrap_or(false)
}

fn is_daemon(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let this = threading.call_method0("current_thread")?;
    Ok(!this.is(&threading.call_method0("main_thread")?) && this.getattr("daemon")?.extract()?)
}

/// A thread in a wait.
pub(crate) struct Waiting(&'static Process);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Gives all locks of this process back and closes its sessions, within this time. No request is taken from then on.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>, seconds: f64) {
    if let Some(process) = Process::here() {
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        py.detach(|| process.shut_down(limit));
    }
}

/// How many threads this module runs in this process: zero before the first use.
#[pyfunction]
pub(crate) fn thread_count() -> usize {
    match Process::here() {
        Some(process) if !process.is_sealed() => 2,
        _ => 0,
    }
}
