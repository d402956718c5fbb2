//! One node of Fencepost as a process runs it: a replica with its disk, with frames and gRPC for clients and peers, and HTTP for
//! health checks and metrics.
//!
//! The drivers here decide nothing about locks, sessions or consensus: they read messages, hand them to the edge of the session
//! protocol and to the replica, and send the results. Everything runs on one thread, in turns; only the disk has its own threads.

mod admin_service;
mod bounds;
mod clock;
mod config;
mod connected;
mod door;
mod engine;
mod error;
mod framed_service;
mod frames;
mod http;
mod lock_service;
mod membership;
mod metrics;
mod observe_service;
mod peer_service;
mod peers;
mod port;
mod restore;
mod server;
mod status;
mod tls;

/// The services that the build generates from `proto/fencepost/v1`.
#[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/fencepost.v1.rs"));
}

/// The schema itself, for gRPC reflection.
const SCHEMA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/schema.bin"));

pub use config::{Begin, CLIENT_PORT, Config, HTTP_PORT, PEER_PORT, TlsFiles};
pub use error::StartError;
pub use restore::{RestoredCluster, restore};
pub use server::Server;
