//! What can go wrong, by who must act.
//!
//! [`NotTaken`] is for the caller: it asks again, or asks another node. [`Stop`] is for the operator: the node has stopped, and the
//! text says what to do. A command that was taken and refused by the lock rules is no error; the core answers it.

use crate::bounds::PROMOTE_BEHIND_ENTRIES_MAX;
use crate::store::StoreError;
use fencepost_core::{BadRecords, FormatVersion, KnownVersions, LogPosition};
use fencepost_wire::bounds::MEMBERS_MAX;
use fencepost_wire::{ShownNode, WireError};

/// Why a command was not taken. It was not and will not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// This node does not lead.
    #[error("this node does not lead: ask {}", leader.map_or("again soon".into(), |leader| format!("node {}", ShownNode(leader))))]
    NotLeader {
        /// The leader, if it is known.
        leader: Option<u64>,
    },
    /// Too many commands wait for the log.
    #[error("this node has too much to do: ask again in a moment")]
    Overloaded,
    /// Another change of the members, or a leadership transfer, is not complete yet.
    #[error("another change of the members or of the leader is in progress: ask again when it is complete")]
    ChangeUnderWay,
    /// The disk is nearly full, and the operation would make the state larger.
    #[error("the disk is nearly full: releases go on, new locks are refused; free space")]
    DiskShort,
    /// A change of the members that changes nothing.
    #[error("the request contains no change of the members: name at least one")]
    NothingToChange,
    /// No member has this id, or the member has another role than the change needs.
    #[error("node {} is not a member, or not a learner that could get a vote: look at the list of members", ShownNode(*node))]
    UnknownNode {
        /// Which.
        node: u64,
    },
    /// Leadership cannot be transferred to a node that does not vote.
    #[error("node {} has no vote and cannot lead: look at the list of members", ShownNode(*node))]
    NoVoter {
        /// Which.
        node: u64,
    },
    /// The node is a member already, or votes already.
    #[error("node {} is a member already: look at the list of members", ShownNode(*node))]
    AlreadyMember {
        /// Which.
        node: u64,
    },
    /// Two changes are about one node.
    #[error("two changes are about node {}: make them one after the other", ShownNode(*node))]
    NodeTwice {
        /// Which.
        node: u64,
    },
    /// Another member has the name.
    #[error("a member named {name} exists under another id, {}: if that node lost its disk, remove it first", ShownNode(*node))]
    NameTaken {
        /// The name.
        name: String,
        /// The member with that name.
        node: u64,
    },
    /// The learner is too far behind to get a vote.
    #[error(
        "node {} has the log up to entry {matched}, the leader up to {last}, and at most {PROMOTE_BEHIND_ENTRIES_MAX} may be \
         missing: wait until it has caught up",
        ShownNode(*node)
    )]
    NotCaughtUp {
        /// Which.
        node: u64,
        /// The last entry that it is known to have.
        matched: u64,
        /// The leader's last entry.
        last: u64,
    },
    /// The node does not know the format version that the cluster uses, or is about to use.
    #[error(
        "node {} knows format versions {known}, and the cluster uses {version}: start that node with a release that knows \
         {version}, then add it again",
        ShownNode(*node)
    )]
    VersionUnknown {
        /// Which.
        node: u64,
        /// The versions that it knows.
        known: KnownVersions,
        /// The version that the cluster uses, or is about to use.
        version: FormatVersion,
    },
    /// The change would leave the group without a voter.
    #[error("no voter would be left: add another first")]
    LastVoter,
    /// More members than a group can have.
    #[error("a group has at most {MEMBERS_MAX} members: remove dead members first")]
    TooManyMembers,
}

/// Why a node must stop. It must not serve a state that may be wrong.
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
        /// The versions that this node knows.
        known: KnownVersions,
    },
    /// The records of a snapshot do not form a valid state.
    #[error("the snapshot cannot be used: {0}")]
    BadRecords(BadRecords),
    /// A snapshot of another cluster or group.
    #[error(
        "the snapshot belongs to cluster {cluster:x}, group {group}, and this node to another: check the node's directory and its \
         peers"
    )]
    ForeignSnapshot {
        /// Its cluster.
        cluster: u128,
        /// Its group.
        group: u64,
    },
    /// Some entries for a snapshot are missing.
    #[error(
        "the entries for a snapshot end at {reached:?}, before {through:?}: the log has a gap; remove this node and add it again \
         under a new id"
    )]
    SnapshotIncomplete {
        /// The last entry before the gap.
        reached: LogPosition,
        /// The last entry that the snapshot needs.
        through: LogPosition,
    },
    /// The log does not begin at the beginning, and no snapshot holds the entries before it.
    #[error(
        "the log begins after entry {}, and the snapshot of the entries before it is missing: remove this node and add it again \
         under a new id",
        before.index
    )]
    SnapshotMissing {
        /// The entry that the log follows.
        before: LogPosition,
    },
    /// Applying the log twice gave two states, on this node or on two nodes.
    #[error(
        "the state of this node after entry {index} has another hash than it must have: this node's memory or build is faulty; \
         remove this node and add it again under a new id"
    )]
    StateDiffers {
        /// After which entry.
        index: u64,
    },
    /// The snapshot was deleted, because there is a newer one.
    #[error("there is no snapshot at {position:?}: a newer one replaced it")]
    SnapshotGone {
        /// Its position.
        position: LogPosition,
    },
    /// The disk cannot be used.
    #[error(transparent)]
    Disk(#[from] StoreError),
    /// The consensus library reported an error after which it must not continue.
    #[error("consensus cannot continue: {0}")]
    Consensus(#[from] raft::Error),
}

impl Stop {
    /// Whether the node stops because its release does not know the cluster's version. Another release can continue from the same disk.
    pub fn is_about_versions(&self) -> bool {
        let (Stop::BadEntry { source, .. } | Stop::BadSnapshot { source }) = self else {
            return matches!(self, Stop::VersionUnknown { .. });
        };
        matches!(source, WireError::NewerFormat { .. } | WireError::OlderFormat { .. })
    }
}
