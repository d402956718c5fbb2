//! The replica in groups of one, three and five: elections, proposals, time, crashes, growth.
//!
//! Many tests are named after a mistake that another lock service has made.

use crate::cluster::{Cluster, SNAPSHOT_EVERY_ENTRIES, cause, lock, member, open, token};
use fencepost_core::bounds::RESTORE_TOKEN_JUMP;
use fencepost_core::{
    Action, Compacted, Epoch, GrantId, KnownVersions, LogPosition, LogicalMs, Name, Operation, Outcome, Position,
    PositionedEvent, Refusal, Request, RequestNumber, Seen, SessionId, TokenCheck, Wait,
};
use fencepost_replica::{
    BEAT_MS, GROUP_BEGINS, GroupId, Log, MemberChange, Message, NotTaken, TURN_MS_MAX, WAITING_OPERATIONS_MAX,
    WAITING_WANTS_MAX, make_snapshot, read_snapshot, restore_backup,
};

#[test]
fn one_node_alone_leads_and_grants() {
    let mut cluster = Cluster::new(&[1], 1);
    cluster.ask(open(1, 30_000));
    let granted = cluster.ask(lock(1, 1, "r", Wait::No));
    assert_eq!(token(&granted), 1);
}

#[test]
fn three_and_five_nodes_agree_on_every_state() {
    for voters in [&[1, 2, 3][..], &[1, 2, 3, 4, 5]] {
        let mut cluster = Cluster::new(voters, 7);
        cluster.ask(open(1, 30_000));
        for number in 1..=20 {
            let granted = cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
            assert_eq!(token(&granted), number);
        }
        cluster.assert_replicas_equal();
    }
}

#[test]
fn lost_doubled_and_delayed_messages_change_nothing() {
    for seed in 1..=20 {
        let mut cluster = Cluster::new(&[1, 2, 3], seed);
        cluster.loss_percent = 10;
        cluster.delay_ms_max = 60;
        cluster.ask(open(1, 600_000));
        let mut granted = 0;
        for number in 1..=30 {
            // A command with an unknown outcome is sent again with the same number. It is carried out once.
            let answered = cluster.run_until("the lock is granted", |cluster| {
                let leader = cluster.leader()?;
                let ticket = cluster.replica(leader).submit(lock(1, number, &format!("r{number}"), Wait::No)).ok()?;
                cluster.run_ms(200);
                cluster.node(leader).replies.get(&ticket).cloned()
            });
            assert!(token(&answered) > granted, "tokens rise");
            granted = token(&answered);
        }
        assert_eq!(granted, 30, "no grant was made twice");
        cluster.loss_percent = 0;
        cluster.assert_replicas_equal();
    }
}

#[test]
fn everything_that_arrived_meanwhile_is_one_entry() {
    let mut cluster = Cluster::new(&[1, 2, 3], 3);
    cluster.ask(open(1, 30_000));
    let leader = cluster.run_until_leader();
    let tickets: Vec<_> = (1..=500)
        .map(|number| cluster.replica(leader).submit(lock(1, number, &format!("r{number}"), Wait::No)).unwrap())
        .collect();
    cluster.run_until("all are answered", |cluster| {
        tickets.iter().all(|ticket| cluster.node(leader).replies.contains_key(ticket)).then_some(())
    });
    let positions: std::collections::BTreeSet<_> =
        tickets.iter().map(|ticket| cluster.node(leader).replies[ticket].position).collect();
    assert_eq!(positions.len(), 1, "five hundred operations are in one entry");
}

#[test]
fn an_idle_group_without_sessions_writes_nothing() {
    let mut cluster = Cluster::new(&[1, 2, 3], 4);
    let leader = cluster.run_until_leader();
    cluster.run_ms(1_000);
    let (applied, syncs) = (cluster.replica(leader).applied(), cluster.syncs(leader));
    cluster.run_ms(30_000);
    assert_eq!(cluster.replica(leader).applied(), applied);
    assert_eq!(cluster.syncs(leader), syncs);
}

