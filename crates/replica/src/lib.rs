//! One node's replicated lock state: consensus, log and apply, as a machine without I/O, and beside it the log on disk.
//!
//! [`Replica`] takes messages, commands and instants, and gives out what has to be sent, written and answered. [`Node`] is a
//! replica with its disk, as a server runs it. The lock semantics belong to `fencepost-core`, the bytes of the log to
//! `fencepost-wire`. Sockets and clocks belong to the server.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the public API |
//! | `bounds.rs` | every bound and timing constant, with its reason |
//! | `ports.rs` | what a replica asks its driver to do: send, write, answer |
//! | `error.rs` | what can go wrong, by who must act |
//! | `replica.rs` | `Replica`: its input, and one turn of the loop |
//! | `replica/hearing.rs` | which peers a node hears, and how far each is behind the leader |
//! | `replica/snapshots.rs` | when a replica wants a snapshot, and how it installs one |
//! | `replica/versions.rs` | which format versions the members know, and when the leader raises the active one |
//! | `replica/view.rs` | what a replica shows to readers and operators |
//! | `replica/faults.rs` | planted faults that need a replica's fields |
//! | `stamp.rs` | the leader's logical clock |
//! | `gather.rs` | what waits for the next entry |
//! | `apply.rs` | what an entry does to the lock state or to the members |
//! | `log.rs` | the log in memory, as consensus sees it |
//! | `members.rs` | which changes of the members are allowed, and what they do |
//! | `peer.rs` | messages between nodes as bytes, without the consensus library's parser |
//! | `proof.rs` | state hashes that replicas compare |
//! | `snapshot.rs` | making and reading snapshots, and restoring a backup |
//! | `tally.rs` | how many sessions, grants and requests ended, and how, for operators |
//! | `histogram.rs` | durations by buckets, for operators |
//! | `times.rs` | how long a node's commits and steps take, for operators |
//! | `unreplicated.rs` | the efficiency tier: a lock state in the leader's memory, for one term |
//! | `planted.rs` | deliberate faults behind a feature, for the simulation to find |
//! | `node.rs` | `Node`: a replica with its disk, and the threads that write the log and make snapshots |
//! | `store.rs` | the log on disk |
//! | `store/` | parts of the store: the scan before opening, the reserve for a full disk, snapshot files, the node's identity, file modes, failure handling, counts |
//!
//! Only `node.rs`, `store.rs` and `store/` call the operating system.

mod apply;
mod bounds;
mod error;
mod gather;
mod histogram;
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
mod tally;
mod times;
mod unreplicated;

pub use apply::read_entry;
pub use bounds::{
    BEAT_MS, ELECTION_TICKS, ENTRIES_IN_FLIGHT_MAX, ENTRY_COMMANDS_MAX, EVENTS_KEPT_MAX, HEARTBEAT_TICKS,
    PROMOTE_BEHIND_ENTRIES_MAX, PROOF_EVERY_ENTRIES, SILENT_AFTER_MS, STAMP_EVERY_MS, TICK_MS, TURN_MS_MAX,
    WAITING_OPERATIONS_MAX, WAITING_WANTS_MAX,
};
pub use error::{NotTaken, Stop};
pub use histogram::{Histogram, Observed};
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
pub use tally::{GrantTally, RequestTally, SessionTally, Tally};
pub use times::Times;
pub use unreplicated::{EfficiencyTier, Unreplicated};
