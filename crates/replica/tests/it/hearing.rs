//! Which peers a node hears. The leader reports a dead peer as silent; without a leader, each node does. It reports once, and never by
//! mistake.

use crate::cluster::{Cluster, lock, member, open};
use fencepost_core::Wait;
use fencepost_replica::{Hears, Lag, MemberChange, MemberView, SILENT_AFTER_MS};

fn view(cluster: &mut Cluster, at: u64, of: u64) -> MemberView {
    cluster.replica(at).members().into_iter().find(|it| it.node == of).expect("a member")
}

fn others(cluster: &Cluster, than: u64) -> Vec<u64> {
    cluster.nodes.keys().copied().filter(|id| *id != than).collect()
}

/// Three nodes with names, and the leader, which has led for a while.
fn named_group(seed: u64) -> (Cluster, u64) {
    let mut cluster = Cluster::new(&[1, 2, 3], seed);
    for id in [1, 2, 3] {
        cluster.change(&[MemberChange::Describe(member(id))]);
    }
    cluster.run_ms(5_000);
    let leader = cluster.run_until_leader();
    (cluster, leader)
}

#[test]
fn a_leader_sees_a_dead_follower_and_that_it_comes_back() {
    for seed in 1..=10 {
        let (mut cluster, leader) = named_group(seed);
        let [dead, living] = others(&cluster, leader)[..] else { panic!("three nodes") };
        for node in [leader, dead, living] {
            assert_eq!(view(&mut cluster, leader, node).hears, Hears::Yes);
        }
        cluster.crash(dead);
        cluster.run_ms(8_000);
        let seen = view(&mut cluster, leader, dead);
        assert!(matches!(seen.hears, Hears::Silent { ms: 8_000..=8_300 }), "{seen:?}");
        assert_eq!(seen.lag, Some(Lag::default()), "no entry was written since");
        assert_eq!(view(&mut cluster, leader, living).hears, Hears::Yes);
        // Followers do not hear each other, so they must not call each other silent.
        assert_eq!(view(&mut cluster, living, dead).hears, Hears::Unknown);
        assert_eq!(view(&mut cluster, living, leader).hears, Hears::Yes);
        assert_eq!(cluster.node(leader).peers, [(dead, true)], "reported once");
        assert_eq!(cluster.node(living).peers, []);

        cluster.restart(dead);
        cluster.run_ms(SILENT_AFTER_MS + 2_000);
        assert_eq!(view(&mut cluster, leader, dead).hears, Hears::Yes);
        assert_eq!(cluster.node(leader).peers, [(dead, true), (dead, false)]);
        assert_eq!(cluster.leader(), Some(leader), "the leader is the same");
    }
}

#[test]
fn a_node_without_a_leader_says_which_voters_it_hears() {
    for seed in 1..=10 {
        let (mut cluster, leader) = named_group(seed);
        let followers = others(&cluster, leader);
        // Two of three crash. The node that is left was the leader, or a follower.
        for left in [leader, followers[0]] {
            let dead = others(&cluster, left);
            for node in &dead {
                cluster.crash(*node);
            }
            cluster.run_ms(9_500);
            assert_eq!(cluster.replica(left).leader(), None);
            let hearing = cluster.replica(left).hearing();
            assert_eq!((hearing.heard, hearing.voters, hearing.has_majority), (1, 3, false), "{hearing}");
            let said = hearing.to_string();
            assert!(said.starts_with(&format!("node n{left} hears 1 of 3: ")), "{said}");
            // A follower begins to listen for the other follower when it misses its leader, after up to two seconds.
            for (name, ms) in &hearing.silent {
                assert!((7_000..=9_800).contains(ms) && dead.iter().any(|it| format!("n{it}") == *name), "{said}");
            }
            assert_eq!(hearing.silent.len(), 2, "{said}");
            for node in &dead {
                cluster.restart(*node);
            }
            cluster.run_until_leader();
            cluster.run_ms(6_000);
            let leader = cluster.run_until_leader();
            assert_eq!(cluster.replica(leader).hearing().to_string(), format!("node n{leader} hears 3 of 3"));
        }
    }
}