#[test]
fn keep_alives_of_a_thousand_sessions_are_four_entries_a_second() {
    let mut cluster = Cluster::new(&[1, 2, 3], 5);
    let leader = cluster.run_until_leader();
    for session in 1..=1_000 {
        cluster.replica(leader).submit(open(session, 3_000)).unwrap();
    }
    cluster.run_ms(500);
    let before = cluster.replica(leader).applied().index;
    // Each session renews once a second. The renewals are spread over the second.
    for round in 0..10 {
        for slice in 0..20 {
            for session in (slice * 50 + 1)..=(slice * 50 + 50) {
                cluster.keep_alive(leader, session).unwrap();
            }
            cluster.run_ms(50);
        }
        assert_eq!(cluster.replica(leader).state().counts().sessions, 1_000, "all live after {} s", round + 1);
    }
    let entries = cluster.replica(leader).applied().index - before;
    assert!(entries <= 10_000 / BEAT_MS + 1, "{entries} entries in ten seconds");
}

#[test]
fn a_session_ends_at_most_half_a_second_of_logical_time_after_its_deadline() {
    let mut cluster = Cluster::new(&[1, 2, 3], 6);
    let opened = cluster.ask(open(1, 2_000));
    let deadline = LogicalMs(opened.stamp.0 + 2_000);
    let leader = cluster.run_until_leader();
    cluster.run_until("the session has ended", |cluster| {
        (cluster.replica(leader).state().counts().sessions == 0).then_some(())
    });
    let ended = cluster.replica(leader).state().stamp();
    assert!(ended >= deadline, "not early: {ended:?} before {deadline:?}");
    assert!(ended.0 <= deadline.0 + 500, "not late: {ended:?} after {deadline:?}");
}

#[test]
fn a_leader_that_slept_forty_seconds_expires_no_session() {
    let mut cluster = Cluster::new(&[1], 8);
    cluster.ask(open(1, 30_000));
    let before = cluster.replica(1).state().stamp();
    cluster.node(1).stalled = true;
    cluster.run_ms(40_000);
    cluster.node(1).stalled = false;
    cluster.run_ms(1_000);
    assert_eq!(cluster.replica(1).state().counts().sessions, 1, "the session lives");
    let renewed = cluster.keep_alive(1, 1).unwrap();
    let answered =
        cluster.run_until("the keep-alive is answered", |cluster| cluster.node(1).replies.get(&renewed).cloned());
    assert_eq!(answered.reply.outcome, Outcome::Renewed);
    assert!(answered.stamp.0 - before.0 <= TURN_MS_MAX + 2_000, "time stood still while it slept");
}

#[test]
fn a_sleeping_leader_that_was_replaced_expires_no_session_and_acknowledges_nothing() {
    let mut cluster = Cluster::new(&[1, 2, 3], 9);
    cluster.ask(open(1, 10_000));
    let old = cluster.run_until_leader();
    let late = cluster.keep_alive(old, 1).unwrap();
    cluster.node(old).stalled = true;
    let new = cluster.run_until("another node leads", |cluster| cluster.leader().filter(|leader| *leader != old));
    // The session lives on at the new leader for longer than its TTL.
    for _ in 0..20 {
        cluster.keep_alive(new, 1).unwrap();
        cluster.run_ms(1_000);
    }
    cluster.node(old).stalled = false;
    cluster.run_ms(2_000);
    assert_eq!(cluster.replica(new).state().counts().sessions, 1, "the old leader expired no session");
    assert!(!cluster.node(old).replies.contains_key(&late), "the old leader acknowledged nothing");
    assert!(cluster.node(old).abandoned.contains(&late), "it reported that the outcome is unknown to it");
    assert!(matches!(cluster.keep_alive(old, 1), Err(NotTaken::NotLeader { leader: Some(leader) }) if leader == new));
    cluster.assert_replicas_equal();
}

