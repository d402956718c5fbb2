//! Groups whose members change while they serve: named, added, replaced, removed; and nodes that come back under a new id.

use crate::cluster::{Cluster, SNAPSHOT_EVERY_ENTRIES, cause, lock, member, open};
use fencepost_core::{KnownVersions, Principal, Reason, Ticket, Wait};
use fencepost_replica::{
    Log, MemberChange, Message, NotTaken, PROMOTE_BEHIND_ENTRIES_MAX, Replica, Role, read_snapshot,
};
use fencepost_wire::bounds::MEMBERS_MAX;
use fencepost_wire::{Cause, Member};
use raft::eraftpb::MessageType;

/// Three nodes with names, and a session.
fn described(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(&[1, 2, 3], seed);
    for id in [1, 2, 3] {
        cluster.change(&[MemberChange::Describe(member(id))]);
    }
    cluster.ask(open(1, 600_000));
    cluster
}

/// Adds a node and waits until it has the whole log and the leader knows it.
fn add_learner(cluster: &mut Cluster, id: u64) {
    cluster.join(id);
    cluster.change(&[MemberChange::AddLearner(member(id))]);
    cluster.assert_replicas_equal();
    cluster.run_ms(500);
}

fn of_role(replica: &Replica, role: Role) -> Vec<u64> {
    replica.members().into_iter().filter(|view| view.role == role).map(|view| view.node).collect()
}

fn names(replica: &Replica) -> Vec<(u64, Option<Member>)> {
    replica.members().into_iter().map(|view| (view.node, view.member)).collect()
}

/// Replaces a voter by a learner, and stops when the leader is in the first step: the old voters and the new voters both count.
fn begin_replacement(cluster: &mut Cluster, voter: u64, learner: u64) -> (u64, Ticket) {
    let leader = cluster.run_until_leader();
    let changes = [MemberChange::Promote(learner), MemberChange::Remove(voter)];
    let ticket = cluster.replica(leader).change_members(&changes, &cause()).expect("the learner has caught up");
    cluster.run_until("the first step is made", |cluster| {
        (of_role(cluster.replica(leader), Role::Leaving) == [voter]).then_some(())
    });
    assert!(!cluster.node(leader).changed.contains(&ticket), "it is not complete yet");
    (leader, ticket)
}

#[test]
fn the_entry_of_a_member_change_says_who_ordered_it_and_why() {
    let mut cluster = described(39);
    add_learner(&mut cluster, 4);
    let leader = cluster.run_until_leader();
    let (voter, reason) = (leader % 3 + 1, Reason::new("a larger disk").unwrap());
    let ordered = Cause { by: Principal::new("ops.example.org").unwrap(), reason };
    let changes = [MemberChange::Promote(4), MemberChange::Remove(voter)];
    let ticket = cluster.replica(leader).change_members(&changes, &ordered).expect("the learner has caught up");
    cluster.run_until("the change is complete", |cluster| cluster.node(leader).changed.contains(&ticket).then_some(()));
    cluster.run_ms(500);
    for node in [leader, 4] {
        // Once: consensus itself writes the second step of the change, which has no cause.
        let told = cluster.node(node).causes.iter().filter(|cause| **cause == ordered).count();
        assert_eq!(told, 1, "node {node} can tell people: {:?}", cluster.node(node).causes);
    }
}

