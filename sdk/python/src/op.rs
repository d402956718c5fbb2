//! One started request: waiting for it, taking its result, giving it up.
//!
//! The result stays in the slot until Python takes it. So a caller that is cancelled or interrupted before that, at whatever step, can give
//! up the request, and a lock that it was granted is given back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tokio::runtime::Handle;

use crate::bridge::{CallbackId, lock};
use crate::fork::OfProcess;
use crate::held::{Held, HeldLock};
use crate::problem::Problem;
use crate::process::Process;

/// A thread in a wait looks this often whether a signal has come, or the program ends.
const SLICE: Duration = Duration::from_millis(100);

/// Makes the value that Python gets.
type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The result of a request, before Python has it.
pub(crate) enum Value {
    Nothing,
    /// A granted lock. If it is dropped, the lock is given back.
    Held(Arc<HeldLock>),
    /// Anything else, made when it is taken.
    Made(Make),
}

impl Value {
    pub(crate) fn made(make: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) -> Value {
        Value::Made(Box::new(make))
    }
}

pub(crate) type Outcome = Result<Value, Problem>;

/// Whether a request that is given up goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abandoned {
    /// It is cancelled, and what it is granted is given back.
    Cancelled,
    /// It goes on: a release, for example.
    GoesOn,
}

enum Phase {
    Running,
    Done(Outcome),
    Taken,
    /// Its outcome is dropped when it comes.
    GivenUp,
}

struct Slot {
    phase: Phase,
    /// The function to call when it is done.
    listener: Option<CallbackId>,
}

struct Shared {
    process: &'static Process,
    slot: Mutex<Slot>,
    done: Condvar,
}

/// A started request.
#[pyclass(frozen, module = "fencepost._core")]
pub(crate) struct Op {
    inner: OfProcess<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// `None` if it goes on when it is given up.
    cancels: Option<Arc<Task>>,
    /// The lock that Python has taken from here.
    taken: OnceLock<Arc<HeldLock>>,
}

impl Op {
    /// Starts a request. Its first step is done here, before this returns: a release is in the client's machine from then on, and what a
    /// process computes once is not computed by the runtime thread, which a fork could interrupt.
    pub(crate) fn start(
        process: &'static Process,
        abandoned: Abandoned,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) -> PyResult<Op> {
        process.admit()?;
        let slot = Mutex::new(Slot { phase: Phase::Running, listener: None });
        let shared = Arc::new(Shared { process, slot, done: Condvar::new() });
        let work = Working { shared: shared.clone(), work: Box::pin(work) };
        let task = Arc::new(Task { runtime: process.runtime.clone(), work: Mutex::new(Some(work)) });
        let in_runtime = process.runtime.enter();
        task.step();
        drop(in_runtime);
        let cancels = (abandoned == Abandoned::Cancelled).then_some(task);
        Ok(Op { inner: OfProcess::new(Inner { shared, cancels, taken: OnceLock::new() }) })
    }

    /// Its work, which can be dropped. `None` if it goes on in any case.
    pub(crate) fn task(&self) -> Option<Arc<Task>> {
        self.inner.get().and_then(|inner| inner.cancels.clone())
    }

    fn here(&self) -> Result<&Inner, Problem> {
        let forked =
            || Problem::misused("this request was started in the parent of this process: start it in this one");
        self.inner.get().ok_or_else(forked)
    }
}

#[pymethods]
impl Op {
    /// Waits until the request is done. False if the time is over first. Signals are handled meanwhile, on the main thread.
    #[pyo3(signature = (seconds=None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        let shared = &self.here()?.shared;
        if shared.is_done() {
            return Ok(true);
        }
        let process = shared.process;
        let until = seconds.and_then(|it| Duration::try_from_secs_f64(it.max(0.0)).ok()).map(|it| Instant::now() + it);
        let _waiting = process.enter_wait()?;
        loop {
            let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
            if py.detach(|| shared.wait(left.min(SLICE))) {
                return Ok(true);
            }
            process.admit()?;
            py.check_signals()?;
            // The handler of a signal may have forked, and this may be the child.
            self.here()?;
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
    }

    /// Calls the function once when the request is done, on the bridge thread: it must return at once. False if the request is done already.
    fn listen(&self, function: Py<PyAny>) -> PyResult<bool> {
        let shared = &self.here()?.shared;
        let id = shared.process.bridge.register(function)?;
        let mut slot = lock(&shared.slot);
        let listens = matches!(slot.phase, Phase::Running);
        if listens {
            slot.listener = Some(id);
        }
        drop(slot);
        if !listens {
            drop(shared.process.bridge.take(id));
        }
        Ok(listens)
    }