#[test]
fn an_isolated_leader_steps_down_and_neither_expires_nor_acknowledges() {
    let mut cluster = Cluster::new(&[1, 2, 3], 10);
    cluster.ask(open(1, 3_000));
    let old = cluster.run_until_leader();
    cluster.isolate(old);
    let late = cluster.keep_alive(old, 1).unwrap();
    cluster.run_ms(20_000);
    assert!(!cluster.replica(old).serves(), "without a majority it does not lead");
    assert_eq!(cluster.replica(old).state().counts().sessions, 1, "it expired no session");
    assert!(!cluster.node(old).replies.contains_key(&late));
    let new = cluster.leader().expect("the others elected a leader");
    assert_ne!(new, old);
    assert_eq!(cluster.replica(new).state().counts().sessions, 0, "the majority expired the silent session");
    cluster.heal();
    cluster.assert_replicas_equal();
}

#[test]
fn a_fail_over_gives_live_sessions_time_to_come_back() {
    let mut cluster = Cluster::new(&[1, 2, 3], 11);
    cluster.ask(open(1, 5_000));
    let old = cluster.run_until_leader();
    // The leader crashes just before the session's deadline.
    cluster.run_ms(4_800);
    cluster.crash(old);
    let new = cluster.run_until("another node leads", |cluster| cluster.leader().filter(|leader| *leader != old));
    cluster.run_ms(2_000);
    assert_eq!(cluster.replica(new).state().counts().sessions, 1, "the grace extended its deadline");
    cluster.run_ms(6_000);
    assert_eq!(cluster.replica(new).state().counts().sessions, 0, "but not for ever");
}

#[test]
fn tokens_keep_rising_after_a_fail_over() {
    let mut cluster = Cluster::new(&[1, 2, 3], 12);
    cluster.ask(open(1, 60_000));
    let mut last = 0;
    for number in 1..=5 {
        let granted = cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
        assert!(token(&granted) > last);
        last = token(&granted);
        let leader = cluster.run_until_leader();
        cluster.crash(leader);
        cluster.run_until("another node leads", |cluster| cluster.leader());
        cluster.restart(leader);
    }
    cluster.assert_replicas_equal();
}

#[test]
fn what_was_acknowledged_survives_the_crash_of_every_node() {
    let mut cluster = Cluster::new(&[1, 2, 3], 13);
    cluster.ask(open(1, 60_000));
    let granted = cluster.ask(lock(1, 1, "r", Wait::No));
    for id in [1, 2, 3] {
        cluster.crash(id);
    }
    for id in [1, 2, 3] {
        cluster.restart(id);
    }
    let leader = cluster.run_until_leader();
    let found = cluster.replica(leader).state().check(&Name::new("r").unwrap(), fencepost_core::Token(token(&granted)));
    assert!(matches!(found, TokenCheck::Stands { grant: GrantId(1), .. }), "{found:?}");
    cluster.assert_replicas_equal();
}

#[test]
fn nothing_is_answered_before_a_majority_has_it_on_disk() {
    let mut cluster = Cluster::new(&[1, 2, 3], 14);
    cluster.ask(open(1, 60_000));
    let leader = cluster.run_until_leader();
    let followers: Vec<u64> = [1, 2, 3].into_iter().filter(|id| *id != leader).collect();
    for id in &followers {
        cluster.node(*id).disk_stalled = true;
    }
    let ticket = cluster.replica(leader).submit(lock(1, 1, "r", Wait::No)).unwrap();
    cluster.run_ms(500);
    assert!(!cluster.node(leader).replies.contains_key(&ticket), "one disk of three is not a majority");
    cluster.node(followers[0]).disk_stalled = false;
    cluster.run_until("two disks are a majority", |cluster| cluster.node(leader).replies.get(&ticket).cloned());
}

#[test]
fn a_proposal_forwarded_by_a_peer_is_dropped() {
    let mut cluster = Cluster::new(&[1, 2, 3], 15);
    let leader = cluster.run_until_leader();
    cluster.run_ms(500);
    let before = cluster.replica(leader).applied();
    let mut forwarded = Message::default();
    forwarded.set_msg_type(raft::eraftpb::MessageType::MsgPropose);
    forwarded.from = if leader == 1 { 2 } else { 1 };
    forwarded.to = leader;
    forwarded.mut_entries().push(raft::eraftpb::Entry { data: b"x".to_vec().into(), ..Default::default() });
    cluster.replica(leader).handle_message(forwarded).unwrap();
    cluster.run_ms(1_000);
    assert_eq!(cluster.replica(leader).applied(), before);
}

