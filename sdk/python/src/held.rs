//! A held lock: its state, its tokens, its loss, its release, and its change of mode.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::GrantState;
use pyo3::prelude::*;

use crate::bridge::{CallbackId, lock};
use crate::fork::OfProcess;
use crate::grip::{Grip, Tokens, View};
use crate::op::{Abandoned, Op, Outcome, Task, Value};
use crate::problem::Problem;
use crate::process::Process;

/// A lock that this process holds, or has held.
pub(crate) struct HeldLock {
    id: u64,
    /// The connection that it belongs to.
    connection: u64,
    process: &'static Process,
    names: Vec<String>,
    view: View,
    /// Never locked across an await, nor while Python code runs.
    inside: Mutex<Inside>,
}

struct Inside {
    grip: InHand,
    tokens: Tokens,
    end: Option<End>,
    /// The functions to call at its loss.
    listeners: Vec<CallbackId>,
}

/// Where the grip is.
enum InHand {
    Held(Box<Grip>),
    /// A task changes its mode. Cancelling the task gives the lock back.
    Upgrading(Option<Arc<Task>>),
    Gone,
}

/// How it ended, once the program has given it back or has seen its loss.
#[derive(Clone)]
enum End {
    Released,
    Lost(String),
}

/// Why a lock is lost whose change of mode was given up.
const GIVEN_BACK: &str = "a change of its mode was given up, so it was given back";

/// The state of a held lock.
pub(crate) enum State {
    Held,
    Released,
    Lost(String),
}

impl std::fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldLock").field("id", &self.id).field("names", &self.names).finish_non_exhaustive()
    }
}

impl HeldLock {
    pub(crate) fn new(process: &'static Process, connection: u64, grip: Grip) -> Arc<HeldLock> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (view, tokens) = (grip.view(), grip.tokens());
        let names = view.names();
        let grip = InHand::Held(Box::new(grip));
        let inside = Mutex::new(Inside { grip, tokens, end: None, listeners: Vec::new() });
        Arc::new(HeldLock { id: NEXT.fetch_add(1, Relaxed), connection, process, names, view, inside })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }

    pub(crate) fn state(&self) -> State {
        let end = lock(&self.inside).end.clone();
        match (end, self.view.state()) {
            (Some(End::Released), _) => State::Released,
            (Some(End::Lost(why)), _) => State::Lost(why),
            (None, GrantState::Lost(why)) => State::Lost(why.to_string()),
            (None, _) => State::Held,
        }
    }

    /// Fails if it is not certainly held.
    fn check(&self) -> Result<(), Problem> {
        match self.state() {
            State::Held => Ok(()),
            State::Released => Err(Problem::already_released()),
            State::Lost(why) => Err(Problem::lost(why)),
        }
    }

    /// Returns the reason when it is lost or released.
    async fn lost(&self) -> String {
        let why = self.view.lost().await;
        match self.state() {
            State::Released => "it was released".to_owned(),
            State::Held | State::Lost(_) => why.to_string(),
        }
    }

    /// Takes the grip, to release it or to report with it. Unless it is lost, no listener hears of a loss from now on. Only for a thread that
    /// is attached to the interpreter.
    pub(crate) fn take_grip(&self) -> Option<Grip> {
        let (grip, listeners) = self.end();
        listeners.into_iter().for_each(|id| drop(self.process.bridge.take(id)));
        grip
    }

    /// Gives it back in the background, if that was not done before. Only for a thread that is attached to the interpreter.
    pub(crate) fn let_go(&self) {
        drop(self.take_grip());
    }

    /// The grip, for a connection that is closed. If closing the session ends the lock, there is nothing to wait for.
    pub(crate) fn take_grip_to_close(&self) -> Option<Grip> {
        let (grip, listeners) = self.end();
        // The runtime thread runs this at the end of the program.
        listeners.into_iter().for_each(|id| self.process.bridge.forget(id));
        grip.filter(|grip| !grip.is_of_a_session())
    }

