//! The queue to the bridge thread, which alone calls Python functions in the background: results for event loops, losses, and log records.
//!
//! The queue is bounded. Each call belongs to a function that Python has registered, and there are at most [`CALLBACKS_MAX`] of them. Log
//! records beyond [`LOGS_MAX`] are counted and left out. So the runtime thread never waits for Python.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::logs::Record;
use crate::problem::Problem;

/// How many functions may be registered at a time: one for each request or lock that an event loop waits for.
const CALLBACKS_MAX: usize = 1 << 17;
/// How many log records may wait for the bridge.
const LOGS_MAX: usize = 1_000;

/// A registered function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallbackId(u64);

#[derive(Debug)]
enum Item {
    Call(CallbackId),
    /// Drops a function. For threads that are not attached to the interpreter.
    Forget(CallbackId),
    Log(Record),
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    /// How many of the items are log records.
    log_count: usize,
    /// How many log records were left out since the last one that was queued.
    left_out: u64,
    /// Set once, at the end.
    is_closed: bool,
    /// The bridge thread has returned.
    has_ended: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Bridge {
    queue: Mutex<Queue>,
    /// Wakes the bridge, and the thread that waits for its end.
    changed: Condvar,
    /// Locked only by threads that are attached to the interpreter, and never while Python code runs.
    callbacks: Mutex<Callbacks>,
}

#[derive(Debug, Default)]
struct Callbacks {
    next: u64,
    functions: HashMap<CallbackId, Py<PyAny>>,
}

impl Bridge {
    /// Registers a function, to be called once.
    pub(crate) fn register(&self, function: Py<PyAny>) -> Result<CallbackId, Problem> {
        let mut callbacks = lock(&self.callbacks);
        if callbacks.functions.len() >= CALLBACKS_MAX {
            return Err(Problem::failed(format!(
                "{CALLBACKS_MAX} requests are pending in this process: wait for some"
            )));
        }
        callbacks.next += 1;
        let id = CallbackId(callbacks.next);
        callbacks.functions.insert(id, function);
        Ok(id)
    }

    /// Takes a function back. It is not called from now on. Only for a thread that is attached: the caller may drop the function.
    pub(crate) fn take(&self, id: CallbackId) -> Option<Py<PyAny>> {
        lock(&self.callbacks).functions.remove(&id)
    }

    /// Asks for a call. Never waits.
    pub(crate) fn call(&self, id: CallbackId) {
        self.push(|queue| queue.items.push_back(Item::Call(id)));
    }

    /// Takes a function back and drops it. It may be called once more. Never waits.
    pub(crate) fn forget(&self, id: CallbackId) {
        self.push(|queue| queue.items.push_back(Item::Forget(id)));
    }

    /// Passes a log record on. Never waits.
    pub(crate) fn log(&self, mut record: Record) {
        self.push(|queue| {
            if queue.log_count >= LOGS_MAX {
                queue.left_out += 1;
                return;
            }
            record.left_out = std::mem::take(&mut queue.left_out);
            queue.log_count += 1;
            queue.items.push_back(Item::Log(record));
        });
    }

    fn push(&self, push: impl FnOnce(&mut Queue)) {
        let mut queue = lock(&self.queue);
        if !queue.is_closed {
            push(&mut queue);
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Ends the thread after the item at hand and the log records that wait, and waits for that, up to a limit. The caller must not be
    /// attached to the interpreter.
    pub(crate) fn close(&self, limit: Duration) {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        self.changed.notify_all();
        let _ = self.changed.wait_timeout_while(queue, limit, |queue| !queue.has_ended);
    }

    /// The body of the bridge thread.
    pub(crate) fn run(&self) {
        while let Some(items) = self.next_items() {
            // `None` while the interpreter ends: nothing can be called any more.
            if Python::try_attach(|py| items.into_iter().for_each(|item| self.act(py, item))).is_none() {
                break;
            }
        }
        lock(&self.queue).has_ended = true;
        self.changed.notify_all();
    }

    fn next_items(&self) -> Option<VecDeque<Item>> {
        let queue = lock(&self.queue);
        let waits = |queue: &mut Queue| queue.items.is_empty() && !queue.is_closed;
        let mut queue = self.changed.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner);
        queue.log_count = 0;
        let mut items = std::mem::take(&mut queue.items);
        if queue.is_closed {
            // What the library has said last is often the most important.
            items.retain(|item| matches!(item, Item::Log(_)));
        }
        (!items.is_empty()).then_some(items)
    }

    fn act(&self, py: Python<'_>, item: Item) {
        let done = match item {
            Item::Call(id) => self.take(id).map_or(Ok(()), |function| function.call0(py).map(drop)),
            Item::Forget(id) => {
                drop(self.take(id));
                Ok(())
            }
            Item::Log(record) => record.pass_on(py),
        };
        if let Err(error) = done {
            error.write_unraisable(py, None);
        }
    }
}

/// Ignores poisoning: a panic was reported where it happened, and the locks of the program must still be given back.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