#[test]
fn a_read_sees_everything_acknowledged_before_it() {
    let mut cluster = Cluster::new(&[1, 2, 3], 16);
    let opened = cluster.ask(open(1, 60_000));
    let leader = cluster.run_until_leader();
    let read = cluster.replica(leader).submit_read().unwrap();
    let position = cluster.run_until("the read is ready", |cluster| cluster.node(leader).reads.get(&read).copied());
    assert!(position >= opened.position, "the position that it shows: {position:?}");
    assert!(cluster.replica(leader).state().session(SessionId(1)).is_some());
}

#[test]
fn a_stale_read_of_a_node_that_is_cut_off_says_its_position() {
    let mut cluster = Cluster::new(&[1, 2, 3], 33);
    let opened = cluster.ask(open(1, 60_000));
    let leader = cluster.run_until_leader();
    let cut_off = if leader == 1 { 2 } else { 1 };
    cluster.assert_replicas_equal();
    cluster.isolate(cut_off);
    let granted = cluster.ask(lock(1, 1, "r", Wait::No));
    cluster.run_ms(5_000);
    let (position, state) = cluster.replica(cut_off).read_stale();
    assert!(position >= opened.position && position < granted.position, "{position:?}");
    assert_eq!((state.counts().sessions, state.counts().grants), (1, 0), "as of that position");
    assert_eq!(
        cluster.replica(cut_off).submit_read(),
        Err(NotTaken::NotLeader { leader: None }),
        "it answers no linearizable read"
    );
    assert!(cluster.node(cut_off).reads.is_empty());
    cluster.heal();
    cluster.assert_replicas_equal();
    let (position, state) = cluster.replica(cut_off).read_stale();
    assert!(position >= granted.position && state.counts().grants == 1);
}

#[test]
fn an_isolated_leader_answers_no_linearizable_read() {
    let mut cluster = Cluster::new(&[1, 2, 3], 17);
    let old = cluster.run_until_leader();
    cluster.isolate(old);
    let read = cluster.replica(old).submit_read().unwrap();
    cluster.run_ms(10_000);
    assert!(!cluster.node(old).reads.contains_key(&read));
    assert!(cluster.node(old).abandoned.contains(&read));
}

#[test]
fn a_group_grows_from_one_to_three_while_it_serves_and_shrinks_again() {
    let mut cluster = Cluster::new(&[1], 18);
    cluster.ask(open(1, 600_000));
    let mut number = 0;
    for id in [2, 3] {
        // A new node knows only its id. It learns everything else from the leader.
        cluster.join(id);
        for change in [MemberChange::AddLearner(member(id)), MemberChange::Promote(id)] {
            cluster.change(&[change]);
            number += 1;
            cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
        }
    }
    cluster.assert_replicas_equal();
    // Now the group survives the crash of one node.
    cluster.crash(1);
    number += 1;
    cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    cluster.change(&[MemberChange::Remove(1)]);
    number += 1;
    cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    cluster.assert_replicas_equal();
}

#[test]
fn a_node_that_is_alone_leads_at_once_when_it_starts_again() {
    let mut cluster = Cluster::new(&[1], 26);
    cluster.ask(open(1, 600_000));
    // Every node describes itself, so every log contains a change of the members.
    cluster.change(&[MemberChange::Describe(member(1))]);
    cluster.ask(lock(1, 1, "r1", Wait::No));
    cluster.ask(lock(1, 2, "r2", Wait::No));
    cluster.crash(1);
    cluster.restart(1);
    // Less than a tick: there is no other voter to wait for.
    cluster.run_ms(50);
    assert_eq!(cluster.leader(), Some(1));
}

#[test]
fn leadership_is_transferred_on_request() {
    let mut cluster = Cluster::new(&[1, 2, 3], 19);
    cluster.ask(open(1, 60_000));
    let old = cluster.run_until_leader();
    let new = if old == 1 { 2 } else { 1 };
    cluster.replica(old).transfer_lead(new, cause()).unwrap();
    let started = cluster.now;
    cluster.run_until("the other leads", |cluster| (cluster.leader() == Some(new)).then_some(()));
    assert!(cluster.now.0 - started.0 < 200_000_000, "without waiting for an election");
    cluster.ask(lock(1, 1, "r", Wait::No));
}

