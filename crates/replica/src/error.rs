//! What can go wrong, by who must act: the caller asks again or elsewhere, or the operator looks after a node that stopped.

use fencepost_core::BadRecords;
use fencepost_wire::WireError;

use crate::log::LogPosition;

/// Why a command was not taken. It was not and will not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// This node does not lead.
    #[error("this node does not lead: ask {}", leader.map_or("again soon".into(), |leader| format!("node {leader}")))]
    NotLeader {
        /// Who does, if it is known.
        leader: Option<u64>,
    },
    /// More waits than can be carried through the log soon.
    #[error("this node has too much to do: ask again in a moment")]
    Overloaded,
    /// Another change of the members, or a hand-over of the lead, is not yet through.
    #[error("another change of the members or of the lead is under way: ask again when it is through")]
    ChangeUnderWay,
}

/// Why a node must stop. It must not go on with a state that it cannot vouch for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stop {
    /// An entry of the log cannot be read.
    #[error("entry {index} of the log cannot be applied: {source}")]
    BadEntry {
        /// Which.
        index: u64,
        /// Why.
        source: WireError,
    },
    /// A snapshot cannot be read or written.
    #[error("the snapshot cannot be used: {source}")]
    BadSnapshot {
        /// Why.
        source: WireError,
    },
    /// The records of a snapshot are no state.
    #[error("the snapshot cannot be used: {0}")]
    BadRecords(BadRecords),
    /// A snapshot of another cluster or group.
    #[error(
        "the snapshot is of cluster {cluster:x}, group {group}: this node belongs to another; look at its directory and its peers"
    )]
    ForeignSnapshot {
        /// Its cluster.
        cluster: u128,
        /// Its group.
        group: u64,
    },
    /// The entries for a snapshot were not all there.
    #[error(
        "the entries for a snapshot end at {reached:?}, before {through:?}: the log has a hole; add this node anew under a new id"
    )]
    SnapshotIncomplete {
        /// Where they ended.
        reached: LogPosition,
        /// Where they should have reached.
        through: LogPosition,
    },
    /// Applying the log twice gave two states, here or on two nodes.
    #[error(
        "the state at entry {index} differs from what was proven there: this node's memory or build is bad; add it anew under a new id"
    )]
    StateDiffers {
        /// Where.
        index: u64,
    },
    /// Consensus refuses to go on.
    #[error("consensus cannot go on: {0}")]
    Consensus(#[from] raft::Error),
}
