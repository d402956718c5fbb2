//! Log entries, snapshots and messages between nodes as bytes: the one place that knows both the core's types and the schema in `proto/`.
//!
//! The core never learns a format, and nobody else sees a generated type: what goes in and comes out here is the core's
//! own [`Batch`](fencepost_core::Batch) and [`Record`](fencepost_core::Record). Whatever is read is valid by type or is a
//! [`WireError`] that says what to do. Nothing that this version does not know is skipped: a replica that skips a command
//! has another state than its peers. There is no I/O here: functions take bytes and give bytes.

pub mod bounds;

mod error;
mod from_wire;
mod log_entry;
mod member;
mod member_change;
mod peer;
mod snapshot;
mod snapshot_reader;
mod snapshot_writer;
mod strict;
mod to_wire;

/// What the build made of `proto/fencepost/v1`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/fencepost.v1.rs"));
}

pub use error::WireError;
pub use log_entry::{ENTRY_FORMAT_VERSION, Entry, StateProof, decode, encode, encode_into};
pub use member::{BadMember, Member, Members};
pub use member_change::{MemberChanges, MemberStep, decode_member_changes, encode_described};
pub use peer::{PeerMessage, decode_peer, encode_peer};
pub use snapshot::{SNAPSHOT_FORMAT_VERSION, SnapshotHeader};
pub use snapshot_reader::SnapshotReader;
pub use snapshot_writer::SnapshotWriter;
