//! One node of Fencepost as a process runs it: a replica with its disk, behind gRPC and frames for clients and peers, and HTTP for
//! those who look after it.
//!
//! Drivers that decide nothing: they read messages, hand them to the edge of the session protocol and to the replica, and send what
//! comes of them. Everything runs on one thread, in turns; only the disk has threads of its own.

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

pub use config::{Begin, CLIENT_PORT, Config, HTTP_PORT, PEER_PORT, TlsFiles};
pub use error::StartError;
pub use restore::{RestoredCluster, restore};
pub use server::Server;