#[test]
fn names_and_addresses_are_the_same_everywhere_and_survive_snapshots_and_restarts() {
    let mut cluster = described(40);
    add_learner(&mut cluster, 4);
    let moved = Member::new(2, "moved", "elsewhere:7201", "").unwrap();
    cluster.change(&[MemberChange::Describe(moved.clone())]);
    let expected = [(1, Some(member(1))), (2, Some(moved)), (3, Some(member(3))), (4, Some(member(4)))];
    for number in 1..=2 * SNAPSHOT_EVERY_ENTRIES {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    }
    cluster.assert_replicas_equal();
    for id in 1..=4 {
        assert_eq!(names(cluster.replica(id)), expected, "node {id}");
        cluster.crash(id);
    }
    for id in 1..=4 {
        let snapshot =
            read_snapshot(crate::cluster::GROUP, &cluster.snapshot_bytes(id).unwrap(), 0, KnownVersions::THIS_BUILD)
                .unwrap();
        assert_eq!(snapshot.members.directory.len(), 4, "the snapshot holds them");
        cluster.restart(id);
        assert_eq!(names(cluster.replica(id)), expected, "node {id}, started again");
        assert_eq!(of_role(cluster.replica(id), Role::Voter), [1, 2, 3]);
        assert_eq!(of_role(cluster.replica(id), Role::Learner), [4]);
    }
    let leader = cluster.run_until_leader();
    cluster.assert_replicas_equal();
    let last = cluster.replica(leader).applied().index;
    for view in cluster.replica(leader).members() {
        assert_eq!((view.is_leader, view.matched), (view.node == leader, Some(last)), "node {}", view.node);
    }
    let follower = if leader == 1 { 2 } else { 1 };
    assert!(cluster.replica(follower).members().iter().all(|view| view.matched.is_none()), "only the leader knows");
}

#[test]
fn a_dead_voter_is_replaced_in_one_step_while_the_group_serves() {
    for seed in 41..51 {
        let mut cluster = described(seed);
        add_learner(&mut cluster, 4);
        let leader = cluster.run_until_leader();
        let (dead, other) = if leader == 1 { (2, 3) } else { (1, 5 - leader) };
        cluster.crash(dead);
        let (leader, ticket) = begin_replacement(&mut cluster, dead, 4);
        let second = cluster.replica(leader).change_members(&[MemberChange::Remove(other)], &cause());
        assert_eq!(second, Err(NotTaken::ChangeUnderWay));
        cluster.ask(lock(1, 1, "meanwhile", Wait::No));
        cluster.run_until("the change is complete", |cluster| {
            cluster.node(leader).changed.contains(&ticket).then_some(())
        });
        let mut voters = [leader, other, 4];
        voters.sort_unstable();
        assert_eq!(of_role(cluster.replica(leader), Role::Voter), voters);
        assert!(cluster.replica(leader).members().iter().all(|view| view.node != dead), "the dead node is removed");
        // The new voter counts: with it, the group serves without one of the two others.
        cluster.crash(other);
        cluster.ask(lock(1, 2, "afterwards", Wait::No));
        cluster.restart(other);
        cluster.nodes.remove(&dead);
        cluster.assert_replicas_equal();
    }
}

#[test]
fn the_next_leader_completes_a_change_that_its_predecessor_began() {
    for seed in 51..71 {
        let mut cluster = described(seed);
        add_learner(&mut cluster, 4);
        let leader = cluster.run_until_leader();
        let replaced = if leader == 1 { 2 } else { 1 };
        begin_replacement(&mut cluster, replaced, 4);
        cluster.crash(leader);
        let expected: Vec<u64> = [1, 2, 3, 4].into_iter().filter(|id| *id != replaced).collect();
        // As soon as it leads, the next leader knows that a change is not complete.
        let others: Vec<u64> = [1, 2, 3, 4].into_iter().filter(|id| *id != leader).collect();
        let first_answer = cluster.run_until("another node leads", |cluster| {
            let mut answers =
                others.iter().map(|id| cluster.replica(*id).change_members(&[MemberChange::Remove(leader)], &cause()));
            answers.find(|answer| !matches!(answer, Err(NotTaken::NotLeader { .. })))
        });
        assert_eq!(first_answer, Err(NotTaken::ChangeUnderWay));
        let next = cluster.run_until("another node has completed the change", |cluster| {
            let next = cluster.leader()?;
            (of_role(cluster.replica(next), Role::Leaving).is_empty()).then_some(next)
        });
        assert_ne!(next, leader);
        assert_eq!(of_role(cluster.replica(next), Role::Voter), expected, "seed {seed}");
        cluster.ask(lock(1, 1, "r", Wait::No));
        cluster.restart(leader);
        cluster.nodes.remove(&replaced);
        cluster.assert_replicas_equal();
    }
}