    /// Marks it as ended: the grip, and the functions that are not to be called any more.
    fn end(&self) -> (Option<Grip>, Vec<CallbackId>) {
        let mut inside = lock(&self.inside);
        let grip = std::mem::replace(&mut inside.grip, InHand::Gone);
        let end = inside.end.get_or_insert_with(|| match self.view.state() {
            GrantState::Lost(why) => End::Lost(why.to_string()),
            _ => End::Released,
        });
        let is_released = matches!(end, End::Released);
        let listeners = std::mem::take(&mut inside.listeners);
        // A lock that is lost may end before its listeners have heard of that. They are called all the same.
        let unheard = if is_released { listeners } else { Vec::new() };
        drop(inside);
        self.process.let_go(self.id);
        let grip = match grip {
            InHand::Held(grip) => Some(*grip),
            InHand::Upgrading(task) => {
                // Its guard is dropped with the task.
                task.into_iter().for_each(|task| task.cancel());
                None
            }
            InHand::Gone => None,
        };
        (grip, unheard)
    }

    async fn upgrade(self: Arc<Self>, grip: Grip, wait: Duration) -> Outcome {
        let mut upgrading = Upgrading { held: &self, is_over: false };
        let upgraded = grip.upgrade(wait).await;
        upgrading.is_over = true;
        let mut inside = lock(&self.inside);
        let (grip, outcome) = match upgraded {
            Ok(grip) => {
                inside.tokens = grip.tokens();
                (Some(grip), Ok(Value::Nothing))
            }
            Err((grip, problem)) => (grip, Err(problem)),
        };
        match (grip, &inside.grip) {
            (Some(grip), InHand::Upgrading(_)) => inside.grip = InHand::Held(Box::new(grip)),
            // Released meanwhile. The grip is dropped, which gives the lock back, after `inside` is unlocked.
            (grip, InHand::Gone) => {
                drop(inside);
                drop(grip);
            }
            _ => {
                inside.grip = InHand::Gone;
                inside.end.get_or_insert_with(|| End::Lost(GIVEN_BACK.to_owned()));
            }
        }
        outcome
    }
}

/// A change of mode that is under way. If its task is cancelled, the library has given the lock back.
struct Upgrading<'a> {
    held: &'a HeldLock,
    is_over: bool,
}

impl Drop for Upgrading<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut inside = lock(&self.held.inside);
            inside.grip = InHand::Gone;
            inside.end.get_or_insert_with(|| End::Lost(GIVEN_BACK.to_owned()));
        }
    }
}

/// A held lock, for Python. Its collection does not release it.
#[pyclass(frozen, module = "fencepost._core")]
pub(crate) struct Held {
    lock: OfProcess<Arc<HeldLock>>,
    #[pyo3(get)]
    names: Vec<String>,
}

impl Held {
    pub(crate) fn new(held: Arc<HeldLock>) -> Held {
        Held { names: held.names.clone(), lock: OfProcess::new(held) }
    }

    /// The lock, if this is the process that took it. Takes no lock.
    pub(crate) fn here(&self) -> Result<&Arc<HeldLock>, Problem> {
        self.lock.get().ok_or_else(Problem::forked)
    }

    /// The lock. Fails if it is not certainly held.
    fn certain(&self) -> PyResult<&Arc<HeldLock>> {
        let held = self.here()?;
        held.check()?;
        Ok(held)
    }

    /// Starts a request about a lock that is certainly held.
    fn start<W>(&self, abandoned: Abandoned, work: impl FnOnce(Arc<HeldLock>) -> W) -> PyResult<Op>
    where
        W: Future<Output = Outcome> + Send + 'static,
    {
        let held = self.here()?;
        held.check()?;
        Op::start(held.process, abandoned, work(held.clone()))
    }
}

#[pymethods]
impl Held {
    /// `("held", None)`, `("released", None)`, or `("lost", reason)`.
    fn state(&self) -> PyResult<(&'static str, Option<String>)> {
        Ok(match self.here()?.state() {
            State::Held => ("held", None),
            State::Released => ("released", None),
            State::Lost(why) => ("lost", Some(why)),
        })
    }

    /// Fails if it is not certainly held.
    fn check(&self) -> PyResult<()> {
        self.certain().map(drop)
    }

    /// The seconds for which it is certainly held. Fails if it is not.
    fn remaining(&self) -> PyResult<f64> {
        let remaining = self.certain()?.view.remaining();
        // A dry run has no end.
        Ok(if remaining == Duration::MAX { f64::INFINITY } else { remaining.as_secs_f64() })
    }

