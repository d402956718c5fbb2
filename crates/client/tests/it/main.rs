//! The integration tests of this crate, in one program: each program costs a link and a start.

mod blocking;
mod cluster;
mod efficiency;
mod events;
mod fail_fast;
mod jobs;
mod over_sockets;
mod program_ends;
mod real_server;
mod settings;
mod tls;

#[path = "../../../server/tests/it/client/authority.rs"]
#[allow(dead_code, reason = "not all of it is used here")]
mod authority;
