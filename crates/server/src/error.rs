//! Why a server does not start, or does not go on. Somebody who runs it must act; each says how.

use std::net::SocketAddr;

use fencepost_core::{FormatVersion, KnownVersions};
use fencepost_replica::Stop;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// What it was told cannot work.
    #[error("{message}")]
    Config {
        /// What to say instead.
        message: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen for {what} on {address}: {source}{}", hint(.source))]
    Listen {
        /// For whom.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// There is no log, and nobody said what to do about it.
    #[error(
        "there is no log in {directory}: if this is a new cluster say --new-cluster; if it is a new node of a cluster say --join ADDRESS; \
         if there should be one, the disk was wiped or is not mounted: then remove this member and join as a new one"
    )]
    NoLog {
        /// Where.
        directory: String,
    },
    /// There is a log, and a new cluster was to be founded.
    #[error(
        "there is a log already in {directory}: leave out --new-cluster to go on with it, or say another directory"
    )]
    LogExists {
        /// Where.
        directory: String,
    },
    /// The cluster to join cannot be reached, or refuses.
    #[error("cannot join a cluster at {addresses}: {reason}")]
    Join {
        /// Where.
        addresses: String,
        /// Why not.
        reason: String,
    },
    /// The cluster to join writes what this release cannot read.
    #[error(
        "the cluster uses format version {version}, and this node knows {known}: start it with a release that knows {version}, then \
         join again"
    )]
    VersionUnknown {
        /// What the cluster uses.
        version: FormatVersion,
        /// What this node knows.
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
