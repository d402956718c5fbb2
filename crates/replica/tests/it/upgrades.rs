//! A cluster is upgraded node by node while it serves. Version 2 is made up: it has one more operation, one more record and one changed
//! rule. Whatever the order, no node stops, all states are equal, and the version rises when the last node knows it.

#![cfg(feature = "made-up-version")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cluster::{Cluster, cause, lock, member, open};
use fencepost_core::{
    Acquire, Action, Epoch, FormatVersion, KnownVersions, Lock, LockMode, Name, Operation, Outcome, Reason, Record,
    Refusal, Request, RequestNumber, Seen, SessionId, Terms, Wait,
};
use fencepost_replica::{MemberChange, NotTaken, read_entry};
use raft::eraftpb::Entry;

const OLD: KnownVersions = KnownVersions::THIS_BUILD;
const NEW: KnownVersions = KnownVersions::WITH_MADE_UP;
const FIRST: FormatVersion = FormatVersion::FIRST;
const MADE_UP: FormatVersion = FormatVersion::MADE_UP;

/// Long enough for a raise, if one is due: within it, every member is heard, and silence is noticed.
const A_WHILE_MS: u64 = 5_000;

fn remark() -> Operation {
    Operation::MadeUp(Reason::new("upgraded").unwrap())
}

fn shared(session: u128, number: u64, name: &str) -> Operation {
    let locks = [Lock { name: Name::new(name).unwrap(), mode: LockMode::Shared }].into_iter().collect();
    let action = Action::Acquire(Acquire { locks, owner: None, wait: Wait::No, terms: Terms::default() });
    let (session, epoch, number) = (SessionId(session), Epoch(1), RequestNumber(number));
    Operation::Request(Request { session, epoch, number, seen: Seen::default(), action })
}

/// Three sessions that acquire all the time. Two share each lock, so the third gets a busy answer with the holders. The made-up version
/// changes which holders the answer names, and the answer is part of the state.
struct Load {
    number: u64,
}

impl Load {
    fn begin(cluster: &mut Cluster) -> Load {
        for session in 1..=3 {
            cluster.ask(open(session, 600_000));
        }
        Load { number: 0 }
    }

    /// Acquires `times` locks with all three sessions. Returns how many holders the last busy answer named.
    fn ask(&mut self, cluster: &mut Cluster, times: u64) -> usize {
        let mut named = 0;
        for _ in 0..times {
            self.number += 1;
            let name = format!("r{}", self.number);
            cluster.ask(shared(1, self.number, &name));
            cluster.ask(shared(2, self.number, &name));
            let Outcome::Busy(busy) = cluster.ask(lock(3, self.number, &name, Wait::No)).reply.outcome else {
                panic!("two hold it");
            };
            named = busy.holders.len();
        }
        named
    }
}

fn version(cluster: &mut Cluster) -> FormatVersion {
    let leader = cluster.run_until_leader();
    cluster.replica(leader).state().version()
}

fn run_until_raised(cluster: &mut Cluster) {
    cluster.run_until("the version is raised everywhere", |cluster| {
        let raised = |id: &u64| cluster.nodes[id].replica.as_ref().is_some_and(|it| it.state().version() == MADE_UP);
        cluster.nodes.keys().all(raised).then_some(())
    });
}

/// An operation of the new version is refused, and the version does not rise.
fn assert_not_raised(cluster: &mut Cluster) {
    cluster.run_ms(A_WHILE_MS);
    assert_eq!(version(cluster), FIRST);
    let refused = cluster.ask(remark()).reply.outcome;
    assert_eq!(refused, Outcome::Refused(Refusal::NotYet { needs: MADE_UP }));
}

fn assert_raised(cluster: &mut Cluster) {
    run_until_raised(cluster);
    assert_eq!(cluster.ask(remark()).reply.outcome, Outcome::Done);
    cluster.assert_replicas_equal();
    for node in cluster.nodes.values() {
        let state = node.replica.as_ref().expect("it is up").state();
        assert!(state.records().any(|record| matches!(record, Record::Remark(_))));
        assert_eq!(state.verify(), Ok(()));
    }
}

#[test]
fn three_nodes_are_upgraded_in_every_order_under_load() {
    for (seed, order) in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]].into_iter().enumerate() {
        let mut cluster = Cluster::new(&[1, 2, 3], 100 + seed as u64);
        let mut load = Load::begin(&mut cluster);
        load.ask(&mut cluster, 20);
        for id in order {
            assert_eq!(load.ask(&mut cluster, 10), 2, "{order:?}: the old rule holds on every node");
            assert_eq!(version(&mut cluster), FIRST, "{order:?} before {id} is upgraded");
            cluster.exchange(id, NEW);
            load.ask(&mut cluster, 10);
            cluster.run_until_leader();
        }
        run_until_raised(&mut cluster);
        assert_eq!(load.ask(&mut cluster, 20), 1, "{order:?}: the new rule holds");
        assert_raised(&mut cluster);
        assert!(cluster.snapshots_made > 0, "some nodes made snapshots");
    }
}

