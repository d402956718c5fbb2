//! Everything that leaves a process as bytes: the one crate that knows both the core's types and the schema in `proto/`.
//!
//! Log entries and snapshots go in and come out as the core's own types. No other crate sees their generated types. What is read
//! is valid by type, or is a [`WireError`] that says what to do. A reader never skips what this version does not know: a replica
//! that skips a command has another state than its peers.
//!
//! The bytes of the service are read and written by gRPC, or as frames. For it, [`v1`] has the generated messages and [`api`] the
//! translations. The replica translates the messages of consensus, because it knows the consensus library. There is no I/O here.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the public API; of the generated types, only those of the service are for other crates |
//! | `bounds.rs` | every bound of the byte formats, with its reason |
//! | `error.rs` | every error, by who must act |
//! | `to_wire.rs` | translation from the core's types to the generated ones |
//! | `from_wire.rs` | translation back; every word goes through the core's constructors |
//! | `api.rs` | messages of sessions: what a client sends, and what it receives |
//! | `api/observe.rs` | messages of observers: listings, explanations, checks, counts |
//! | `api/status.rs` | the cluster and its members, as one node sees them |
//! | `api/watch.rs` | events, as watchers receive them |
//! | `api/admin.rs` | acts of administrators, and their outcomes |
//! | `log_entry.rs` | one log entry as bytes |
//! | `snapshot.rs` | the layout of a snapshot |
//! | `snapshot_writer.rs` | writing a snapshot: records in, chunks out |
//! | `snapshot_reader.rs` | reading a snapshot: bytes in, records out |
//! | `frame.rs` | messages with a length prefix on a connection |
//! | `cause.rs` | who ordered a change of the members or a leadership transfer, and why |
//! | `member.rs` | members with names and addresses, and all members of a group |
//! | `member_change.rs` | changes of the members, without the consensus library's parser |
//! | `wall_clock.rs` | which wall-clock time each stamp was, for people |
//! | `strict.rs` | reading a message without skipping unknown fields |
//! | `secret.rs` | a session's secret: wiped after use, never shown |
//! | `made_up.rs` | what the made-up version 2 adds to the bytes, for the tests of upgrades |

pub mod api;
pub mod bounds;

mod cause;
mod error;
mod frame;
mod from_wire;
mod log_entry;
#[cfg(feature = "made-up-version")]
mod made_up;
mod member;
mod member_change;
mod secret;
mod snapshot;
mod snapshot_reader;
mod snapshot_writer;
mod strict;
mod to_wire;
mod wall_clock;

/// The types generated from `proto/fencepost/v1`. Read the comments there.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/fencepost.v1.rs"));
}

/// The gRPC stubs of the services in `proto/fencepost/v1`. Their messages are those of [`v1`].
#[cfg(any(feature = "grpc-client", feature = "grpc-server"))]
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "generated"
)]
pub mod grpc {
    include!(concat!(env!("OUT_DIR"), "/grpc/fencepost.v1.rs"));

    /// The compiled schema, for gRPC reflection.
    pub const SCHEMA: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/grpc/schema.bin"));
}

pub use cause::{Cause, Transfer};
pub use error::WireError;
pub use frame::{FRAME_GREETING, FRAME_PROTOCOL, PEER_GREETING, PEER_PROTOCOL, put_frame, take_frame};
pub use log_entry::{Entry, StateProof, decode, encode, encode_into};
pub use member::{BadMember, Member, Members, ShownNode};
pub use member_change::{MemberChanges, MemberStep, decode_member_changes, encode_beside};
pub use secret::SessionSecret;
pub use snapshot::SnapshotHeader;
pub use snapshot_reader::SnapshotReader;
pub use snapshot_writer::SnapshotWriter;
pub use strict::message as read_strictly;
pub use wall_clock::WallClock;
