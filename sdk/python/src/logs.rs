//! Warnings of the library, on their way to Python's `logging`, where their logger is `fencepost`.
//!
//! The runtime thread writes them, so they go through the bridge.

use std::fmt::{Debug, Write};
use std::sync::Once;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::process::Process;

/// A log record.
#[derive(Debug)]
pub(crate) struct Record {
    level: u32,
    text: String,
    /// How many records were left out before this one.
    pub(crate) left_out: u64,
}

impl Record {
    /// Passes it to Python, which logs it on another thread: a handler may be slow.
    pub(crate) fn pass_on(self, py: Python<'_>) -> PyResult<()> {
        let Record { level, text, left_out } = self;
        py.import("fencepost._background")?.call_method1("log", (level, text, left_out)).map(drop)
    }
}

/// Writes down what the library says, from now on.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    // No other code of this module sets a default. In the child of a fork it is set already.
    ONCE.call_once(|| drop(tracing::subscriber::set_global_default(ToBridge)));
}

struct ToBridge;

impl ToBridge {
    /// Information for developers is left out: it would cost a record for each lock.
    fn wants(metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("fencepost")
    }
}

impl Subscriber for ToBridge {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if ToBridge::wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ToBridge::wants(metadata)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(process) = Process::here() else { return };
        let mut text = Text::default();
        event.record(&mut text);
        // The numbers of `logging`.
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        process.bridge.log(Record { level, text: format!("{}{}", text.message, text.fields), left_out: 0 });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// `message key=value key=value`
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            name => write!(self.fields, " {name}={value:?}").unwrap_or_default(),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => write!(self.fields, " {name}={value:?}").unwrap_or_default(),
        }
    }
}