    /// Takes the result, once.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let inner = self.here()?;
        let mut slot = lock(&inner.shared.slot);
        let phase = std::mem::replace(&mut slot.phase, Phase::Taken);
        let Phase::Done(outcome) = phase else {
            slot.phase = phase;
            return Err(Problem::misused("there is no result to take").into());
        };
        drop(slot);
        match outcome? {
            Value::Nothing => Ok(py.None()),
            Value::Made(make) => make(py),
            Value::Held(held) => {
                inner.shared.process.keep(&held);
                let _ = inner.taken.set(held.clone());
                Ok(Held::new(held).into_pyobject(py)?.into_any().unbind())
            }
        }
    }

    /// Gives the request up. A lock that it was granted is given back, also if its result was taken already.
    fn abandon(&self) {
        let Some(inner) = self.inner.get() else { return };
        inner.give_up();
        if let Some(held) = inner.taken.get() {
            held.let_go();
        }
    }
}

/// Python has lost the request without giving it up: a lock that it is granted must not stay held unseen. A lock that was taken stays held.
impl Drop for Inner {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Inner {
    /// Gives up a request whose result was not taken.
    fn give_up(&self) {
        let mut slot = lock(&self.shared.slot);
        let listener = slot.listener.take();
        let given_up = match slot.phase {
            Phase::Running | Phase::Done(_) => Some(std::mem::replace(&mut slot.phase, Phase::GivenUp)),
            Phase::Taken | Phase::GivenUp => None,
        };
        drop(slot);
        drop(given_up);
        drop(listener.and_then(|id| self.shared.process.bridge.take(id)));
        if let Some(task) = &self.cancels {
            task.cancel();
        }
    }
}

impl Shared {
    fn is_done(&self) -> bool {
        !matches!(lock(&self.slot).phase, Phase::Running)
    }

    /// Waits for a part of the whole wait. The caller is not attached.
    fn wait(&self, slice: Duration) -> bool {
        let running = |slot: &mut Slot| matches!(slot.phase, Phase::Running);
        let waited = self.done.wait_timeout_while(lock(&self.slot), slice, running);
        let is_done = !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        // The interpreter may be gone. A thread that attached to it would end in the middle of this code.
        while self.process.is_sealed() {
            std::thread::park();
        }
        is_done
    }

    fn finish(&self, outcome: Outcome) {
        let mut slot = lock(&self.slot);
        if !matches!(slot.phase, Phase::Running) {
            // Given up. The slot is unlocked before the outcome is dropped.
            drop(slot);
            return drop(outcome);
        }
        slot.phase = Phase::Done(outcome);
        let listener = slot.listener.take();
        drop(slot);
        self.done.notify_all();
        if let Some(id) = listener {
            self.process.bridge.call(id);
        }
    }
}

/// The work of a request, which takes a step when it is woken: on the runtime thread, but for the first step.
///
/// A task of the runtime would do the same. But its first step there wakes the runtime thread, after the request itself has woken it.
pub(crate) struct Task {
    runtime: Handle,
    /// `None` if it is done or cancelled. Locked during a step.
    work: Mutex<Option<Working>>,
}

impl Task {
    fn step(self: &Arc<Self>) {
        let mut place = lock(&self.work);
        // It is away from its place: if it panics, it is dropped, and the caller is told.
        let Some(mut working) = place.take() else { return };
        let waker = Waker::from(self.clone());
        match working.work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => *place = Some(working),
            Poll::Ready(outcome) => {
                drop(place);
                working.shared.finish(outcome);
            }
        }
    }

    pub(crate) fn cancel(&self) {
        let working = lock(&self.work).take();
        // Dropped after the lock. What it was granted is given back here, which may start something on the runtime.
        let _in_runtime = self.runtime.enter();
        drop(working);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.runtime.clone().spawn(async move { self.step() });
    }
}

struct Working {
    shared: Arc<Shared>,
    work: Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

/// It was cancelled, or it panicked: no caller may wait for ever.
impl Drop for Working {
    fn drop(&mut self) {
        self.shared.finish(Err(Problem::failed("the request was given up, or this module has a fault".to_owned())));
    }
}
