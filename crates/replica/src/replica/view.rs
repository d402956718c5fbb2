//! What a replica shows to readers, to operators and to its driver.
//!
//! Everything here only reads. Linearizable reads are submitted in `replica.rs`, because they go through consensus.

use fencepost_core::{EventRing, LockState, LogPosition, LogicalMs};
use fencepost_wire::{Member, WallClock};
use raft::StateRole;
use raft::eraftpb::Entry;

use super::{Lead, Replica};
use crate::log::entry_bytes;
use crate::members::{MemberView, role};
use crate::snapshot::GroupId;
use crate::tally::Tally;

impl Replica {
    /// A stale read: the lock state of this node, and the last entry applied to it. While this node is cut off, the state may lack
    /// acknowledged changes. Only [`Replica::submit_read`] promises more.
    // Rule: read
    pub fn read_stale(&self) -> (LogPosition, &LockState) {
        (self.applied, &self.state)
    }

    /// The lock state as of the last applied entry.
    pub fn state(&self) -> &LockState {
        &self.state
    }

    /// The wall-clock times of the stamps in [`Replica::state`].
    pub fn wall_clock(&self) -> &WallClock {
        &self.wall_clock
    }

    /// The recent events.
    pub fn events(&self) -> &EventRing {
        &self.events
    }

    /// What ended while this node led, since the process began.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The last applied entry.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    /// Whether this node leads and serves: its first entry is applied.
    pub fn serves(&self) -> bool {
        matches!(self.lead, Lead::Running { .. })
    }

    /// The target of the leadership transfer in progress: from the request until another node leads, or until the transfer is given up.
    /// No entry is written meanwhile.
    pub fn hands_over_to(&self) -> Option<u64> {
        self.hand_over.as_ref().map(|transfer| transfer.to).or(self.raft.raft.lead_transferee)
    }

    /// This node's id.
    pub fn id(&self) -> u64 {
        self.settings.id
    }

    /// Whether this node is the only voter.
    pub fn is_alone(&self) -> bool {
        self.members.voters.iter().eq([&self.settings.id]) && self.members.voters_outgoing.is_empty()
    }

    /// The cluster and the group that this node belongs to.
    pub fn group(&self) -> GroupId {
        self.settings.group
    }

    /// The group's logical time, as far as this node knows: the leader's clock, or the last entry's stamp. Compare deadlines with it.
    // Rule: read
    pub fn stamp(&self) -> LogicalMs {
        match &self.lead {
            Lead::Running { clock, .. } => clock.stamp().max(self.state.stamp()),
            Lead::No | Lead::Starting { .. } => self.state.stamp(),
        }
    }

    /// The newest snapshot. It is durable, or will be before anything that follows it.
    pub fn newest_snapshot(&self) -> Option<LogPosition> {
        self.raft.store().snapshot.as_ref().map(|info| info.position)
    }

    /// The entries in memory beginning with this index, oldest first. All entries since the newest snapshot are in memory, and some
    /// before it.
    pub fn entries_from(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.raft.store().entries_from(index)
    }

    /// A member's name and addresses, if it was described.
    pub fn member(&self, node: u64) -> Option<&Member> {
        self.members.directory.get(&node)
    }

    /// Whether this node was removed, as of the last applied entry. A node that was cut off when it was removed does not know it. False
    /// for a node that is about to join.
    pub fn was_removed(&self) -> bool {
        let members = self.members.nodes();
        !members.is_empty() && !members.contains(&self.settings.id)
    }

    /// The leader, as far as this node knows.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raft.raft.leader_id).filter(|leader| *leader != raft::INVALID_ID)
    }

    /// The term that this node is in.
    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    /// The members as of the last applied entry, by id.
    pub fn members(&self) -> Vec<MemberView> {
        let (leads, leader) = (self.raft.raft.state == StateRole::Leader, self.leader());
        let view = |node| MemberView {
            node,
            member: self.members.directory.get(&node).cloned(),
            role: role(&self.members, node),
            is_leader: leader == Some(node),
            matched: self.raft.raft.prs().get(node).filter(|_| leads).map(|progress| progress.matched),
            hears: self.hears(node),
            lag: self.lag(node),
            gets_snapshot: self.gets_snapshot(node),
            known: self.known_of(node),
        };
        self.members.nodes().into_iter().map(view).collect()
    }

    /// The memory that the log takes, approximately.
    pub fn log_bytes(&self) -> u64 {
        // Entries that arrived since the last turn are not in the store yet.
        let unstable = &self.raft.raft.raft_log.unstable.entries;
        self.raft.store().bytes() + unstable.iter().map(entry_bytes).sum::<u64>()
    }
}
