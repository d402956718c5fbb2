//! Starts the log on standard error, as text or as JSON.
//!
//! Messages for the user do not go through it: those are in `output.rs`. Client commands log only if `FENCEPOST_LOG_LEVEL` is set.

use std::io::IsTerminal;

use fencepost::settings::Source;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::failure::{Failure, Result};
use crate::settings::Settings;

/// The storage engine. After a crash it warns of "Corruption" where it cuts off a write that was never acknowledged, as designed. What is
/// really damaged stops the node, which says so itself. So its warnings are shown only if the level names it.
const ENGINE: &str = "raft_engine";

/// Starts logging as the settings say. `quiet` is the level if it is not set.
///
/// # Errors
/// An unknown format or level.
pub(crate) fn begin(settings: &Settings, quiet: Option<&str>) -> Result {
    let level = settings.get("log-level");
    let words = match quiet {
        Some(quiet) if level.source == Source::Default => quiet,
        _ => &level.value,
    };
    let mut filter: Targets = words.parse().map_err(|_| {
        settings.refuse("log-level", "unknown level: write error, warn, info, debug or trace, or MODULE=LEVEL,...")
    })?;
    if !words.contains(ENGINE) {
        filter = filter.with_target(ENGINE, LevelFilter::ERROR);
    }
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let begun = match settings.get("log-format").value.as_str() {
        "text" => {
            let has_colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            tracing_subscriber::registry().with(logs.with_ansi(has_colours).with_filter(filter)).try_init()
        }
        "json" => tracing_subscriber::registry().with(logs.json().flatten_event(true).with_filter(filter)).try_init(),
        _ => return Err(settings.refuse("log-format", "unknown format: write text or json")),
    };
    begun.map_err(|error| Failure::failed(format!("cannot start logging: {error}")))
}
