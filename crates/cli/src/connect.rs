//! Connects to the cluster: nodes and TLS files from the settings, and the exit code for each error of the client library.
//!
//! Retries are decided in the client library, not here. One file, so that every command reports an unreachable cluster alike.

use std::path::PathBuf;
use std::time::Duration;

use fencepost::{Address, Client, ClientBuilder, Error, Failed, Refused};
use fencepost_core::{JobKey, Name};

use crate::failure::{Failure, Result};
use crate::settings::{ClientFlags, NodeFlags, Settings};

/// How long to look for the leader, unless `--timeout` says so. Short, because a person waits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The options of every command that talks to a cluster.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    flags: ClientFlags,
    /// A TOML file with settings such as `server` [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ServerArgs {
    /// The builder of a client, and the addresses of the nodes for messages.
    pub(crate) fn builder(&self) -> Result<(ClientBuilder, String)> {
        self.builder_that_waits(None)
    }

    /// The same for a command that waits this long for a lock: it also waits for a node to start, unless `--timeout` says how long.
    pub(crate) fn builder_that_waits(&self, wait: Option<Duration>) -> Result<(ClientBuilder, String)> {
        let settings = self.settings()?;
        if std::env::var_os("FENCEPOST_LOG_LEVEL").is_some() {
            crate::logs::begin(&settings, None)?;
        }
        let wait = wait.unwrap_or_default();
        let builder = settings.client()?.name("fencepost");
        let builder = match settings.timeout()? {
            Some(timeout) => builder.connect_timeout(timeout),
            None => builder.connect_timeout(wait.max(CONNECT_TIMEOUT)).refused_timeout(wait),
        };
        let nodes = builder.nodes().join(",");
        Ok((builder, nodes))
    }

    /// The value of `--timeout`, if it is given.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>> {
        self.settings()?.timeout()
    }

    fn settings(&self) -> Result<Settings> {
        Settings::gather(&NodeFlags::default(), &self.flags, self.config.as_deref())
    }

    /// Connects. Returns when the leader is found.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let (builder, nodes) = self.builder()?;
        builder.connect().await.map_err(|error| unreachable(&nodes, error))
    }
}

/// The failure of a command that found no leader.
pub(crate) fn unreachable(nodes: &str, error: Error) -> Failure {
    match error {
        // These errors already say what is wrong and what to do.
        Error::Failed(Failed::BadTls(_) | Failed::NoLeader { .. } | Failed::WrongDoor { .. }) => error.into(),
        Error::Failed(Failed::NothingListens { addresses }) => Failure::failed(format!(
            "no node runs at {} (connection refused). To try things out, start one with `fencepost dev`. To use another cluster, set \
             --server or FENCEPOST_SERVER. To wait until a node has started, give a --timeout, for example 30s",
            addresses.join(", ")
        )),
        // A node answered, so that another one would not help.
        Error::Failed(_) if error.to_string().contains("certificate") => Failure::failed(format!(
            "no leader was found at {nodes}: {error}. For nodes with TLS, give --ca, --cert and --key"
        )),
        Error::Failed(_) => Failure::failed(format!(
            "no leader was found at {nodes}: {error}. To try things out, start a node with `fencepost dev`. To use another cluster, \
             set --server or FENCEPOST_SERVER. If the nodes use TLS, give --ca, --cert and --key"
        )),
        other => other.into(),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match &error {
            Error::Refused(Refused::BadName { .. } | Refused::BadWord(_)) => Failure::usage(error),
            Error::Failed(Failed::BadAddress(_) | Failed::BadSetting(_) | Failed::BadTls(_)) => Failure::usage(error),
            Error::Refused(_) => Failure::refused(error),
            _ => Failure::failed(error),
        }
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Failure {
        Error::from(failed).into()
    }
}

/// Parses the address of one node. Without a port it has the default port.
pub(crate) fn node_address(text: &str, default_port: u16) -> std::result::Result<String, String> {
    match Address::parse(text, default_port).map_err(|error| error.to_string())?.nodes() {
        [node] => Ok(node.clone()),
        _ => Err("a node has one address: write one HOST:PORT".to_owned()),
    }
}

/// Parses the name of a lock.
pub(crate) fn name(text: &str) -> std::result::Result<Name, String> {
    Name::new(text).map_err(|why| format!("{why}; choose another name"))
}

/// Parses the key of a job.
pub(crate) fn job_key(text: &str) -> std::result::Result<JobKey, String> {
    JobKey::new(text).map_err(|why| format!("{why}; choose another key"))
}