#[test]
fn a_follower_that_missed_too_much_gets_a_snapshot() {
    let mut cluster = Cluster::new(&[1, 2, 3], 20);
    cluster.ask(open(1, 600_000));
    let leader = cluster.run_until_leader();
    let behind = if leader == 1 { 2 } else { 1 };
    cluster.crash(behind);
    for number in 1..=4 * SNAPSHOT_EVERY_ENTRIES {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    }
    assert!(cluster.snapshots_made >= 2 * 3, "the others have made snapshots");
    let first_kept = cluster.replica(leader).applied().index - SNAPSHOT_EVERY_ENTRIES;
    cluster.restart(behind);
    assert!(
        cluster.replica(behind).applied().index < first_kept,
        "the leader's log no longer has the entries that it needs"
    );
    cluster.assert_replicas_equal();
    // It continues like the others, also from its own disk.
    cluster.crash(behind);
    cluster.restart(behind);
    cluster.ask(lock(1, 1_000, "after", Wait::No));
    cluster.assert_replicas_equal();
}

#[test]
fn every_node_starts_again_from_its_snapshot_and_the_entries_after_it() {
    let mut cluster = Cluster::new(&[1, 2, 3], 21);
    cluster.ask(open(1, 600_000));
    for number in 1..=SNAPSHOT_EVERY_ENTRIES + 20 {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    }
    cluster.assert_replicas_equal();
    let held = cluster.replica(1).state().counts().grants;
    for id in [1, 2, 3] {
        cluster.crash(id);
        cluster.restart(id);
        assert!(cluster.replica(id).applied().index > SNAPSHOT_EVERY_ENTRIES, "it does not start from an empty state");
    }
    let leader = cluster.run_until_leader();
    cluster.run_ms(1_000);
    assert_eq!(cluster.replica(leader).state().counts().grants, held);
    cluster.assert_replicas_equal();
}

#[test]
fn a_damaged_or_foreign_snapshot_changes_nothing() {
    let mut cluster = Cluster::new(&[1], 22);
    cluster.ask(open(1, 600_000));
    let applied = cluster.replica(1).applied();
    let hash = cluster.replica(1).state().state_hash();
    let foreign = GroupId { cluster: 0xBAD, ..crate::cluster::GROUP };
    let far = LogPosition { index: 1_000, term: 9 };
    for bytes in
        [vec![0; 100], make_snapshot(foreign, None, &[1], [], GROUP_BEGINS, KnownVersions::THIS_BUILD).unwrap().0]
    {
        let mut message = Message { from: 2, to: 1, term: 9, ..Message::default() };
        message.set_msg_type(raft::eraftpb::MessageType::MsgSnapshot);
        let metadata = message.mut_snapshot().mut_metadata();
        (metadata.index, metadata.term) = (far.index, far.term);
        cluster.replica(1).handle_snapshot(message, bytes.into()).unwrap();
    }
    cluster.run_ms(500);
    assert_eq!((cluster.replica(1).applied(), cluster.replica(1).state().state_hash()), (applied, hash));
}

#[test]
fn a_node_does_not_stand_for_election_before_its_snapshot_is_durable() {
    let mut cluster = Cluster::new(&[1, 2, 3], 36);
    cluster.ask(open(1, 600_000));
    let leader = cluster.run_until_leader();
    let behind = leader % 3 + 1;
    cluster.isolate(behind);
    cluster.ask(lock(1, 1, "r", Wait::No));
    cluster.replica(leader).snapshot_now();
    cluster.run_ms(20);
    let bytes = cluster.snapshot_bytes(leader).expect("it was made");
    let term = cluster.replica(leader).term();
    cluster.node(behind).disk_stalled = true;
    cluster.replica(behind).handle_snapshot(snapshot_message(leader, behind, term, &bytes), bytes).unwrap();
    // It hears no node for longer than any election timeout. Then a late message asks it to stand for election.
    cluster.run_ms(5_000);
    assert_eq!(cluster.replica(behind).state().counts().grants, 1, "the snapshot was installed");
    let mut late = Message { from: leader, to: behind, term, ..Message::default() };
    late.set_msg_type(raft::eraftpb::MessageType::MsgTimeoutNow);
    cluster.replica(behind).handle_message(late).unwrap();
    cluster.run_ms(20);
    cluster.node(behind).disk_stalled = false;
    cluster.heal();
    cluster.assert_replicas_equal();
}

