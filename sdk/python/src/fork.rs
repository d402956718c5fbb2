//! Which process this is.
//!
//! A fork copies the memory of a process, with the locks that its threads hold at that moment, and none of the threads. A child that takes
//! such a lock can wait for ever, and a child that uses a socket of its parent writes into the parent's session. So each object that
//! owns either remembers its [`Birth`].
//!
//! A subinterpreter is refused, because all that a process has once belongs to one interpreter. This file asks for that, too: it has the
//! unsafe code of the crate.
#![allow(unsafe_code, reason = "is told of forks, shares a value without a lock, and asks which interpreter runs")]

use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU64};
use std::sync::{Arc, Once};

use pyo3::{Python, ffi};

/// Counts the forks between the first process and this one. The pid alone does not tell a child from a dead ancestor whose pid is used
/// again.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process in which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    /// Also tells a child of a fork that the C library did not make.
    pid: u32,
    generation: u64,
}

impl Birth {
    /// This process.
    pub(crate) fn here() -> Birth {
        Birth { pid: std::process::id(), generation: GENERATION.load(Relaxed) }
    }

    /// Whether this is still the process. Takes no lock.
    pub(crate) fn is_here(self) -> bool {
        self == Birth::here()
    }
}

/// Counts forks from now on.
pub(crate) fn watch() {
    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function only adds to an atomic number, which is allowed in the child of a fork at any moment. It lives as long as
        // the program: Python never unloads an extension module. If there is no memory for it, the pid still tells most children.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Whether the calling thread runs the interpreter of the process, and not a subinterpreter.
pub(crate) fn is_main_interpreter(_attached: Python<'_>) -> bool {
    // SAFETY: the thread is attached to an interpreter, so there is a current one.
    unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) == 0 }
}

/// A value that each process makes for itself, at its first use. What an ancestor made is neither used nor dropped here. Without a lock,
/// because a lock could be held at the moment of a fork.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    /// Null, or from [`Arc::into_raw`]. Invariant: the pointer is replaced only if its value was made by an ancestor, and the count of that
    /// value is not given back. So a value to which this points lives until the drop of `self`.
    last: AtomicPtr<Made<T>>,
}

#[derive(Debug)]
struct Made<T> {
    birth: Birth,
    value: T,
}

impl<T: Clone> PerProcess<T> {
    /// No value yet.
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess { last: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value of this process, if it has made one. Takes no lock.
    pub(crate) fn get(&self) -> Option<T> {
        PerProcess::value_here(self.last.load(Acquire))
    }

    /// The value of this process. If two threads make it at the same time, one of the two is used, and `discard` gets the other.
    pub(crate) fn get_or_make<E>(&self, make: impl Fn() -> Result<T, E>, discard: impl FnOnce(T)) -> Result<T, E> {
        let last = self.last.load(Acquire);
        if let Some(value) = PerProcess::value_here(last) {
            return Ok(value);
        }
        let value = make()?;
        let made = Arc::into_raw(Arc::new(Made { birth: Birth::here(), value: value.clone() })).cast_mut();
        match self.last.compare_exchange(last, made, AcqRel, Acquire) {
            Ok(_) => Ok(value),
            Err(other) => {
                // SAFETY: `made` is from `Arc::into_raw` above, and was not stored.
                drop(unsafe { Arc::from_raw(made) });
                discard(value);
                // The other thread is of this process, and so is what it made.
                PerProcess::value_here(other).map_or_else(make, Ok)
            }
        }
    }

    fn value_here(last: *mut Made<T>) -> Option<T> {
        // SAFETY: null, or valid by the invariant of `last`: `self` is borrowed by the caller, so it is not dropped meanwhile.
        let made = unsafe { last.as_ref() }?;
        made.birth.is_here().then(|| made.value.clone())
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let last = *self.last.get_mut();
        // SAFETY: null, or valid by the invariant of `last`.
        if let Some(made) = unsafe { last.as_ref() }
            && made.birth.is_here()
        {
            // SAFETY: the count that `Arc::into_raw` has left here is given back once.
            drop(unsafe { Arc::from_raw(last) });
        }
    }
}

/// A value that is dropped only in the process that made it.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    birth: Birth,
    /// `None` only during the drop.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> OfProcess<T> {
        OfProcess { birth: Birth::here(), value: Some(value) }
    }

    /// The value; `None` in the child of a fork. Takes no lock.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.birth.is_here())
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.birth.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}
