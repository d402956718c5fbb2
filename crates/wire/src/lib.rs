//! Everything that leaves a process as bytes: the one place that knows both the core's types and the schema in `proto/`.
//!
//! Log entries and snapshots go in and come out as the core's own types; no other crate sees a generated one of theirs. Whatever is read is valid by type or is a [`WireError`] that says what to do, and nothing that this version
//! does not know is skipped: a replica that skips a command has another state than its peers. For the service, whose bytes are
//! read and written by gRPC, or as frames, [`v1`] has the generated messages, and [`api`] the translations. Messages of consensus are
//! translated by the replica, which knows the consensus library. There is no I/O here.

pub mod api;
pub mod bounds;

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

/// What the build made of `proto/fencepost/v1`: read the comments there.
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

pub use error::WireError;
pub use frame::{FRAME_GREETING, FRAME_PROTOCOL, put_frame, take_frame};
pub use log_entry::{Entry, StateProof, decode, encode, encode_into};
pub use member::{BadMember, Member, Members};
pub use member_change::{MemberChanges, MemberStep, decode_member_changes, encode_described};
pub use secret::SessionSecret;
pub use snapshot::SnapshotHeader;
pub use snapshot_reader::SnapshotReader;
pub use snapshot_writer::SnapshotWriter;
pub use strict::message as read_strictly;