/// The message that announces a snapshot, as the leader sends it.
fn snapshot_message(from: u64, to: u64, term: u64, bytes: &[u8]) -> Message {
    let position = read_snapshot(crate::cluster::GROUP, bytes, 0, KnownVersions::THIS_BUILD).unwrap().position;
    let mut message = Message { from, to, term, ..Message::default() };
    message.set_msg_type(raft::eraftpb::MessageType::MsgSnapshot);
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (position.index, position.term);
    message
}

#[test]
fn an_older_snapshot_that_comes_late_does_not_replace_a_newer_one() {
    let mut cluster = Cluster::new(&[1, 2, 3], 35);
    cluster.ask(open(1, 600_000));
    let leader = cluster.run_until_leader();
    let behind = leader % 3 + 1;
    cluster.isolate(behind);
    let mut snapshots = Vec::new();
    for number in 1..=2 {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
        cluster.replica(leader).snapshot_now();
        cluster.run_ms(20);
        snapshots.push(cluster.snapshot_bytes(leader).expect("it was made"));
    }
    let term = cluster.replica(leader).term();
    for bytes in snapshots.iter().rev() {
        let message = snapshot_message(leader, behind, term, bytes);
        cluster.replica(behind).handle_snapshot(message, bytes.clone()).unwrap();
    }
    cluster.run_ms(20);
    assert_eq!(cluster.replica(behind).state().counts().grants, 2, "the newer one");
    // A snapshot message without its bytes is ignored.
    let mut bare = Message { from: leader, to: behind, term, ..Message::default() };
    bare.set_msg_type(raft::eraftpb::MessageType::MsgSnapshot);
    let metadata = bare.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (1_000, term);
    metadata.set_conf_state(raft::eraftpb::ConfState { voters: vec![1, 2, 3], ..Default::default() });
    cluster.replica(behind).handle_message(bare).unwrap();
    cluster.run_ms(20);
    cluster.heal();
    cluster.assert_replicas_equal();
}

#[test]
fn a_node_whose_state_differs_from_its_own_log_stops() {
    let mut cluster = Cluster::new(&[1], 23);
    cluster.ask(open(1, 600_000));
    cluster.forge_snapshots = true;
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for number in 1..=2 * SNAPSHOT_EVERY_ENTRIES {
            cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
        }
    }));
    let why = *stopped.expect_err("the node stopped").downcast::<String>().expect("it says why");
    assert!(why.contains("StateDiffers"), "{why}");
}

#[test]
fn a_backup_taken_while_serving_becomes_a_new_group_with_higher_tokens() {
    let mut cluster = Cluster::new(&[1, 2, 3], 24);
    cluster.ask(open(1, 600_000));
    let before = cluster.ask(lock(1, 1, "r", Wait::No));
    let leader = cluster.run_until_leader();
    cluster.replica(leader).snapshot_now();
    cluster.run_ms(15);
    let backup = cluster.snapshot_bytes(leader).expect("the backup is made");
    // Granted after the backup, so the new group does not know it.
    let lost = cluster.ask(lock(1, 2, "s", Wait::No));

    let mut restored = Cluster::new(&[], 25);
    restored.settings.group = GroupId { cluster: 0xD, group: 1 };
    assert!(
        read_snapshot(restored.settings.group, &backup, 0, KnownVersions::THIS_BUILD).is_err(),
        "the new group does not accept the backup as its own snapshot"
    );
    let first =
        restore_backup(&backup, restored.settings.group, RESTORE_TOKEN_JUMP, 1, KnownVersions::THIS_BUILD).unwrap();
    restored.add_node(1, Log::new(&[1]), Some(first.into()));
    restored.run_until_leader();
    assert_eq!(restored.replica(1).state().counts().sessions, 0, "a restored backup has no sessions");
    restored.ask(open(9, 600_000));
    let after = restored.ask(lock(9, 1, "r", Wait::No));
    assert!(token(&after) > token(&before).max(token(&lost)), "no token is given twice");
    assert!(token(&after) > RESTORE_TOKEN_JUMP);
}

