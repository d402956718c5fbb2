//! The errors of the library as exceptions. The classes are in `python/fencepost/_errors.py`; this file decides which one an error is.

use std::time::Duration;

use fencepost::{Failed, Refused};
use pyo3::exceptions::{PyRuntimeError, PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::process::is_left_behind;

/// Why a request has no result: a description of the exception, which a thread can make that is not attached to the interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    kind: Kind,
    text: String,
    facts: Facts,
}

/// The class of the exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AlreadyReleased,
    Deadlock,
    Denied,
    Failed,
    LockBusy,
    LockForked,
    LockLost,
    LockTimeout,
    NotOwner,
    OutcomeUnknown,
    Refused,
    Unsupported,
    /// A wrong argument: `ValueError`.
    Value,
    /// A mistake of the program: `RuntimeError`.
    Misused,
}

/// The attributes of the exception.
#[derive(Clone, Debug, Default)]
struct Facts {
    names: Vec<String>,
    suspected: Vec<String>,
    reason: Option<String>,
    retry_after: Option<Duration>,
}

impl Problem {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Problem {
        Problem { kind, text: text.into(), facts: Facts::default() }
    }

    /// Nothing was done.
    pub(crate) fn failed(text: String) -> Problem {
        Problem::new(Kind::Failed, text)
    }

    pub(crate) fn lost(reason: String) -> Problem {
        let text = format!("the lock is lost: {reason}. Stop what it protected; fencing tokens keep late writes out");
        Problem { facts: Facts { reason: Some(reason), ..Facts::default() }, ..Problem::new(Kind::LockLost, text) }
    }

    pub(crate) fn already_released() -> Problem {
        Problem::new(Kind::AlreadyReleased, "the lock was released before")
    }

    pub(crate) fn forked() -> Problem {
        let reason = "it belongs to the process that took it".to_owned();
        let text = "this lock belongs to the process that took it, and this is a child of that process: acquire a lock in the child";
        Problem { facts: Facts { reason: Some(reason), ..Facts::default() }, ..Problem::new(Kind::LockForked, text) }
    }

    pub(crate) fn unsupported(text: impl Into<String>) -> Problem {
        Problem::new(Kind::Unsupported, text)
    }

    pub(crate) fn misused(text: &str) -> Problem {
        Problem::new(Kind::Misused, text)
    }

    pub(crate) fn busy(name: &str) -> Problem {
        let text = format!("{} is busy: wait for it, or try again later", fencepost::shortened(name));
        let facts = Facts { names: vec![name.to_owned()], ..Facts::default() };
        Problem { facts, ..Problem::new(Kind::LockBusy, text) }
    }

    /// The answer to a request that holds nothing yet: there is nothing to lose, and nothing was done.
    pub(crate) fn of_a_request(self) -> Problem {
        match self.kind {
            Kind::LockLost => Problem::failed(self.text),
            _ => self,
        }
    }

    fn refused(refused: &Refused) -> Problem {
        let text = refused.to_string();
        let mut facts = Facts::default();
        let kind = match refused {
            Refused::Busy(busy) => {
                facts.names = vec![busy.name.to_string()];
                Kind::LockBusy
            }
            Refused::TimedOut { names, suspected, .. } => {
                facts.names = names.iter().map(ToString::to_string).collect();
                let links = suspected.iter().flat_map(|cycle| &cycle.links);
                facts.suspected = links.map(|link| format!("{:032x}", link.session.0)).collect();
                Kind::LockTimeout
            }
            Refused::Deadlock(_) => Kind::Deadlock,
            Refused::Lost(why) => {
                facts.reason = Some(why.to_string());
                Kind::LockLost
            }
            Refused::SessionEnded(_) => {
                facts.reason = Some("its session has ended".to_owned());
                Kind::LockLost
            }
            Refused::NotHeld => return Problem::already_released(),
            Refused::NotOwner => Kind::NotOwner,
            Refused::BadName { .. } | Refused::BadWord(_) => Kind::Value,
            Refused::OtherTier => Kind::Unsupported,
            Refused::Denied(_) => Kind::Denied,
            _ => Kind::Refused,
        };
        Problem { kind, text, facts }
    }

    fn failure(failed: &Failed) -> Problem {
        let kind = match failed {
            Failed::BadAddress(_) | Failed::BadSetting(_) | Failed::BadTls(_) => Kind::Value,
            _ => Kind::Failed,
        };
        let retry_after = match failed {
            Failed::NotTaken { retry_after, .. } => *retry_after,
            _ => None,
        };
        Problem { kind, text: failed.to_string(), facts: Facts { retry_after, ..Facts::default() } }
    }
}

impl From<fencepost::Error> for Problem {
    fn from(error: fencepost::Error) -> Problem {
        match &error {
            fencepost::Error::Refused(refused) => Problem::refused(refused),
            fencepost::Error::Failed(failed) => Problem::failure(failed),
            // Also what a later version of the library adds: not knowing is the safe answer.
            _ => Problem::new(Kind::OutcomeUnknown, error.to_string()),
        }
    }
}

impl From<fencepost_backends::Error> for Problem {
    fn from(error: fencepost_backends::Error) -> Problem {
        let text = error.to_string();
        match error {
            fencepost_backends::Error::Lock(error) => error.into(),
            fencepost_backends::Error::NotPromised(_) => Problem::unsupported(text),
            fencepost_backends::Error::BadAddress { .. } => Problem::new(Kind::Value, text),
            _ => Problem::new(Kind::Refused, text),
        }
    }
}

impl Problem {
    fn exception(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Problem { kind, text, facts: Facts { names, suspected, reason, retry_after } } = self;
        let facts = PyDict::new(py);
        if !names.is_empty() {
            facts.set_item("names", names)?;
        }
        if !suspected.is_empty() {
            facts.set_item("suspected", suspected)?;
        }
        if let Some(reason) = reason {
            facts.set_item("reason", reason)?;
        }
        if let Some(after) = retry_after {
            facts.set_item("retry_after", after.as_secs_f64())?;
        }
        let make = py.import("fencepost._errors")?.getattr("_named")?;
        Ok(make.call1((format!("{kind:?}"), text, facts))?.unbind())
    }
}

impl From<Problem> for PyErr {
    /// A daemon thread that is still there when the program ends is ended without a word, as Python itself does with such threads a moment
    /// later: `SystemExit` ends a thread, and runs its `finally` blocks.
    fn from(problem: Problem) -> PyErr {
        match problem.kind {
            _ if Python::attach(is_left_behind) => PySystemExit::new_err(()),
            Kind::Value => PyValueError::new_err(problem.text),
            Kind::Misused => PyRuntimeError::new_err(problem.text),
            _ => Python::attach(|py| match problem.exception(py) {
                Ok(exception) => PyErr::from_value(exception.into_bound(py)),
                Err(error) => error,
            }),
        }
    }
}
