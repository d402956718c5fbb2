//! What can go wrong, by who must act: the caller asks again or elsewhere, or the operator looks after a node that stopped.

use crate::bounds::PROMOTE_BEHIND_ENTRIES_MAX;
use crate::store::StoreError;
use fencepost_core::{BadRecords, FormatVersion, KnownVersions, LogPosition};
use fencepost_wire::WireError;
use fencepost_wire::bounds::MEMBERS_MAX;

/// Why a command was not taken. It was not and will not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// This node does not lead.
    #[error("this node does not lead: ask {}", leader.map_or("again soon".into(), |leader| format!("node {leader:x}")))]
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
    /// The disk is nearly full, and the operation would make the state larger.
    #[error("the disk is nearly full: releases go on, new locks are refused; free space")]
    DiskShort,
    /// A change of the members that changes nothing.
    #[error("no change of the members was asked for: say at least one")]
    NothingToChange,
    /// No member has this id, or none whose role the change is for.
    #[error("node {node:x} is no member, or no learner that could get a vote: look at the list of members")]
    UnknownNode {
        /// Which.
        node: u64,
    },
    /// The lead cannot be handed to a node that does not vote.
    #[error("node {node:x} has no vote and cannot lead: look at the list of members")]
    NoVoter {
        /// Which.
        node: u64,
    },
    /// The node is a member already, or votes already.
    #[error("node {node:x} is a member already: look at the list of members")]
    AlreadyMember {
        /// Which.
        node: u64,
    },
    /// Two changes are about one node.
    #[error("two changes are about node {node:x}: make them one after the other")]
    NodeTwice {
        /// Which.
        node: u64,
    },
    /// Another member has the name.
    #[error("a member named {name} exists under another id, {node:x}: if that node lost its disk, remove it first")]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        node: u64,
    },
    /// A learner that lacks too much to vote.
    #[error(
        "node {node:x} has the log up to entry {matched}, the leader up to {last}, and at most {PROMOTE_BEHIND_ENTRIES_MAX} may be \
         missing: wait until it has caught up"
    )]
    NotCaughtUp {
        /// Which.
        node: u64,
        /// The last entry that it is known to have.
        matched: u64,
        /// The leader's last entry.
        last: u64,
    },
    /// A node that cannot read what the cluster writes, or soon will.
    #[error(
        "node {node:x} knows format versions {known}, and the cluster uses {version}: start that node with a release that knows \
         {version}, then add it again"
    )]
    VersionUnknown {
        /// Which.
        node: u64,
        /// What it knows.
        known: KnownVersions,
        /// What the cluster uses, or is about to.
        version: FormatVersion,
    },
    /// Nobody would be left to vote.
    #[error("no voter would be left: add another first")]
    LastVoter,
    /// More members than a group can have.
    #[error("a group has at most {MEMBERS_MAX} members: remove those that are gone first")]
    TooManyMembers,
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
    /// The cluster has raised its version beyond what this node knows.
    #[error(
        "entry {index} of the log raises the format version to {version}, and this node knows {known}: upgrade this node, then \
         start it again"
    )]
    VersionUnknown {
        /// Which entry.
        index: u64,
        /// The version.
        version: FormatVersion,
        /// What this node knows.
        known: KnownVersions,
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
    /// The log follows entries that are in no snapshot here.
    #[error("the log follows entry {}, and the snapshot that holds what came before is not there: add this node anew under a new id", before.index)]
    SnapshotMissing {
        /// What the log follows.
        before: LogPosition,
    },
    /// Applying the log twice gave two states, here or on two nodes.
    #[error(
        "the state at entry {index} differs from what was proven there: this node's memory or build is bad; add it anew under a new id"
    )]
    StateDiffers {
        /// Where.
        index: u64,
    },
    /// A snapshot that is not there any more, because a newer one took its place.
    #[error("there is no snapshot at {position:?}: a newer one took its place")]
    SnapshotGone {
        /// Where it was.
        position: LogPosition,
    },
    /// The disk cannot be used.
    #[error(transparent)]
    Disk(#[from] StoreError),
    /// Consensus refuses to go on.
    #[error("consensus cannot go on: {0}")]
    Consensus(#[from] raft::Error),
}

impl Stop {
    /// Whether the node's release does not know the version that the cluster uses: another release can go on from the same disk.
    pub fn is_about_versions(&self) -> bool {
        let (Stop::BadEntry { source, .. } | Stop::BadSnapshot { source }) = self else {
            return matches!(self, Stop::VersionUnknown { .. });
        };
        matches!(source, WireError::NewerFormat { .. } | WireError::OlderFormat { .. })
    }
}
