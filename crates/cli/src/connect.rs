//! The way to the cluster: which nodes, and what its answers mean for the exit code.

use std::path::PathBuf;
use std::time::Duration;

use fencepost::{Client, ClientBuilder, Error, Failed, Refused};
use fencepost_core::Name;

use crate::failure::{Failure, Result};
use crate::settings::{self, ClientFlags, NodeFlags, Settings};

/// How long to look for a node that answers. People wait for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The options that every command that asks a cluster has.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    flags: ClientFlags,
    /// A TOML file with settings, `server` among them [env: FENCEPOST_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ServerArgs {
    /// A client to be.
    pub(crate) fn builder(&self) -> Result<(ClientBuilder, String)> {
        let settings = Settings::gather(&NodeFlags::default(), &self.flags, self.config.as_deref())?;
        if std::env::var_os("FENCEPOST_LOG_LEVEL").is_some() {
            crate::logs::begin(&settings, None)?;
        }
        let said = &settings.get("server").value;
        let nodes = settings::list(said.strip_prefix("fencepost://").unwrap_or(said));
        if nodes.is_empty() {
            return Err(settings.refuse("server", "no node is named: write one like 127.0.0.1:7420"));
        }
        let mut builder = Client::builder().name("fencepost").connect_timeout(CONNECT_TIMEOUT);
        for node in &nodes {
            let host_port = node.strip_prefix("https://").or_else(|| node.strip_prefix("http://")).unwrap_or(node);
            settings::check_host_port(host_port).map_err(|why| settings.refuse("server", &why))?;
            builder = builder.endpoint(node);
        }
        let tls = settings.client_tls()?;
        if tls.is_none() && said.contains("https://") {
            let why = "https:// needs the authority that signed the nodes' certificates: give --ca FILE";
            return Err(settings.refuse("server", why));
        }
        if let Some(tls) = tls {
            builder = builder.tls(tls);
        }
        Ok((builder, nodes.join(",")))
    }

    /// A client that has found the leader.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let (builder, nodes) = self.builder()?;
        builder.connect().await.map_err(|error| unreachable(&nodes, error))
    }
}

/// Nobody answers.
pub(crate) fn unreachable(nodes: &str, error: Error) -> Failure {
    match error {
        // A node answered, and says what is wrong.
        Error::Failed(Failed::BadTls(_) | Failed::NoLeader { .. }) => error.into(),
        Error::Failed(_) => Failure::failed(format!(
            "no leader was found at {nodes}: {error}. `fencepost dev` starts a node to try things out; --server or \
             FENCEPOST_SERVER name another cluster; --ca, --cert and --key are for TLS"
        )),
        other => other.into(),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match &error {
            Error::Refused(Refused::BadName { .. } | Refused::BadWord(_)) | Error::Failed(Failed::BadTls(_)) => {
                Failure::usage(error)
            }
            Error::Refused(_) => Failure::refused(error),
            _ => Failure::failed(error),
        }
    }
}

/// Reads the name of a lock.
pub(crate) fn name(text: &str) -> std::result::Result<Name, String> {
    Name::new(text).map_err(|why| format!("{why}; write another name"))
}