    /// The token for a name, or for the only one. Fails if the lock is not certainly held.
    #[pyo3(signature = (name=None))]
    fn token(&self, name: Option<&str>) -> PyResult<Option<u64>> {
        let held = self.certain()?;
        let inside = lock(&held.inside);
        Ok(match (&inside.tokens, name) {
            (Tokens::One(token), Some(name)) => held.names.iter().any(|held| held == name).then_some(*token),
            (Tokens::One(token), None) => Some(*token),
            (Tokens::Each(tokens), Some(name)) => tokens.get(name).copied(),
            (Tokens::Each(_) | Tokens::None, _) => None,
        })
    }

    /// The token as a number, also of a lock that is lost or released: for texts.
    fn shown_token(&self) -> Option<u64> {
        match &lock(&self.here().ok()?.inside).tokens {
            Tokens::One(token) => Some(*token),
            Tokens::Each(_) | Tokens::None => None,
        }
    }

    /// The id of its session and the number of its grant, if it is a lock of Fencepost.
    fn ids(&self) -> PyResult<Option<(String, u64)>> {
        Ok(self.here()?.view.ids())
    }

    /// Calls the function once when it is lost, on the bridge thread: it must return at once. False if it is lost or released already.
    fn listen(&self, function: Py<PyAny>) -> PyResult<bool> {
        let held = self.here()?;
        held.process.admit()?;
        if !matches!(held.state(), State::Held) {
            return Ok(false);
        }
        let bridge = &held.process.bridge;
        let id = bridge.register(function)?;
        let mut inside = lock(&held.inside);
        if inside.end.is_some() {
            drop(inside);
            drop(bridge.take(id));
            return Ok(false);
        }
        inside.listeners.push(id);
        drop(inside);
        let held = held.clone();
        held.process.runtime.spawn(async move {
            held.lost().await;
            // After a release the function is not registered any more.
            held.process.bridge.call(id);
        });
        Ok(true)
    }

    /// Waits for its loss. The result is the reason.
    fn lost(&self) -> PyResult<Op> {
        let held = self.here()?.clone();
        let process = held.process;
        let lost = async move {
            let why = held.lost().await;
            Ok(Value::made(move |py| Ok(why.into_pyobject(py)?.into_any().unbind())))
        };
        Op::start(process, Abandoned::Cancelled, lost)
    }

    /// Releases it. The release is in the client's machine when this returns, and goes on if the request is given up.
    fn release(&self) -> PyResult<Op> {
        let held = self.here()?;
        let state = held.state();
        let grip = held.take_grip();
        let release = async move {
            match (state, grip) {
                (State::Released, _) => Err(Problem::already_released()),
                (State::Lost(why), None) => Err(Problem::lost(why)),
                // It knows best whether another client holds the lock by now.
                (_, Some(grip)) => {
                    let left = grip.release().await?;
                    Ok(Value::made(move |py| Ok(left.into_pyobject(py)?.into_any().unbind())))
                }
                (State::Held, None) => Ok(Value::made(|py| Ok(0_u32.into_pyobject(py)?.into_any().unbind()))),
            }
        };
        Op::start(held.process, Abandoned::GoesOn, release)
    }

    /// The program has dropped its object. True if the lock stays held: then the program may count on it, and nothing of it is kept when it
    /// is lost. In the child of a fork there is nothing to do.
    fn outlive(&self) -> bool {
        let Ok(held) = self.here() else { return false };
        match held.state() {
            State::Held => {
                let held = held.clone();
                held.process.runtime.spawn(async move {
                    held.lost().await;
                    held.process.let_go(held.id);
                });
                true
            }
            State::Lost(_) => {
                held.let_go();
                false
            }
            State::Released => false,
        }
    }

    /// Moves the end of `max_hold`.
    fn extend(&self, seconds: f64) -> PyResult<Op> {
        let max_hold = crate::ask::duration(seconds)?;
        self.start(Abandoned::GoesOn, |held| async move {
            held.view.extend(max_hold).await?;
            Ok(Value::Nothing)
        })
    }

