//! The configuration of a server.
//!
//! [`Config::check`] refuses what is unsafe or cannot work. Flags, environment and files are the command line's business; the messages
//! here name its flags.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::error::StartError;

/// The port for clients (frames and gRPC).
pub const CLIENT_PORT: u16 = 7420;
/// The port for health, readiness, metrics and reads (HTTP).
pub const HTTP_PORT: u16 = 7421;
/// The port for peers.
pub const PEER_PORT: u16 = 7422;

/// A server's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name of this node, for people. No two members have the same name.
    pub name: String,
    /// The directory of the node's log. `None` keeps the log in memory, for trying things out.
    pub directory: Option<PathBuf>,
    /// What to do if there is no log yet.
    pub begin: Begin,
    /// Where this node listens for clients.
    pub client_listen: SocketAddr,
    /// Where this node serves health checks and metrics.
    pub http_listen: SocketAddr,
    /// Names of this node, beside its addresses and `localhost`, under which `/v1` is served over HTTP.
    pub http_hosts: Vec<String>,
    /// Where this node listens for peers.
    pub peer_listen: SocketAddr,
    /// The address that clients should connect to, if it differs from `client_listen`.
    pub client_advertise: Option<String>,
    /// The address that peers should connect to, if it differs from `peer_listen`.
    pub peer_advertise: Option<String>,
    /// TLS for clients and for HTTP. With an authority, only clients with one of its certificates are served.
    pub tls: Option<TlsFiles>,
    /// Mutual TLS among peers. The authority is required.
    pub peer_tls: Option<TlsFiles>,
    /// The authority of the certificates that the other nodes show to clients, if it is not the authority of the peers. This node
    /// calls the others as a client does.
    pub join_authority: Option<PathBuf>,
    /// Allows a port without TLS on an address other than loopback.
    pub insecure: bool,
    /// Entries applied since the last snapshot after which a new one is made.
    pub snapshot_every_entries: u64,
    /// Bytes applied since the last snapshot after which a new one is made.
    pub snapshot_every_bytes: u64,
}

/// The certificate and key of a port, as PEM files. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by the intermediate certificates, if there are any.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// One or several authorities that sign the certificates of the other side.
    pub authority: Option<PathBuf>,
}

/// What to do if there is no log yet. If there is one, the node continues with it.
///
/// A wiped directory looks like a new one, so none of these is the default: a wiped node that founded its own cluster would grant locks
/// that clients of the old cluster hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Refuse to start: the log is missing.
    Never,
    /// Found a new cluster with this node as its only member. Refused if there is a log already.
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
            http_hosts: Vec::new(),
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
    /// Refuses what is unsafe or cannot work.
    ///
    /// # Errors
    /// [`StartError::Config`] says what to change.
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
                    "listening for {what} on {address} without TLS lets every host that can reach it take and break locks: \
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
                    "{what} cannot connect to {listen}: give the address that they should use with {flag} HOST:PORT"
                ));
            }
        }
        if self.directory.is_none() && !matches!(self.begin, Begin::Found | Begin::Join(_)) {
            return refused("a node in memory has no log to continue: found a cluster, or join one".to_owned());
        }
        if self.snapshot_every_entries == 0 || self.snapshot_every_bytes == 0 {
            return refused("a snapshot every zero entries or zero bytes is not possible: say at least 1".to_owned());
        }
        Ok(())
    }
}