#[test]
fn a_snapshot_taken_in_the_middle_of_a_change_knows_old_and_new_voters() {
    let mut cluster = described(71);
    add_learner(&mut cluster, 4);
    let leader = cluster.run_until_leader();
    let replaced = if leader == 1 { 2 } else { 1 };
    begin_replacement(&mut cluster, replaced, 4);
    cluster.isolate(leader);
    cluster.replica(leader).snapshot_now();
    cluster.run_ms(20);
    let snapshot =
        read_snapshot(crate::cluster::GROUP, &cluster.snapshot_bytes(leader).unwrap(), 0, KnownVersions::THIS_BUILD)
            .unwrap();
    assert_eq!(snapshot.members.voters_outgoing, [1, 2, 3].into());
    assert!(snapshot.members.voters.contains(&4) && !snapshot.members.voters.contains(&replaced));
    assert!(snapshot.members.directory.contains_key(&replaced), "peers must find it until the change is complete");
    cluster.crash(leader);
    cluster.restart(leader);
    assert_eq!(of_role(cluster.replica(leader), Role::Leaving), [replaced], "as before the crash");
    cluster.heal();
    cluster.run_until("the change is complete", |cluster| {
        of_role(cluster.replica(leader), Role::Leaving).is_empty().then_some(())
    });
    cluster.nodes.remove(&replaced);
    cluster.assert_replicas_equal();
}

#[test]
fn a_change_that_cannot_be_made_is_refused_with_the_reason() {
    let mut cluster = described(72);
    add_learner(&mut cluster, 4);
    cluster.run_ms(500);
    let leader = cluster.run_until_leader();
    let named = |node, name| Member::new(node, name, "", "").unwrap();
    let taken = |name: &str, node| NotTaken::NameTaken { name: name.to_owned(), node };
    let all = [1, 2, 3, 4].map(MemberChange::Remove);
    let too_many: Vec<_> = (5..=MEMBERS_MAX as u64 + 1).map(|id| MemberChange::AddLearner(member(id))).collect();
    let refusals: Vec<(&[MemberChange], NotTaken)> = vec![
        (&[], NotTaken::NothingToChange),
        (&[MemberChange::Promote(9)], NotTaken::UnknownNode { node: 9 }),
        (&[MemberChange::Remove(9)], NotTaken::UnknownNode { node: 9 }),
        (&[MemberChange::Promote(1)], NotTaken::AlreadyMember { node: 1 }),
        (&all, NotTaken::LastVoter),
        (&too_many, NotTaken::TooManyMembers),
    ];
    for (changes, refusal) in refusals {
        assert_eq!(cluster.replica(leader).change_members(changes, &cause()), Err(refusal));
    }
    let refused = [
        (vec![MemberChange::AddLearner(named(4, "other"))], NotTaken::AlreadyMember { node: 4 }),
        (vec![MemberChange::AddLearner(named(9, "n4"))], taken("n4", 4)),
        (vec![MemberChange::Describe(named(1, "n4"))], taken("n4", 4)),
        (vec![MemberChange::Describe(named(9, "n9"))], NotTaken::UnknownNode { node: 9 }),
        (vec![MemberChange::Promote(4), MemberChange::Describe(named(4, "x"))], NotTaken::NodeTwice { node: 4 }),
    ];
    for (changes, refusal) in refused {
        assert_eq!(cluster.replica(leader).change_members(&changes, &cause()), Err(refusal));
    }
    assert_eq!(
        taken("n4", 4).to_string(),
        "a member named n4 exists under another id, 000000000004: if that node lost its disk, remove it first"
    );
    // In one call, a name is free for the next change as soon as its member is removed.
    let instead = [MemberChange::Remove(4), MemberChange::AddLearner(named(9, "n4"))];
    cluster.nodes.remove(&4);
    cluster.change(&instead);
    let leader = cluster.run_until_leader();
    assert_eq!(of_role(cluster.replica(leader), Role::Learner), [9]);
}

