//! Who belongs to the group: what a change of the members may ask for, and what an entry that carries one does.
//!
//! Consensus keeps its own record of who votes. This one holds names and addresses besides, and is made from the log alone,
//! so that whoever makes a snapshot has it without asking consensus; the replica compares the two after every change.

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
    /// Sends a new node the log, without a vote.
    AddLearner(Member),
    /// Gives a learner that has caught up a vote.
    Promote(u64),
    /// Takes a node out. It never comes back under this id.
    Remove(u64),
    /// Gives a member another name or other addresses, or its first. Its role stays.
    Describe(Member),
}

/// What a member does in the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It votes.
    Voter,
    /// It gets the log and has no vote.
    Learner,
    /// It still votes, until the change that takes it out is through.
    Leaving,
}

/// A member as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its id.
    pub node: u64,
    /// Its name and addresses, if it was described.
    pub member: Option<Member>,
    /// What it does.
    pub role: Role,
    /// Whether it leads, as far as is known here.
    pub is_leader: bool,
    /// The last entry that it is known to have; only the leader knows.
    pub matched: Option<u64>,
    /// Whether this node hears it.
    pub hears: Hears,
    /// How far it is behind; only the leader knows, and not of itself.
    pub lag: Option<Lag>,
    /// Whether the leader sends it a snapshot; only the leader knows.
    pub gets_snapshot: bool,
    /// The format versions that it knows, if it told this node.
    pub known: Option<KnownVersions>,
}

/// What the entry must say to make these changes. The leader's log ends at `last`, and it knows how far each node's log is
/// like its own.
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
            // One that has nothing yet waits for a snapshot, however short the log is.
            if matched == 0 || matched + PROMOTE_BEHIND_ENTRIES_MAX < last {
                return Err(NotTaken::NotCaughtUp { node, matched, last });
            }
        }
        let mut one = MemberChanges { steps: vec![(node, step)], described: Vec::new() };
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
    // Until the change is through, those that go still count.
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

/// What an entry does to the members, by the rules of consensus: one step is made at once; of several the first entry only
/// begins, and an empty one ends, so that in between both the old and the new voters must agree.
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
    // Only now: a node that is being taken out must be found until the change is through.
    let nodes = members.nodes();
    members.directory.retain(|node, _| nodes.contains(node));
}

/// The same change in the words of consensus, without what only we know.
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

/// The members in the words of consensus.
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

/// The members as consensus knows them: without names and addresses.
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

/// What a member does.
pub(crate) fn role(members: &Members, node: u64) -> Role {
    if members.voters.contains(&node) {
        Role::Voter
    } else if members.voters_outgoing.contains(&node) {
        Role::Leaving
    } else {
        Role::Learner
    }
}
