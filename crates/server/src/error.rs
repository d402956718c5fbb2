//! Why a server does not start.
//!
//! The operator must act on each of these errors, and each message says how. Errors of a running node are [`Stop`].

use std::net::SocketAddr;

use fencepost_core::{FormatVersion, KnownVersions};
use fencepost_replica::Stop;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot work.
    #[error("{message}")]
    Config {
        /// What is wrong, and what to change.
        message: String,
    },
    /// The node cannot listen on an address.
    #[error("cannot listen for {what} on {address}: {source}{}", hint(.source))]
    Listen {
        /// Whom the port is for.
        what: &'static str,
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// There is no log, and the configuration does not say to begin one.
    #[error(
        "there is no log in {directory}: if this is a new cluster say --new-cluster; if it is a new node of a cluster say --join ADDRESS; \
         if there should be one, the disk was wiped or is not mounted: then remove this member and join as a new one"
    )]
    NoLog {
        /// The directory.
        directory: String,
    },
    /// There is a log, but the configuration says to found a new cluster.
    #[error(
        "there is a log already in {directory}: leave out --new-cluster to go on with it, or say another directory"
    )]
    LogExists {
        /// The directory.
        directory: String,
    },
    /// The cluster to join cannot be reached, or refuses.
    #[error("cannot join a cluster at {addresses}: {reason}")]
    Join {
        /// The addresses that were tried.
        addresses: String,
        /// Why the last one failed.
        reason: String,
    },
    /// The cluster to join uses a format version that this release does not know.
    #[error(
        "the cluster uses format version {version}, and this node knows {known}: start it with a release that knows {version}, then \
         join again"
    )]
    VersionUnknown {
        /// The version that the cluster uses.
        version: FormatVersion,
        /// The versions that this node knows.
        known: KnownVersions,
    },
    /// The log or its snapshot cannot be used.
    #[error(transparent)]
    Stop(#[from] Stop),
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "; another process has it: stop that one, or say another address",
        std::io::ErrorKind::PermissionDenied => "; take a port above 1023",
        std::io::ErrorKind::AddrNotAvailable => "; this machine does not have that address",
        _ => "",
    }
}