#[test]
fn a_node_that_is_not_upgraded_or_down_blocks_the_raise() {
    let mut cluster = Cluster::new(&[1, 2, 3], 7);
    let mut load = Load::begin(&mut cluster);
    cluster.exchange(1, NEW);
    cluster.exchange(2, NEW);
    assert_eq!(load.ask(&mut cluster, 30), 2);
    assert_not_raised(&mut cluster);
    // While node 3 is down, it may come back with the older release.
    cluster.crash(3);
    load.ask(&mut cluster, 5);
    assert_not_raised(&mut cluster);
    cluster.exchange(3, NEW);
    cluster.run_until_leader();
    assert_raised(&mut cluster);
}

#[test]
fn a_node_that_went_back_to_the_old_release_before_the_raise_blocks_it() {
    let mut cluster = Cluster::new(&[1, 2, 3], 8);
    let mut load = Load::begin(&mut cluster);
    cluster.exchange(1, NEW);
    load.ask(&mut cluster, 5);
    cluster.exchange(1, OLD);
    cluster.exchange(2, NEW);
    cluster.exchange(3, NEW);
    load.ask(&mut cluster, 20);
    assert_not_raised(&mut cluster);
    cluster.assert_replicas_equal();
    cluster.exchange(1, NEW);
    assert_raised(&mut cluster);
}

#[test]
fn a_node_comes_back_from_a_snapshot_of_the_new_version() {
    let mut cluster = Cluster::new(&[1, 2, 3], 9);
    let mut load = Load::begin(&mut cluster);
    [1, 2, 3].into_iter().for_each(|id| cluster.exchange(id, NEW));
    assert_raised(&mut cluster);
    let leader = cluster.run_until_leader();
    let late = if leader == 1 { 2 } else { 1 };
    cluster.crash(late);
    // More entries than the log keeps.
    load.ask(&mut cluster, 60);
    cluster.restart(late);
    load.ask(&mut cluster, 5);
    assert_raised(&mut cluster);
}

#[test]
fn a_release_that_does_not_know_the_version_refuses_to_start() {
    let mut cluster = Cluster::new(&[1, 2, 3], 10);
    let mut load = Load::begin(&mut cluster);
    [1, 2, 3].into_iter().for_each(|id| cluster.exchange(id, NEW));
    run_until_raised(&mut cluster);
    cluster.ask(remark());
    cluster.run_ms(A_WHILE_MS);
    let from_the_log = cluster.refusal_to_start(1, OLD);
    // Until a snapshot replaces the entry that raised the version.
    load.ask(&mut cluster, 60);
    cluster.assert_replicas_equal();
    let from_the_snapshot = cluster.refusal_to_start(1, OLD);
    for stop in [from_the_log, from_the_snapshot] {
        assert!(stop.is_about_versions(), "{stop}");
        assert!(stop.to_string().contains("and this node knows 1: upgrade this node, then start it again"), "{stop}");
    }
}

#[test]
fn a_node_that_goes_back_at_the_moment_of_the_raise_stops_and_the_others_continue() {
    let mut cluster = Cluster::new(&[1, 2, 3], 11);
    let mut load = Load::begin(&mut cluster);
    cluster.exchange(1, NEW);
    cluster.exchange(2, NEW);
    let leader = cluster.run_until("an upgraded node leads", |cluster| {
        let leader = cluster.leader()?;
        if leader == 3 {
            cluster.replica(3).transfer_lead(1, cause()).expect("it leads");
        }
        (leader != 3).then_some(leader)
    });
    load.ask(&mut cluster, 1);
    // The leader has just heard this node. It crashes, and the last node is upgraded before the leader notices its silence.
    let goes_back = 3 - leader;
    cluster.crash(goes_back);
    cluster.exchange(3, NEW);
    cluster.run_until("the version is raised", |cluster| {
        (cluster.replica(leader).state().version() == MADE_UP).then_some(())
    });
    let stopped = catch_unwind(AssertUnwindSafe(|| {
        cluster.exchange(goes_back, OLD);
        cluster.run_ms(A_WHILE_MS);
    }));
    let why = *stopped.expect_err("it cannot continue").downcast::<String>().expect("it says why");
    assert!(why.contains("VersionUnknown"), "{why}");
    cluster.exchange(goes_back, NEW);
    load.ask(&mut cluster, 5);
    assert_raised(&mut cluster);
}

