//! `fencepost serve`: runs one node of a cluster until SIGTERM or SIGINT.
//!
//! It reads the settings and logs them, starts the server library, and prints `ready: ...` when the node listens.

use std::path::PathBuf;

use fencepost_server::{Server, StartError};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, Result};
use crate::settings::{ClientFlags, NodeFlags, Settings};
use crate::{logs, output, settings};

/// Run one node of a cluster
///
/// Each value comes from a flag, else from a FENCEPOST_* variable, else from the file, else from the default;
/// `fencepost config view` shows which. SIGTERM and SIGINT end the node gracefully: it transfers leadership and finishes its
/// calls. A second signal ends it at once.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A TOML file with the same keys as the flags [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: NodeFlags,
}

pub(crate) async fn run(args: Args) -> Result {
    let settings = Settings::gather(&args.flags, &ClientFlags::default(), args.config.as_deref())?;
    let config = settings.node_config()?;
    logs::begin(&settings, None)?;
    for (name, hint) in settings::unknown_variables() {
        tracing::warn!("{name} is set, but there is no such setting{hint}; `fencepost config view` lists the settings");
    }
    for setting in settings.of_node() {
        tracing::info!(value = setting.value, from = %setting.source, "{}", setting.name);
    }
    let server = Server::start(config).await.map_err(start_failure)?;
    // Before the `ready` line: a supervisor that has read it may send SIGTERM at once.
    let asked_to_end = asked_to_end()?;
    output::line(&format!(
        "ready: {} listens for clients on {}, http on {}, peers on {}",
        settings.get("name").value,
        server.client_address(),
        server.http_address(),
        server.peer_address()
    ))?;
    server.run_until(asked_to_end).await.map_err(|stop| Failure::failed(format!("the node had to stop: {stop}")))
}

/// Ready at the first SIGTERM or SIGINT. A second one ends the process at once.
pub(crate) fn asked_to_end() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let code = tokio::select! {
            _ = terminate.recv() => 143,
            _ = interrupt.recv() => 130,
        };
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            output::say("fencepost: ended at once, on the second signal");
            std::process::exit(code);
        });
    })
}

/// The failure of a node that does not start. A wrong configuration is wrong usage.
pub(crate) fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Config { .. } => Failure::usage(error),
        _ => Failure::failed(error),
    }
}
