//! The members of a group: which changes are allowed, and what an entry with a change does.
//!
//! Consensus keeps its own record of who votes. This one also holds names and addresses. It is made from the log alone, so the
//! thread that makes a snapshot has it without asking consensus. The replica compares the two records after every change.

use std::collections::BTreeSet;

use fencepost_core::KnownVersions;
use fencepost_wire::bounds::MEMBERS_MAX;
use fencepost_wire::{Member, MemberChanges, MemberStep, Members};
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState};

use crate::bounds::PROMOTE_BEHIND_ENTRIES_MAX;
use crate::error::NotTaken;
use crate::replica::{Hears, Lag};

/// A change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a node as a learner: it gets the log and has no vote.
    AddLearner(Member),
    /// Gives a vote to a learner that has caught up.
    Promote(u64),
    /// Removes a node. It never comes back under this id.
    Remove(u64),
    /// Sets a member's name and addresses. Its role stays.
    Describe(Member),
}

/// What a member does in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It votes.
    Voter,
    /// It gets the log and has no vote.
    Learner,
    /// It votes until the change that removes it is complete.
    Leaving,
}

/// A member as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its id.
    pub node: u64,
    /// Its name and addresses, if it was described.
    pub member: Option<Member>,
    /// Its role.
    pub role: Role,
    /// Whether it leads, as far as this node knows.
    pub is_leader: bool,
    /// The last entry that it is known to have. Only the leader knows this.
    pub matched: Option<u64>,
    /// Whether this node hears it.
    pub hears: Hears,
    /// How far it is behind. Only the leader knows this; it is `None` for the leader itself.
    pub lag: Option<Lag>,
    /// Whether the leader is sending it a snapshot. Only the leader knows this.
    pub gets_snapshot: bool,
    /// The format versions that it knows, if it told this node.
    pub known: Option<KnownVersions>,
}

/// The content of the entry that makes these changes, without its cause. `last` is the end of the leader's log. `matched` is the last entry that a
/// node is known to share with the leader.
pub(crate) fn plan(
    members: &Members,
    changes: &[MemberChange],
    last: u64,
    matched: impl Fn(u64) -> u64,
) -> Result<MemberChanges, NotTaken> {
    let mut after = members.clone();
    let mut planned = MemberChanges::default();
    for change in changes {
        let (node, step) = step_of(&after, change)?;
        if planned.steps.iter().any(|(planned, _)| *planned == node) {
            return Err(NotTaken::NodeTwice { node });
        }
        if let MemberChange::Promote(node) = *change {
            let matched = matched(node);
            // A learner without entries still waits for a snapshot, however short the log is.
            if matched == 0 || matched + PROMOTE_BEHIND_ENTRIES_MAX < last {
                return Err(NotTaken::NotCaughtUp { node, matched, last });
            }
        }
        let mut one = MemberChanges { steps: vec![(node, step)], ..MemberChanges::default() };
        if let MemberChange::AddLearner(member) | MemberChange::Describe(member) = change {
            let namesake = |other: &&Member| other.name() == member.name() && other.node() != node;
            if let Some(other) = after.directory.values().find(namesake) {
                return Err(NotTaken::NameTaken { name: member.name().to_owned(), node: other.node() });
            }
            one.described.push(member.clone());
        }
        apply_changes(&mut after, &one);
        planned.steps.extend(one.steps);
        planned.described.extend(one.described);
    }
    if planned.steps.is_empty() {
        return Err(NotTaken::NothingToChange);
    }
    if after.voters.is_empty() {
        return Err(NotTaken::LastVoter);
    }
    // Until the change is complete, the removed members still count.
    if after.nodes().union(&members.nodes()).count() > MEMBERS_MAX {
        return Err(NotTaken::TooManyMembers);
    }
    Ok(planned)
}

