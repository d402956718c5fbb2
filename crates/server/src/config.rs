//! What a server is told when it starts. Everything here has been checked, or is checked by [`Config::check`].

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::error::StartError;

/// The port for clients (frames and gRPC).
pub const CLIENT_PORT: u16 = 7420;
/// The port for health, readiness and metrics (HTTP).
pub const HTTP_PORT: u16 = 7421;
/// The port for peers.
pub const PEER_PORT: u16 = 7422;

/// A server's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What people call this node. No two members have the same name.
    pub name: String,
    /// Where the node keeps its log; none keeps it in memory, for trying things out.
    pub directory: Option<PathBuf>,
    /// What to do where there is no log yet.
    pub begin: Begin,
    /// Where clients connect.
    pub client_listen: SocketAddr,
    /// Where health and metrics are.
    pub http_listen: SocketAddr,
    /// Where peers connect.
    pub peer_listen: SocketAddr,
    /// What clients are told to connect to, if it is not where this node listens.
    pub client_advertise: Option<String>,
    /// What peers are told to connect to, if it is not where this node listens.
    pub peer_advertise: Option<String>,
    /// TLS for clients and for HTTP. With an authority, only clients with a certificate of it are served.
    pub tls: Option<TlsFiles>,
    /// Mutual TLS among peers; the authority must be given.
    pub peer_tls: Option<TlsFiles>,
    /// Who signs what the other nodes show to clients, if it is not the authority of the peers: this node asks them as a
    /// client does.
    pub join_authority: Option<PathBuf>,
    /// Listen without TLS where others can hear it.
    pub insecure: bool,
    /// A snapshot is made when so many entries have been applied since the last one,
    pub snapshot_every_entries: u64,
    /// or so many bytes.
    pub snapshot_every_bytes: u64,
}

/// Where a port's certificate and its key are, in PEM. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those that lead to its authority, if there are any between.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Who signs the certificates of those on the other side: one or several authorities.
    pub authority: Option<PathBuf>,
}

/// What to do where there is no log yet. Where there is one, the node goes on with it.
///
/// A directory that was wiped looks like one that is new, so none of these is the default: a wiped node that founded a
/// cluster of its own would give out locks that others hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Nothing: say that the log is missing.
    Never,
    /// Found a new cluster with this node as its only member. Refused where there is a log already.
    Found,
    /// Join the cluster that one of these addresses for clients belongs to.
    Join(Vec<String>),
}

impl Default for Config {
    /// One node on loopback, in memory.
    fn default() -> Config {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Config {
            name: "node".to_owned(),
            directory: None,
            begin: Begin::Never,
            client_listen: loopback(CLIENT_PORT),
            http_listen: loopback(HTTP_PORT),
            peer_listen: loopback(PEER_PORT),
            client_advertise: None,
            peer_advertise: None,
            tls: None,
            peer_tls: None,
            join_authority: None,
            insecure: false,
            snapshot_every_entries: 100_000,
            snapshot_every_bytes: 64 << 20,
        }
    }
}

impl Config {
    /// Refuses what would be unsafe or cannot work.
    ///
    /// # Errors
    /// [`StartError::Config`] says what to say instead.
    pub fn check(&self) -> Result<(), StartError> {
        let refused = |message: String| Err(StartError::Config { message });
        let (tls, peer_tls) = (self.tls.is_some(), self.peer_tls.is_some());
        let (for_clients, for_peers) = ("--tls-cert and --tls-key", "--peer-cert, --peer-key and --peer-ca");
        for (what, address, is_safe, flags) in [
            ("clients", self.client_listen, tls, for_clients),
            ("HTTP", self.http_listen, tls, for_clients),
            ("peers", self.peer_listen, peer_tls, for_peers),
        ] {
            if !address.ip().is_loopback() && !is_safe && !self.insecure {
                return refused(format!(
                    "listening for {what} on {address} without TLS lets everybody who can reach it take and break locks: \
                     give {flags}, or listen on loopback, or say --insecure if the network is trusted"
                ));
            }
        }
        if self.peer_tls.as_ref().is_some_and(|files| files.authority.is_none()) {
            return refused("peers must know each other's authority: give --peer-ca, too".to_owned());
        }
        if tls && !peer_tls && self.join_authority.is_none() && matches!(self.begin, Begin::Join(_)) {
            return refused(
                "to join, the certificates that the other nodes show to clients must be checked: give --join-ca, or \
                 TLS for peers, whose authority is then used"
                    .to_owned(),
            );
        }
        for (what, listen, advertise, flag) in [
            ("clients", self.client_listen, &self.client_advertise, "--advertise-client"),
            ("peers", self.peer_listen, &self.peer_advertise, "--advertise-peer"),
        ] {
            if listen.ip().is_unspecified() && advertise.is_none() {
                return refused(format!(
                    "{listen} is no address that {what} could be told to connect to: say one with {flag} HOST:PORT"
                ));
            }
        }
        if self.directory.is_none() && !matches!(self.begin, Begin::Found | Begin::Join(_)) {
            return refused("a node in memory has no log to go on from: found a cluster, or join one".to_owned());
        }
        if self.snapshot_every_entries == 0 || self.snapshot_every_bytes == 0 {
            return refused("a snapshot after zero entries or bytes would never end: say at least 1".to_owned());
        }
        Ok(())
    }
}