#[test]
fn a_group_grows_to_five_and_a_dead_node_is_replaced() {
    let mut cluster = Cluster::new(&[1, 2, 3], 26);
    cluster.ask(open(1, 600_000));
    let mut number = 0;
    let mut change = |cluster: &mut Cluster, change| {
        cluster.change(&[change]);
        number += 1;
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    };
    for id in [4, 5] {
        cluster.join(id);
        change(&mut cluster, MemberChange::AddLearner(member(id)));
        change(&mut cluster, MemberChange::Promote(id));
    }
    cluster.assert_replicas_equal();
    // Two of five crash. One of them never comes back, and a new node replaces it under a new id.
    cluster.crash(4);
    cluster.crash(5);
    cluster.join(6);
    change(&mut cluster, MemberChange::AddLearner(member(6)));
    change(&mut cluster, MemberChange::Promote(6));
    change(&mut cluster, MemberChange::Remove(5));
    cluster.restart(4);
    cluster.assert_replicas_equal();
}

#[test]
fn a_second_change_of_members_waits_for_the_first() {
    let mut cluster = Cluster::new(&[1, 2, 3], 27);
    let leader = cluster.run_until_leader();
    cluster.replica(leader).change_members(&[MemberChange::AddLearner(member(4))], &cause()).unwrap();
    let second = cluster.replica(leader).change_members(&[MemberChange::AddLearner(member(5))], &cause());
    assert_eq!(second, Err(NotTaken::ChangeUnderWay));
}

#[test]
fn a_renewal_of_an_ended_session_is_refused() {
    let mut cluster = Cluster::new(&[1, 2, 3], 28);
    cluster.ask(open(1, 1_000));
    let leader = cluster.run_until_leader();
    cluster.run_until("the session has ended", |cluster| {
        (cluster.replica(leader).state().counts().sessions == 0).then_some(())
    });
    let late = cluster.keep_alive(leader, 1).unwrap();
    let answered = cluster.run_until("it is answered", |cluster| cluster.node(leader).replies.get(&late).cloned());
    assert_eq!(answered.reply.outcome, Outcome::Refused(Refusal::NoSession));
}

#[test]
fn a_restart_of_all_nodes_does_not_restart_a_ttl() {
    let mut cluster = Cluster::new(&[1, 2, 3], 29);
    let opened = cluster.ask(open(1, 20_000));
    cluster.run_ms(10_000);
    // This entry carries the time into the log. Time that is in no entry is lost with the leader, which is safe.
    cluster.ask(open(2, 600_000));
    for id in [1, 2, 3] {
        cluster.crash(id);
        cluster.restart(id);
    }
    let leader = cluster.run_until_leader();
    cluster.run_until("the session has ended", |cluster| {
        cluster.replica(leader).state().session(SessionId(1)).is_none().then_some(())
    });
    let lived = cluster.replica(leader).state().stamp().0 - opened.stamp.0;
    assert!((20_000..=20_000 + 3_000 + 500).contains(&lived), "it lived {lived} ms of a TTL of 20 s");
}

#[test]
fn expiry_is_not_stuck_behind_a_flood_of_requests() {
    let mut cluster = Cluster::new(&[1, 2, 3], 31);
    let opened = cluster.ask(open(1, 2_000));
    cluster.ask(open(2, 600_000));
    let leader = cluster.run_until_leader();
    let mut number = 0;
    let ended = cluster.run_until("the silent session has ended", |cluster| {
        for _ in 0..200 {
            number += 1;
            // Whatever the answer, each of them is an operation that goes through the log.
            cluster.replica(leader).submit(lock(2, number, "r", Wait::No)).unwrap();
        }
        let state = cluster.replica(leader).state();
        state.session(SessionId(1)).is_none().then_some(state.stamp())
    });
    assert!(ended.0 <= opened.stamp.0 + 2_000 + 500, "it ended {} ms after it was opened", ended.0 - opened.stamp.0);
}