fn step_of(members: &Members, change: &MemberChange) -> Result<(u64, MemberStep), NotTaken> {
    let (votes, learns) = (|node| members.voters.contains(&node), |node| members.learners.contains(&node));
    match change {
        MemberChange::AddLearner(member) if members.has(member.node()) => {
            Err(NotTaken::AlreadyMember { node: member.node() })
        }
        MemberChange::AddLearner(member) => Ok((member.node(), MemberStep::Learner)),
        MemberChange::Promote(node) if votes(*node) => Err(NotTaken::AlreadyMember { node: *node }),
        MemberChange::Promote(node) if learns(*node) => Ok((*node, MemberStep::Voter)),
        MemberChange::Remove(node) if votes(*node) || learns(*node) => Ok((*node, MemberStep::Gone)),
        MemberChange::Describe(member) if votes(member.node()) => Ok((member.node(), MemberStep::Voter)),
        MemberChange::Describe(member) if learns(member.node()) => Ok((member.node(), MemberStep::Learner)),
        MemberChange::Promote(node) | MemberChange::Remove(node) => Err(NotTaken::UnknownNode { node: *node }),
        MemberChange::Describe(member) => Err(NotTaken::UnknownNode { node: member.node() }),
    }
}

/// Applies a change of the members, by the rules of consensus. A single step takes effect at once. Several steps take two entries:
/// the first begins the change, and an empty one ends it. In between, the old voters and the new voters must both agree.
pub(crate) fn apply_changes(members: &mut Members, changes: &MemberChanges) {
    if changes.steps.is_empty() {
        members.learners.append(&mut members.learners_next);
        members.voters_outgoing.clear();
        members.auto_leave = false;
    }
    if changes.steps.len() > 1 {
        members.voters_outgoing = members.voters.clone();
        members.auto_leave = true;
    }
    for (node, step) in &changes.steps {
        let was_learner = members.learners.remove(node);
        members.voters.remove(node);
        members.learners_next.remove(node);
        match step {
            MemberStep::Voter => drop(members.voters.insert(*node)),
            MemberStep::Learner if !was_learner && members.voters_outgoing.contains(node) => {
                members.learners_next.insert(*node);
            }
            MemberStep::Learner => drop(members.learners.insert(*node)),
            MemberStep::Gone => {}
        }
    }
    members.directory.extend(changes.described.iter().map(|member| (member.node(), member.clone())));
    // Only now: peers must find a leaving node until the change is complete.
    let nodes = members.nodes();
    members.directory.retain(|node, _| nodes.contains(node));
}

/// The change in the types of consensus, without names and addresses.
pub(crate) fn to_conf_change(changes: &MemberChanges) -> ConfChangeV2 {
    let single = |(node_id, step): &(u64, MemberStep)| ConfChangeSingle {
        change_type: match step {
            MemberStep::Voter => ConfChangeType::AddNode,
            MemberStep::Gone => ConfChangeType::RemoveNode,
            MemberStep::Learner => ConfChangeType::AddLearnerNode,
        },
        node_id: *node_id,
        ..ConfChangeSingle::default()
    };
    let changes = changes.steps.iter().map(single).collect::<Vec<_>>().into();
    ConfChangeV2 { changes, ..ConfChangeV2::default() }
}

/// The members in the types of consensus, without names and addresses.
pub(crate) fn to_conf_state(members: &Members) -> ConfState {
    let list = |set: &BTreeSet<u64>| set.iter().copied().collect();
    ConfState {
        voters: list(&members.voters),
        learners: list(&members.learners),
        voters_outgoing: list(&members.voters_outgoing),
        learners_next: list(&members.learners_next),
        auto_leave: members.auto_leave,
        ..ConfState::default()
    }
}

/// The members from the types of consensus, without names and addresses.
pub(crate) fn from_conf_state(state: &ConfState) -> Members {
    let set = |list: &[u64]| list.iter().copied().collect();
    Members {
        voters: set(&state.voters),
        learners: set(&state.learners),
        voters_outgoing: set(&state.voters_outgoing),
        learners_next: set(&state.learners_next),
        auto_leave: state.auto_leave,
        ..Members::NONE
    }
}

/// A member's role.
pub(crate) fn role(members: &Members, node: u64) -> Role {
    if members.voters.contains(&node) {
        Role::Voter
    } else if members.voters_outgoing.contains(&node) {
        Role::Leaving
    } else {
        Role::Learner
    }
}