#[test]
fn voters_without_a_majority_hear_each_other_while_they_ask_for_votes() {
    // Two of five live. They ask each other for votes for ever, so they hear each other.
    let mut cluster = Cluster::new(&[1, 2, 3, 4, 5], 11);
    cluster.run_until_leader();
    for dead in [3, 4, 5] {
        cluster.crash(dead);
    }
    cluster.run_ms(20_000);
    for step in 0..200 {
        cluster.run_ms(100);
        for (at, other) in [(1, 2), (2, 1)] {
            assert_eq!(view(&mut cluster, at, other).hears, Hears::Yes, "step {step}");
            assert!(matches!(view(&mut cluster, at, 3).hears, Hears::Silent { .. }));
        }
    }
    assert_eq!(cluster.replica(1).hearing().heard, 2);
}

#[test]
fn a_node_that_slept_does_not_call_the_others_silent() {
    let (mut cluster, leader) = named_group(3);
    let others = others(&cluster, leader);
    for sleeper in [leader, others[0]] {
        // The messages of that time are lost, so the first turn after the sleep has heard nothing.
        cluster.node(sleeper).stalled = true;
        cluster.isolate(sleeper);
        cluster.run_ms(60_000);
        cluster.heal();
        let before = cluster.node(sleeper).peers.clone();
        cluster.node(sleeper).stalled = false;
        for _ in 0..200 {
            cluster.run_ms(20);
            let views = cluster.replica(sleeper).members();
            assert!(views.iter().all(|it| !matches!(it.hears, Hears::Silent { .. })), "{views:?}");
        }
        assert_eq!(cluster.node(sleeper).peers, before);
    }
}

#[test]
fn an_unstable_peer_is_reported_once() {
    let (mut cluster, leader) = named_group(4);
    let [flaps, _] = others(&cluster, leader)[..] else { panic!("three nodes") };
    for _ in 0..20 {
        cluster.cut.extend([(flaps, leader), (leader, flaps)]);
        cluster.run_ms(SILENT_AFTER_MS + 500);
        assert!(matches!(view(&mut cluster, leader, flaps).hears, Hears::Silent { .. }));
        cluster.heal();
        cluster.run_until("it is heard", |cluster| (view(cluster, leader, flaps).hears == Hears::Yes).then_some(()));
        cluster.run_ms(1_000);
    }
    assert_eq!(cluster.node(leader).peers, [(flaps, true)]);
    cluster.run_ms(SILENT_AFTER_MS + 500);
    assert_eq!(cluster.node(leader).peers, [(flaps, true), (flaps, false)], "it stayed");
}

#[test]
fn the_lag_of_a_follower_counts_the_entries_and_the_time_that_it_is_behind() {
    let (mut cluster, leader) = named_group(5);
    let [dead, living] = others(&cluster, leader)[..] else { panic!("three nodes") };
    cluster.ask(open(1, 600_000));
    cluster.run_ms(1_000);
    cluster.isolate(dead);
    cluster.run_ms(4_000);
    let last = cluster.replica(leader).applied().index;
    for number in 1..=10 {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    }
    let written = cluster.replica(leader).applied().index - last;
    cluster.run_ms(6_000);
    let lag = view(&mut cluster, leader, dead).lag.expect("the leader knows");
    // A leader writes an entry with its time once a second, so the follower is behind from the first second on.
    assert!(lag.entries >= written && (9_000..=10_400).contains(&lag.ms), "{lag:?}, {written} entries");
    let lag = view(&mut cluster, leader, living).lag.expect("the leader knows");
    assert!(lag.entries <= 1 && lag.ms < 300, "{lag:?}");
    assert_eq!(view(&mut cluster, leader, leader).lag, None);
    assert_eq!(view(&mut cluster, living, dead).lag, None, "only the leader knows");

    // When the leader's log no longer reaches back to its entries, it needs a snapshot.
    for number in 11..=120 {
        cluster.ask(lock(1, number, &format!("r{number}"), Wait::No));
    }
    cluster.node(leader).sending_stalled = true;
    cluster.heal();
    cluster.run_until("it gets a snapshot", |cluster| view(cluster, leader, dead).gets_snapshot.then_some(()));
    cluster.node(leader).sending_stalled = false;
    cluster.run_until("it has caught up", |cluster| {
        let seen = view(cluster, leader, dead);
        (!seen.gets_snapshot && seen.lag == Some(Lag::default())).then_some(())
    });
}