#[test]
fn an_overloaded_node_refuses_acquires_first_then_releases_and_never_a_keep_alive() {
    let mut cluster = Cluster::new(&[1, 2, 3], 32);
    cluster.ask(open(1, 600_000));
    let leader = cluster.run_until_leader();
    let release = |number| {
        let (session, epoch, number) = (SessionId(1), Epoch(1), RequestNumber(number));
        let action = Action::Release { grant: GrantId(1), report: None };
        Operation::Request(Request { session, epoch, number, seen: Seen::default(), action })
    };
    let wants_max = WAITING_WANTS_MAX as u64;
    for number in 1..=wants_max {
        cluster.replica(leader).submit(lock(1, number, "r", Wait::No)).unwrap();
    }
    let more = cluster.replica(leader).submit(lock(1, 0, "r", Wait::No));
    assert_eq!(more, Err(NotTaken::Overloaded));
    for number in wants_max + 1..=WAITING_OPERATIONS_MAX as u64 {
        cluster.replica(leader).submit(release(number)).unwrap();
    }
    assert_eq!(cluster.replica(leader).submit(release(0)), Err(NotTaken::Overloaded));
    cluster.keep_alive(leader, 1).unwrap();
    cluster.run_ms(1_000);
    assert!(cluster.replica(leader).submit(lock(1, 0, "r", Wait::No)).is_ok(), "the backlog is worked off");
}

/// All events after a position, as a watcher at that node gets them.
fn events_after(cluster: &mut Cluster, node: u64, position: Position) -> Result<Vec<PositionedEvent>, Compacted> {
    let events = cluster.replica(node).events().after(position, "", usize::MAX)?;
    Ok(events.cloned().collect())
}

#[test]
fn a_watcher_continues_at_another_node_where_it_stopped() {
    let beginning = Position { index: GROUP_BEGINS.index, ordinal: u32::MAX };
    let mut cluster = Cluster::new(&[1, 2, 3], 34);
    cluster.ask(open(1, 600_000));
    // Too few entries for a snapshot, so that every node has all events.
    for number in 1..=20 {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
        if number % 7 == 0 {
            let leader = cluster.run_until_leader();
            cluster.replica(leader).transfer_lead(leader % 3 + 1, cause()).unwrap();
            cluster.run_until("another node leads", |cluster| cluster.leader().filter(|next| *next != leader));
        }
    }
    cluster.assert_replicas_equal();
    let all = events_after(&mut cluster, 1, beginning).unwrap();
    assert_eq!(all.len(), 1 + 20, "a session and twenty grants");
    for node in [1, 2, 3] {
        for (seen, event) in (1..).zip(&all) {
            let rest = events_after(&mut cluster, node, event.position).unwrap();
            assert_eq!(rest, all[seen..], "node {node} after {:?}", event.position);
        }
    }

    // A node that was away and installed a snapshot does not have the events that it missed, and says so.
    let leader = cluster.run_until_leader();
    let away = leader % 3 + 1;
    let last_seen = all.last().unwrap().position;
    cluster.isolate(away);
    for number in 21..=20 + 3 * SNAPSHOT_EVERY_ENTRIES {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    }
    cluster.heal();
    cluster.assert_replicas_equal();
    cluster.ask(lock(1, 1_000, "after", Wait::No));
    cluster.assert_replicas_equal();
    let Err(Compacted { oldest }) = events_after(&mut cluster, away, last_seen) else { panic!("a silent gap") };
    assert!(oldest > last_seen);
    let rest = events_after(&mut cluster, away, oldest).unwrap();
    assert!(!rest.is_empty(), "it has the events after that");
    assert_eq!(rest, events_after(&mut cluster, leader, oldest).unwrap());
    assert_eq!(events_after(&mut cluster, leader, last_seen).unwrap().len() as u64, 3 * SNAPSHOT_EVERY_ENTRIES + 1);
}