    /// Becomes exclusive. If the request is given up, the lock is given back.
    fn upgrade(&self, seconds: f64) -> PyResult<Op> {
        let (held, wait) = (self.here()?, crate::ask::duration(seconds)?);
        held.check()?;
        let mut inside = lock(&held.inside);
        let grip = match std::mem::replace(&mut inside.grip, InHand::Upgrading(None)) {
            InHand::Held(grip) => *grip,
            before => {
                inside.grip = before;
                return Err(Problem::misused("this lock is changing its mode already").into());
            }
        };
        drop(inside);
        let op = Op::start(held.process, Abandoned::Cancelled, held.clone().upgrade(grip, wait))?;
        if let InHand::Upgrading(task) = &mut lock(&held.inside).grip {
            *task = op.task();
        }
        Ok(op)
    }

    /// Changes the value of a leadership.
    fn set_value(&self, value: Vec<u8>) -> PyResult<Op> {
        self.start(Abandoned::GoesOn, |held| async move {
            held.view.set_value(value).await?;
            Ok(Value::Nothing)
        })
    }

    /// Begins an attempt of a job. The result is its number.
    fn begin(&self) -> PyResult<Op> {
        self.start(Abandoned::GoesOn, |held| async move {
            let attempt = held.view.job()?.begin().await?;
            Ok(Value::made(move |py| Ok(attempt.into_pyobject(py)?.into_any().unbind())))
        })
    }

    /// Stores how far the work of a job has come.
    fn checkpoint(&self, bytes: Vec<u8>) -> PyResult<Op> {
        self.start(Abandoned::GoesOn, |held| async move {
            held.view.job()?.checkpoint(bytes).await?;
            Ok(Value::Nothing)
        })
    }

    /// Reads the last checkpoint of a job.
    fn last_checkpoint(&self) -> PyResult<Op> {
        self.start(Abandoned::Cancelled, |held| async move {
            let last = held.view.job()?.last_checkpoint().await?;
            Ok(Value::made(move |py| crate::job::checkpoint(py, last)))
        })
    }

    /// Completes a job, and gives the lock back.
    fn complete(&self, result: Vec<u8>, succeeded: bool) -> PyResult<Op> {
        let held = self.here()?;
        held.check()?;
        crate::job::check_result(&result)?;
        let grip = held.take_grip();
        Op::start(held.process, Abandoned::GoesOn, crate::job::complete(grip, result, succeeded))
    }

    /// Ends the attempt of a job, which stays open, and gives the lock back.
    fn fail(&self, text: String) -> PyResult<Op> {
        let held = self.here()?;
        held.check()?;
        let grip = held.take_grip();
        Op::start(held.process, Abandoned::GoesOn, crate::job::fail(grip, text))
    }
}

/// The base of every Python class whose block releases a lock. Such an object has the lock as `_core` while it is in its block.
///
/// A block begins and ends here and not in Python code, because a signal can interrupt Python code before its first line and after its last.
/// The release is in the client's machine before any Python code runs.
#[pyclass(frozen, subclass, module = "fencepost._core")]
pub(crate) struct Block;

#[pymethods]
impl Block {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyAny>, _kwargs: Option<&Bound<'_, PyAny>>) -> Block {
        Block
    }

    /// For a lock that is held already. A request has a beginning of its own.
    fn __enter__<'py>(slf: &Bound<'py, Block>) -> PyResult<Bound<'py, Block>> {
        slf.getattr("_core")?.cast::<Held>()?.get().certain()?;
        Ok(slf.clone())
    }

    fn __exit__(
        slf: &Bound<'_, Block>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let (op, refused) = Block::release(slf)?;
        Ok(slf.call_method1("_left", (op, refused, error))?.unbind())
    }

    fn __aexit__(
        slf: &Bound<'_, Block>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let (op, refused) = Block::release(slf)?;
        Ok(slf.call_method1("_left_async", (op, refused, error))?.unbind())
    }
}

impl Block {
    /// The release, if the program has not released the lock in the block; or why that is refused at once.
    fn release(slf: &Bound<'_, Block>) -> PyResult<(Option<Op>, Option<PyErr>)> {
        let core = slf.getattr("_core")?;
        let held = core.cast::<Held>()?.get();
        match held.state() {
            Ok(("released", _)) => Ok((None, None)),
            Ok(_) => Ok(held.release().map_or_else(|refused| (None, Some(refused)), |op| (Some(op), None))),
            Err(forked) => Ok((None, Some(forked))),
        }
    }
}
