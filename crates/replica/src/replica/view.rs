//! A replica from outside: what it shows to those who read and to those who run it.

use fencepost_core::{EventRing, LockState, LogPosition, LogicalMs};
use fencepost_wire::Member;
use raft::StateRole;
use raft::eraftpb::Entry;

use super::{Lead, Replica};
use crate::log::entry_bytes;
use crate::members::{MemberView, role};
use crate::snapshot::GroupId;

impl Replica {
    /// A stale read: the lock state as this node knows it now, and the entry that it is as of. It may lack what others have
    /// acknowledged, for as long as this node is cut off; only [`Replica::submit_read`] promises more.
    // Rule: read
    pub fn read_stale(&self) -> (LogPosition, &LockState) {
        (self.applied, &self.state)
    }

    /// The lock state as of the last applied entry.
    pub fn state(&self) -> &LockState {
        &self.state
    }

    /// The recent events.
    pub fn events(&self) -> &EventRing {
        &self.events
    }

    /// The last applied entry.
    pub fn applied(&self) -> LogPosition {
        self.applied
    }

    /// Whether this node leads and serves: its first entry is applied.
    pub fn serves(&self) -> bool {
        matches!(self.lead, Lead::Running { .. })
    }

    /// The node that this one hands the lead to: from the request until another leads, or until the hand-over was given up. No
    /// entry is written meanwhile.
    pub fn hands_over_to(&self) -> Option<u64> {
        self.hand_over_to.or(self.raft.raft.lead_transferee)
    }

    /// This node's id.
    pub fn id(&self) -> u64 {
        self.settings.id
    }

    /// Whether this node is the only one that votes.
    pub fn is_alone(&self) -> bool {
        self.members.voters.iter().eq([&self.settings.id]) && self.members.voters_outgoing.is_empty()
    }

    /// Whose state it is.
    pub fn group(&self) -> GroupId {
        self.settings.group
    }

    /// The time of the group as far as is known here: the leader's clock, or the last entry's stamp. Deadlines are to be
    /// compared with it.
    // Rule: read
    pub fn stamp(&self) -> LogicalMs {
        match &self.lead {
            Lead::Running { clock, .. } => clock.stamp().max(self.state.stamp()),
            Lead::No | Lead::Starting { .. } => self.state.stamp(),
        }
    }

    /// The newest snapshot that is durable, or will be before anything that follows it.
    pub fn newest_snapshot(&self) -> Option<LogPosition> {
        self.raft.store().snapshot.as_ref().map(|info| info.position)
    }

    /// The entries in memory from this index on, oldest first: all since the newest snapshot are, and some before it.
    pub fn entries_from(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.raft.store().entries_from(index)
    }

    /// A member's name and addresses, if it was described.
    pub fn member(&self, node: u64) -> Option<&Member> {
        self.members.directory.get(&node)
    }

    /// Whether this node was a member and, as of the last applied entry, is none any more. One that was cut off when it was
    /// taken out does not know it; one that is about to join is not meant.
    pub fn was_removed(&self) -> bool {
        let members = self.members.nodes();
        !members.is_empty() && !members.contains(&self.settings.id)
    }

    /// Who leads, as far as this node knows.
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

    /// What the log takes up in memory, about.
    pub fn log_bytes(&self) -> u64 {
        // What has come since the last turn is not in the log yet.
        let unstable = &self.raft.raft.raft_log.unstable.entries;
        self.raft.store().bytes() + unstable.iter().map(entry_bytes).sum::<u64>()
    }
}