#[test]
fn a_node_joins_only_with_a_release_that_knows_the_version() {
    let mut cluster = Cluster::new(&[1, 2, 3], 13);
    Load::begin(&mut cluster);
    // An old node may join an old cluster, and then blocks the raise.
    cluster.settings.known = OLD;
    cluster.join(4);
    cluster.change(&[MemberChange::AddLearner(member(4))]);
    [1, 2, 3].into_iter().for_each(|id| cluster.exchange(id, NEW));
    cluster.run_until_leader();
    assert_not_raised(&mut cluster);
    cluster.exchange(4, NEW);
    assert_raised(&mut cluster);

    let leader = cluster.run_until_leader();
    cluster.replica(leader).handle_hello(5, OLD);
    let refused = cluster.replica(leader).change_members(&[MemberChange::AddLearner(member(5))], &cause()).unwrap_err();
    assert_eq!(refused, NotTaken::VersionUnknown { node: 5, known: OLD, version: MADE_UP });
    assert!(refused.to_string().contains("start that node with a release that knows 2"), "{refused}");
    cluster.replica(leader).handle_hello(5, NEW);
    cluster.settings.known = NEW;
    cluster.join(5);
    cluster.change(&[MemberChange::AddLearner(member(5))]);
    assert_raised(&mut cluster);
}

#[test]
fn a_node_of_the_old_release_cannot_join_while_a_raise_is_in_flight() {
    let mut cluster = Cluster::new(&[1, 2, 3], 14);
    Load::begin(&mut cluster);
    [1, 2, 3].into_iter().for_each(|id| cluster.exchange(id, NEW));
    let leader = cluster.run_until("a raise is in flight", |cluster| {
        let leader = cluster.leader()?;
        let replica = cluster.replica(leader);
        let mut unapplied = replica.entries_from(replica.applied().index + 1);
        let is_raise =
            |entry: &Entry| read_entry(entry, NEW).expect("sound").is_some_and(|it| it.batch.raise_to.is_some());
        unapplied.any(is_raise).then_some(leader)
    });
    let replica = cluster.replica(leader);
    assert_eq!(replica.state().version(), FIRST, "it is not applied yet");
    replica.handle_hello(5, OLD);
    let refused = replica.change_members(&[MemberChange::AddLearner(member(5))], &cause());
    assert_eq!(refused, Err(NotTaken::VersionUnknown { node: 5, known: OLD, version: MADE_UP }));
    assert_raised(&mut cluster);
}

#[test]
fn no_raise_overtakes_a_pending_change_of_the_members() {
    let mut cluster = Cluster::new(&[1, 2, 3], 16);
    Load::begin(&mut cluster);
    cluster.exchange(1, NEW);
    cluster.exchange(2, NEW);
    let leader = cluster.run_until_leader();
    // The change is taken, and then the last voter is upgraded. The raise must wait for the new members.
    cluster.replica(leader).handle_hello(4, OLD);
    cluster
        .replica(leader)
        .change_members(&[MemberChange::AddLearner(member(4))], &cause())
        .expect("the old version is active");
    cluster.settings.known = OLD;
    cluster.join(4);
    cluster.exchange(3, NEW);
    cluster.run_until("the learner is a member", |cluster| {
        let leader = cluster.leader()?;
        cluster.replica(leader).members().iter().any(|it| it.node == 4 && it.matched.is_some()).then_some(())
    });
    assert_not_raised(&mut cluster);
    cluster.exchange(4, NEW);
    assert_raised(&mut cluster);
}

#[test]
fn an_old_voter_that_is_replaced_counts_until_the_change_is_complete() {
    let mut cluster = Cluster::new(&[1, 2, 3], 17);
    let mut load = Load::begin(&mut cluster);
    cluster.exchange(1, NEW);
    cluster.exchange(2, NEW);
    cluster.settings.known = NEW;
    cluster.join(4);
    cluster.change(&[MemberChange::AddLearner(member(4))]);
    cluster.run_until("the learner has caught up", |cluster| {
        let leader = cluster.leader()?;
        (cluster.replica(4).applied() == cluster.replica(leader).applied()).then_some(())
    });
    assert_not_raised(&mut cluster);
    // Both sets of voters are members until the second step of the change is complete.
    cluster.change(&[MemberChange::Promote(4), MemberChange::Remove(3)]);
    cluster.crash(3);
    cluster.nodes.remove(&3);
    load.ask(&mut cluster, 5);
    assert_raised(&mut cluster);
}

#[test]
fn a_group_of_one_raises_its_version_after_an_upgrade() {
    let mut cluster = Cluster::new(&[1], 15);
    cluster.ask(open(1, 600_000));
    assert_not_raised(&mut cluster);
    cluster.exchange(1, NEW);
    assert_raised(&mut cluster);
}
