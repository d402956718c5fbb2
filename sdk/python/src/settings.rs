//! Where to connect, and how: what `fencepost.connect` is given. Wrong settings are refused there, before anything is sent.

use std::time::Duration;

use fencepost::ClientBuilder;
use fencepost_backends::{System, system};

use crate::problem::{Kind, Problem};

/// The TTL of a session, and of the locks of other systems, unless the program says otherwise.
const TTL_DEFAULT: Duration = Duration::from_secs(30);

/// The settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) to: To,
}

/// Where to connect.
#[derive(Clone, Debug)]
pub(crate) enum To {
    Fencepost(Box<ClientBuilder>),
    Other { address: String },
}

/// What a program says about a client.
pub(crate) struct Wanted {
    /// `None`: the settings of the environment, as the command line reads them.
    pub(crate) address: Option<String>,
    pub(crate) ttl: Option<Duration>,
    pub(crate) name: Option<String>,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) tls: Option<WantedTls>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) call_timeout: Option<Duration>,
}

/// TLS, as the contents of PEM files.
pub(crate) struct WantedTls {
    pub(crate) ca: Vec<u8>,
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) server_name: Option<String>,
}

impl Settings {
    pub(crate) fn new(wanted: Wanted) -> Result<Settings, Problem> {
        let ttl = wanted.ttl.unwrap_or(TTL_DEFAULT);
        let builder = match &wanted.address {
            None => ClientBuilder::from_env()?,
            // Without a scheme it is a node of Fencepost, as everywhere.
            Some(address) if !address.contains("://") => fencepost::Client::builder().address(address)?,
            Some(address) => match system(address)? {
                System::Fencepost | System::Memory => fencepost::Client::builder().address(address)?,
                _ => return Settings::other(address, ttl, &wanted),
            },
        };
        let mut builder = builder.session_ttl(ttl).label("sdk", concat!("python ", env!("CARGO_PKG_VERSION")));
        if let Some(name) = wanted.name {
            builder = builder.name(name);
        }
        for (key, value) in wanted.labels {
            builder = builder.label(key, value);
        }
        if let Some(WantedTls { ca, identity, server_name }) = wanted.tls {
            let mut tls = fencepost::Tls::new(ca);
            if let Some((certificate, key)) = identity {
                tls = tls.identity(certificate, key);
            }
            if let Some(name) = server_name {
                tls = tls.server_name(name);
            }
            builder = builder.tls(tls);
        }
        if let Some(timeout) = wanted.connect_timeout {
            builder = builder.connect_timeout(timeout);
        }
        if let Some(timeout) = wanted.call_timeout {
            builder = builder.call_timeout(timeout);
        }
        Ok(Settings { ttl, to: To::Fencepost(Box::new(builder)) })
    }

    fn other(address: &str, ttl: Duration, wanted: &Wanted) -> Result<Settings, Problem> {
        let Wanted { name, labels, tls, connect_timeout, call_timeout, .. } = wanted;
        let given = [
            ("name", name.is_some()),
            ("labels", !labels.is_empty()),
            ("tls", tls.is_some()),
            ("connect_timeout", connect_timeout.is_some()),
            ("call_timeout", call_timeout.is_some()),
        ];
        if let Some((setting, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            let text = format!(
                "`{setting}` is a setting of Fencepost alone: for other systems, put what they need into the address"
            );
            return Err(Problem::new(Kind::Value, text));
        }
        Ok(Settings { ttl, to: To::Other { address: address.to_owned() } })
    }

    /// Connects.
    pub(crate) async fn connect(&self) -> Result<fencepost_backends::Client, Problem> {
        let builder = fencepost_backends::Client::builder().ttl(self.ttl);
        let builder = match &self.to {
            To::Fencepost(native) => builder.native("", native.as_ref().clone().connect().await?),
            To::Other { address } => builder.rule("", address, None),
        };
        Ok(builder.connect().await?)
    }
}
