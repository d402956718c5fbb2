//! Events, and changes of a leader, one after the other.
//!
//! What has arrived waits in a queue until Python takes it. So a caller that gives up a wait misses nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use fencepost::{Leader, Observer, PositionedEvent};
use pyo3::prelude::*;

use crate::bridge::lock;
use crate::fork::OfProcess;
use crate::op::{Abandoned, Op, Value};
use crate::problem::Problem;
use crate::process::Process;
use crate::shown;

/// A watch of events, or of a leader.
#[pyclass(frozen, module = "fencepost._core")]
pub(crate) struct Watch {
    inner: OfProcess<Arc<Inner>>,
}

struct Inner {
    process: &'static Process,
    /// Locked while the next item is awaited: one after the other.
    source: tokio::sync::Mutex<Source>,
    arrived: Mutex<VecDeque<Item>>,
}

pub(crate) enum Source {
    Events(fencepost::Watch),
    Leader(Box<Observer>),
}

enum Item {
    Event(Box<PositionedEvent>),
    Leader(Option<Leader>),
}

impl Source {
    pub(crate) fn leader(observer: Observer) -> Source {
        Source::Leader(Box::new(observer))
    }
}

impl Watch {
    pub(crate) fn new(process: &'static Process, source: Source) -> Watch {
        let source = tokio::sync::Mutex::new(source);
        Watch { inner: OfProcess::new(Arc::new(Inner { process, source, arrived: Mutex::default() })) }
    }

    fn here(&self) -> Result<&Arc<Inner>, Problem> {
        let forked =
            || Problem::misused("this watch was started in the parent of this process: start one in this process");
        self.inner.get().ok_or_else(forked)
    }
}

#[pymethods]
impl Watch {
    /// Waits until `take` has an item.
    fn next(&self) -> PyResult<Op> {
        let inner = self.here()?.clone();
        let process = inner.process;
        let next = async move {
            let mut source = inner.source.lock().await;
            if lock(&inner.arrived).is_empty() {
                let item = match &mut *source {
                    Source::Events(watch) => match watch.next().await {
                        Some(event) => Item::Event(Box::new(event?)),
                        None => return Err(Problem::failed("the watch has ended: start another one".to_owned())),
                    },
                    Source::Leader(observer) => Item::Leader(observer.next().await?),
                };
                lock(&inner.arrived).push_back(item);
            }
            Ok(Value::Nothing)
        };
        Op::start(process, Abandoned::Cancelled, next)
    }

    /// Takes the item that has arrived: `(item,)`, or an empty tuple if another caller was quicker.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let item = lock(&self.here()?.arrived).pop_front();
        Ok(match item {
            None => Vec::new(),
            Some(Item::Event(event)) => vec![shown::event(py, &event)?],
            Some(Item::Leader(leader)) => vec![shown::leader(py, leader)?],
        })
    }
}
