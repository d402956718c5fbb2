//! One node's replicated lock state: consensus, log and apply, as a machine that does no I/O of its own, and beside it the
//! log on disk.
//!
//! [`Replica`] takes messages, commands and instants, and gives out what has to be sent, written and answered. The lock
//! semantics are `fencepost-core`'s; the bytes of the log are `fencepost-wire`'s.

mod apply;
mod bounds;
mod error;
mod gather;
mod log;
mod members;
mod node;
mod peer;
mod planted;
mod ports;
mod proof;
mod replica;
mod snapshot;
mod stamp;
pub mod store;
mod unreplicated;

pub use apply::read_entry;
pub use bounds::{
    BEAT_MS, ELECTION_TICKS, ENTRIES_IN_FLIGHT_MAX, ENTRY_COMMANDS_MAX, EVENTS_KEPT_MAX, HEARTBEAT_TICKS,
    PROMOTE_BEHIND_ENTRIES_MAX, PROOF_EVERY_ENTRIES, SILENT_AFTER_MS, STAMP_EVERY_MS, TICK_MS, TURN_MS_MAX,
    WAITING_OPERATIONS_MAX, WAITING_WANTS_MAX,
};
pub use error::{NotTaken, Stop};
pub use log::{GROUP_BEGINS, Log};
pub use members::{MemberChange, MemberView, Role};
pub use node::{Node, Snapshots, StorageLocation, Wake};
pub use peer::{PeerMessage, decode_peer, encode_peer};
#[cfg(feature = "planted-bugs")]
pub use planted::{Bug, plant};
pub use ports::{LogWrite, Output};
pub use raft::eraftpb::Message;
pub use replica::{Hearing, Hears, Lag, Replica, Settings};
pub use snapshot::{GroupId, Restored, SnapshotInfo, make_snapshot, read_snapshot, restore_backup};
pub use unreplicated::{EfficiencyTier, Unreplicated};
