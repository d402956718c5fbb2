//! One node of Fencepost as a process runs it: a replica with its disk, with frames and gRPC for clients and peers, and HTTP for
//! health checks, metrics and reads.
//!
//! The drivers here decide nothing about locks, sessions or consensus: they read messages, hand them to the edge of the session
//! protocol and to the replica, and send the results. Everything runs on one thread, in turns; only the disk has its own threads.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the public API, the generated services, and this table |
//! | `server.rs` | a whole node: opens the log, listens, runs the turn loop, shuts down |
//! | `config.rs` | the configuration, and which values are refused |
//! | `error.rs` | why a server does not start |
//! | `engine.rs` | connects the tasks with the machines: replica, efficiency tier and edge; all on one thread |
//! | `port.rs` | where the edge submits commands: the replica or the efficiency tier |
//! | `caller.rs` | who calls: the principal of a client, and the author of what a caller orders |
//! | `connected.rs` | one client's stream, as its connection holds it |
//! | `door.rs` | accepts connections, does handshakes, tells frames from HTTP |
//! | `wrong_door.rs` | tells a caller at the wrong port, in its own protocol, where to go |
//! | `frames.rs` | messages as frames on a connection, bounded before they are allocated |
//! | `framed_service.rs` | sessions over frames |
//! | `lock_service.rs` | sessions over gRPC |
//! | `observe_service.rs` | reads of the lock state and the event log, over gRPC |
//! | `admin_service.rs` | acts of administrators, member changes, leadership transfer and backups, over gRPC |
//! | `peers.rs` | sends messages and snapshots to the other nodes, and knows their names |
//! | `peer_service.rs` | receives messages and snapshots of the other nodes, and checks who sends them |
//! | `membership.rs` | how a node becomes a member, and keeps its name and addresses up to date |
//! | `restore.rs` | a new cluster from a backup |
//! | `tls.rs` | certificates from files, and which certificates are accepted |
//! | `http.rs` | HTTP: monitoring, and who may read below `/v1` |
//! | `http_reads.rs` | reads of the lock state over HTTP, as JSON |
//! | `problem.rs` | ends and refusals as problem documents |
//! | `metrics.rs` | the metrics of a node: what the server counts, and what is shown |
//! | `arrivals.rs` | when the operations arrived that are not answered yet |
//! | `process.rs` | what the system says about this process |
//! | `exposition.rs` | metrics as text for Prometheus |
//! | `status.rs` | ends and refusals as gRPC statuses |
//! | `bounds.rs` | every bound of the server, with its reason |
//! | `clock.rs` | the monotonic clock of the replica, and the wall clock for people |

mod admin_service;
mod arrivals;
mod bounds;
mod caller;
mod clock;
mod config;
mod connected;
mod door;
mod engine;
mod error;
mod exposition;
mod framed_service;
mod frames;
mod http;
mod http_reads;
mod lock_service;
mod membership;
mod metrics;
mod observe_service;
mod peer_service;
mod peers;
mod port;
mod problem;
mod process;
mod restore;
mod server;
mod status;
mod tls;
mod wrong_door;

pub use config::{Begin, CLIENT_PORT, Config, HTTP_PORT, PEER_PORT, TlsFiles};
pub use error::StartError;
pub use restore::{RestoredCluster, restore};
pub use server::Server;