#[test]
fn a_learner_gets_a_vote_only_when_it_has_caught_up() {
    let mut cluster = described(73);
    cluster.join(4);
    cluster.isolate(4);
    cluster.change(&[MemberChange::AddLearner(member(4))]);
    let leader = cluster.run_until_leader();
    let refused = cluster.replica(leader).change_members(&[MemberChange::Promote(4)], &cause());
    assert!(
        matches!(refused, Err(NotTaken::NotCaughtUp { node: 4, matched: 0, .. })),
        "it has no entries: {refused:?}"
    );
    cluster.heal();
    cluster.assert_replicas_equal();
    cluster.run_ms(500);
    cluster.isolate(4);
    for number in 1..=PROMOTE_BEHIND_ENTRIES_MAX + 1 {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    }
    let leader = cluster.run_until_leader();
    let refused = cluster.replica(leader).change_members(&[MemberChange::Promote(4)], &cause());
    assert!(matches!(refused, Err(NotTaken::NotCaughtUp { node: 4, .. })), "{refused:?}");
    cluster.heal();
    cluster.assert_replicas_equal();
    cluster.change(&[MemberChange::Promote(4)]);
}

#[test]
fn a_leader_that_is_taken_out_names_its_successor_and_the_others_go_on() {
    for seed in 74..94 {
        let mut cluster = described(seed);
        let old = cluster.run_until_leader();
        let ticket = cluster.replica(old).change_members(&[MemberChange::Remove(old)], &cause()).unwrap();
        cluster
            .run_until("the change is complete", |cluster| cluster.node(old).changed.contains(&ticket).then_some(()));
        // No election timeout passes, which is a second at least.
        cluster.run_ms(300);
        assert!(!cluster.replica(old).serves());
        let leader =
            cluster.leader().filter(|leader| *leader != old).unwrap_or_else(|| panic!("no node leads, seed {seed}"));
        cluster.ask(lock(1, 1, "r", Wait::No));
        let term = cluster.replica(old).term();
        cluster.run_ms(20_000);
        assert_eq!(cluster.replica(old).term(), term, "it never stands for election again");
        assert_eq!(cluster.leader(), Some(leader), "it does not disturb the others");
    }
}

#[test]
fn a_leader_that_is_replaced_names_its_successor_too() {
    let mut cluster = described(94);
    add_learner(&mut cluster, 4);
    let old = cluster.run_until_leader();
    let (_, ticket) = begin_replacement(&mut cluster, old, 4);
    cluster.run_until("the change is complete", |cluster| cluster.node(old).changed.contains(&ticket).then_some(()));
    cluster.run_ms(300);
    assert!(cluster.leader().is_some_and(|leader| leader != old));
}

#[test]
fn a_node_that_is_taken_out_knows_it_unless_it_was_cut_off() {
    let mut cluster = described(95);
    let leader = cluster.run_until_leader();
    let follower = if leader == 1 { 2 } else { 1 };
    let cut_off = 6 - leader - follower;
    cluster.join(4);
    assert!(!cluster.replica(4).was_removed(), "it is not a member yet");
    cluster.change(&[MemberChange::Remove(follower)]);
    cluster.run_ms(300);
    assert!(cluster.replica(follower).was_removed());
    cluster.crash(follower);
    cluster.restart(follower);
    cluster.run_ms(300);
    assert!(cluster.replica(follower).was_removed(), "also after a restart");
    assert!(!cluster.replica(leader).was_removed() && !cluster.replica(cut_off).was_removed());

    // Two members are left. The leader removes itself. The other member learns of the removal, and then leads alone.
    cluster.change(&[MemberChange::Remove(leader)]);
    cluster.run_ms(300);
    assert!(cluster.replica(leader).was_removed() && !cluster.replica(cut_off).was_removed());
    cluster.ask(lock(1, 1, "r", Wait::No));
}

#[test]
fn a_node_that_was_cut_off_when_it_was_removed_does_not_lead_and_does_not_disturb_the_others() {
    let mut cluster = described(96);
    let leader = cluster.run_until_leader();
    let gone = if leader == 1 { 2 } else { 1 };
    cluster.isolate(gone);
    cluster.change(&[MemberChange::Remove(gone)]);
    cluster.ask(lock(1, 1, "r", Wait::No));
    cluster.heal();
    let term = cluster.replica(leader).term();
    cluster.run_ms(5_000);
    assert!(!cluster.replica(gone).was_removed(), "it does not know");
    assert_eq!(cluster.replica(gone).leader(), None, "it knows no leader");
    assert_eq!((cluster.leader(), cluster.replica(leader).term()), (Some(leader), term));
}

/// Every message that a node could send without being a member, in a term far ahead.
fn messages_of_a_stranger(from: u64, to: u64) -> impl Iterator<Item = Message> {
    let kinds = [
        MessageType::MsgRequestVote,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgAppendResponse,
        MessageType::MsgHeartbeatResponse,
    ];
    let message =
        move |msg_type| Message { msg_type, from, to, term: 1_000, log_term: 1, index: 1, ..Message::default() };
    kinds.into_iter().map(message)
}

#[test]
fn a_node_that_lost_its_disk_changes_nothing_until_its_old_id_is_removed() {
    let mut cluster = described(75);
    cluster.ask(lock(1, 1, "r", Wait::No));
    cluster.assert_replicas_equal();
    let leader = cluster.run_until_leader();
    let wiped = if leader == 1 { 2 } else { 1 };
    let others: Vec<u64> = [1, 2, 3].into_iter().filter(|id| *id != wiped).collect();
    cluster.crash(wiped);
    let term = cluster.replica(leader).term();
    // Node 9 drew a new id and knows no member. Node 8 was told the voters and is still not one of them.
    cluster.join(9);
    cluster.add_node(8, Log::new(&[1, 2, 3]), None);
    cluster.run_ms(20_000);
    for id in &others {
        for stranger in [8, 9] {
            for message in messages_of_a_stranger(stranger, *id) {
                cluster.replica(*id).handle_message(message).unwrap();
            }
        }
    }
    cluster.run_ms(5_000);
    assert_eq!(cluster.leader(), Some(leader));
    for id in &others {
        assert_eq!(cluster.replica(*id).term(), term, "node {id}");
    }
    // It changes nothing even while there is no leader, when nodes answer every request for a vote.
    let follower = others.iter().copied().find(|id| *id != leader).unwrap();
    cluster.crash(leader);
    cluster.run_ms(5_000);
    assert_eq!(cluster.replica(follower).leader(), None);
    for message in messages_of_a_stranger(9, follower) {
        cluster.replica(follower).handle_message(message).unwrap();
    }
    cluster.run_ms(100);
    assert_eq!(cluster.replica(follower).term(), term);
    cluster.restart(leader);

    // It can be added under its old name when the old id is removed.
    let again = Member::new(9, &format!("n{wiped}"), "", "").unwrap();
    let leader = cluster.run_until_leader();
    cluster.run_ms(500);
    let refused = cluster.replica(leader).change_members(&[MemberChange::AddLearner(again.clone())], &cause());
    assert_eq!(refused, Err(NotTaken::NameTaken { name: format!("n{wiped}"), node: wiped }));
    cluster.change(&[MemberChange::Remove(wiped)]);
    cluster.change(&[MemberChange::AddLearner(again)]);
    cluster.nodes.remove(&8);
    cluster.nodes.remove(&wiped);
    cluster.assert_replicas_equal();
    cluster.change(&[MemberChange::Promote(9)]);
}
