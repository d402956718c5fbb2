//! Groups that are short of room: memory for the log, because no snapshot gets done, or space on the disk. Live sessions stay alive,
//! nothing grows beyond its bound, and the group serves again when there is room.

use crate::cluster::{Cluster, lock, open};
use fencepost_core::{
    Acquire, Act, Action, Admin, Epoch, FreezeId, GrantId, Lock, LockMode, Locks, Metadata, Name, Operation, Outcome,
    Permits, Principal, Reason, Request, RequestNumber, Scope, Seen, SessionId, TakePermits, Terms, Wait,
};
use fencepost_replica::{ENTRIES_IN_FLIGHT_MAX, NotTaken, Settings};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// An entry with one heavy lock takes at most this.
const HEAVY_ENTRY_BYTES: u64 = 5 * KIB;

/// A lock with the most metadata that is allowed.
fn heavy(number: u64) -> Operation {
    let lock = Lock { name: Name::new(&format!("r{number}")).unwrap(), mode: LockMode::Exclusive };
    let terms = Terms { metadata: Metadata::new(&[7; 4096]).unwrap(), ..Terms::default() };
    request(number, Action::Acquire(Acquire { locks: Locks::from_buf([lock]), owner: None, wait: Wait::No, terms }))
}

fn request(number: u64, action: Action) -> Operation {
    let seen = Seen { mark: number - 1, ..Seen::default() };
    Operation::Request(Request { session: SessionId(1), epoch: Epoch(1), number: RequestNumber(number), seen, action })
}

fn stall_snapshots(cluster: &mut Cluster, nodes: &[u64], stalled: bool) {
    for id in nodes {
        cluster.node(*id).snapshots_stalled = stalled;
    }
}

fn answered(cluster: &mut Cluster, leader: u64, ticket: fencepost_core::Ticket) -> Outcome {
    let answered = cluster.run_until("it is answered", |cluster| cluster.node(leader).replies.get(&ticket).cloned());
    answered.reply.outcome
}

#[test]
fn a_snapshot_is_also_due_by_bytes() {
    let mut cluster = Cluster::new(&[], 80);
    cluster.settings =
        Settings { snapshot_every_entries: u64::MAX, snapshot_every_bytes: 100 * KIB, ..cluster.settings };
    cluster.add_node(1, fencepost_replica::Log::new(&[1]), None);
    cluster.ask(open(1, 600_000));
    for number in 1..=60 {
        cluster.ask(heavy(number));
    }
    assert_eq!(cluster.snapshots_made, 2, "of entries with 250 KiB and a little");
}

#[test]
fn a_snapshot_that_was_put_off_is_requested_again_before_the_log_is_full() {
    let mut cluster = Cluster::new(&[], 87);
    cluster.settings = Settings { snapshot_every_entries: u64::MAX, log_bytes_max: 128 * KIB, ..cluster.settings };
    cluster.add_node(1, fencepost_replica::Log::new(&[1]), None);
    cluster.node(1).snapshots_put_off = 3;
    cluster.ask(open(1, 600_000));
    for number in 1..=100 {
        cluster.ask(heavy(number));
    }
    assert_eq!(cluster.node(1).snapshots_put_off, 0);
    assert!(cluster.snapshots_made > 3);
}

#[test]
fn a_snapshot_is_made_in_time_however_many_entries_should_be_kept() {
    let cap = 128 * KIB;
    let mut cluster = Cluster::new(&[], 86);
    cluster.settings = Settings { snapshot_every_entries: u64::MAX, entries_kept: u64::MAX, ..cluster.settings };
    cluster.settings.log_bytes_max = cap;
    cluster.add_node(1, fencepost_replica::Log::new(&[1]), None);
    cluster.ask(open(1, 600_000));
    for number in 1..=300 {
        // Each is taken at once: there is room before it is needed.
        cluster.ask(heavy(number));
    }
    let most = cluster.node(1).log_bytes_most;
    assert!(most < cap && most > cap / 2, "{most} bytes of {cap}");
    assert!((10..=20).contains(&cluster.snapshots_made), "of 1,200 KiB, one for each 64: {}", cluster.snapshots_made);
}

#[test]
fn the_log_of_a_leader_without_snapshots_stays_in_bounds_and_no_live_session_expires() {
    let cap = 128 * KIB;
    let mut cluster = Cluster::new(&[], 81);
    cluster.settings.log_bytes_max = cap;
    for id in [1, 2, 3] {
        cluster.add_node(id, fencepost_replica::Log::new(&[1, 2, 3]), None);
    }
    cluster.ask(open(1, 3_000));
    stall_snapshots(&mut cluster, &[1, 2, 3], true);
    let leader = cluster.run_until_leader();
    let mut number = 0;
    cluster.run_until("nothing more is taken", |cluster| {
        number += 1;
        let taken = cluster.replica(leader).submit(heavy(number));
        (taken == Err(NotTaken::Overloaded)).then_some(())
    });
    assert!(number > 10, "there was room for some: {number}");
    // Keep-alives use the rest of the room, so the session lives for longer than its TTL.
    for _ in 0..10 {
        let renewal = cluster.keep_alive(leader, 1).unwrap();
        assert_eq!(answered(&mut cluster, leader, renewal), Outcome::Renewed);
        cluster.run_ms(1_000);
        assert_eq!(cluster.replica(leader).submit(heavy(number)), Err(NotTaken::Overloaded));
    }
    // When that room is used up, too, nothing is written, and no session expires.
    let written = cluster.run_until("nothing more is written", |cluster| {
        let before = cluster.replica(leader).applied();
        for session in 0..500 {
            cluster.keep_alive(leader, 1 + session).unwrap();
        }
        cluster.run_ms(1_000);
        (cluster.replica(leader).applied() == before).then_some(before)
    });
    cluster.run_ms(20_000);
    assert_eq!(cluster.replica(leader).applied(), written);
    for id in [1, 2, 3] {
        let most = cluster.node(id).log_bytes_most;
        // An entry of five hundred keep-alives of forty bytes each.
        assert!(most <= cap + 20 * KIB, "node {id} had {most} bytes");
        assert!(most > cap / 2, "node {id} was never full: {most} bytes");
    }

    stall_snapshots(&mut cluster, &[1, 2, 3], false);
    let ticket = cluster.run_until("it is taken again", |cluster| cluster.replica(leader).submit(heavy(number)).ok());
    assert!(matches!(answered(&mut cluster, leader, ticket), Outcome::Granted { .. }), "the session lives");
    cluster.assert_replicas_equal();
    for id in [1, 2, 3] {
        let bytes = cluster.replica(id).log_bytes();
        let in_flight = ENTRIES_IN_FLIGHT_MAX as u64 * HEAVY_ENTRY_BYTES;
        assert!(bytes <= cap / 2 + in_flight, "node {id} has {bytes} bytes although snapshots work again");
    }
}

#[test]
fn the_log_of_a_follower_without_snapshots_stays_in_bounds_and_it_catches_up_later() {
    let cap = MIB;
    let mut cluster = Cluster::new(&[1, 2, 3], 82);
    cluster.ask(open(1, 600_000));
    // With these settings a node makes no snapshots, and its log has room for all entries. The follower below gets less room.
    cluster.settings = Settings {
        snapshot_every_entries: u64::MAX,
        snapshot_every_bytes: u64::MAX,
        log_bytes_max: 1 << 40,
        ..cluster.settings
    };
    for id in [1, 2, 3] {
        cluster.crash(id);
        cluster.restart(id);
    }
    let leader = cluster.run_until_leader();
    let follower = if leader == 1 { 2 } else { 1 };
    cluster.settings.log_bytes_max = cap;
    cluster.crash(follower);
    cluster.restart(follower);
    stall_snapshots(&mut cluster, &[follower], true);
    for number in 1..=1_000 {
        cluster.ask(heavy(number));
    }
    let (behind, ahead) = (cluster.replica(follower).applied().index, cluster.replica(leader).applied().index);
    assert!(behind + 500 < ahead, "it took no more: {behind} of {ahead}");
    assert!(behind > 100, "while there was room, it took entries: {behind}");
    cluster.run_ms(10_000);
    let most = cluster.node(follower).log_bytes_most;
    // Consensus sends a mebibyte of entries at a time, or one entry.
    assert!(most >= cap && most <= cap + MIB + HEAVY_ENTRY_BYTES, "{most} bytes");
    assert_eq!(cluster.leader(), Some(leader), "it does not disturb the others");

    stall_snapshots(&mut cluster, &[follower], false);
    cluster.assert_replicas_equal();
    let most = cluster.node(follower).log_bytes_most;
    assert!(most <= cap + MIB + HEAVY_ENTRY_BYTES, "while it catches up: {most} bytes");
}

#[test]
fn a_node_with_a_full_log_still_replaces_entries_that_were_never_committed() {
    let cap = 16 * KIB;
    let mut cluster = Cluster::new(&[], 83);
    cluster.settings.log_bytes_max = cap;
    for id in [1, 2, 3] {
        cluster.add_node(id, fencepost_replica::Log::new(&[1, 2, 3]), None);
    }
    cluster.ask(open(1, 600_000));
    let old = cluster.run_until_leader();
    stall_snapshots(&mut cluster, &[old], true);
    cluster.ask(heavy(1));
    cluster.ask(heavy(2));
    cluster.isolate(old);
    // More than fits, in one entry that no other node will ever have.
    for number in 3..=6 {
        cluster.replica(old).submit(heavy(number)).unwrap();
    }
    cluster.run_ms(10);
    assert!(cluster.replica(old).log_bytes() > cap, "its log is full");
    let applied = cluster.replica(old).applied();
    cluster.run_until("another node leads", |cluster| cluster.leader().filter(|leader| *leader != old));
    cluster.heal();
    cluster.run_until("it applies the others' entries", |cluster| {
        (cluster.replica(old).applied().index > applied.index).then_some(())
    });
    stall_snapshots(&mut cluster, &[old], false);
    cluster.assert_replicas_equal();
}

#[test]
fn a_node_that_starts_with_less_room_than_its_log_takes_drops_entries() {
    let mut cluster = Cluster::new(&[1], 84);
    cluster.ask(open(1, 600_000));
    for number in 1..=30 {
        cluster.ask(heavy(number));
    }
    cluster.replica(1).snapshot_now();
    cluster.run_ms(20);
    cluster.settings = Settings { log_bytes_max: 4 * KIB, ..cluster.settings };
    cluster.crash(1);
    cluster.restart(1);
    assert!(cluster.replica(1).log_bytes() < 4 * KIB, "{}", cluster.replica(1).log_bytes());
    cluster.ask(lock(1, 31, "r", Wait::No));
}

#[test]
fn while_the_disk_is_short_locks_are_released_and_none_are_granted() {
    let mut cluster = Cluster::new(&[1, 2, 3], 85);
    cluster.ask(open(1, 600_000));
    cluster.ask(lock(1, 1, "r", Wait::No));
    let leader = cluster.run_until_leader();
    let take = TakePermits {
        name: Name::new("pool").unwrap(),
        permits: Permits::new(1).unwrap(),
        limit: Permits::new(1).ok(),
        wait: Wait::No,
        terms: Terms::default(),
    };
    let admin = |act| {
        let (by, reason) = (Principal::new("tests").unwrap(), Reason::new("a test").unwrap());
        Operation::Admin(Admin { by, reason, act })
    };
    let scope = Scope::Name(Name::new("r").unwrap());
    let growing = [
        open(2, 600_000),
        lock(1, 2, "s", Wait::No),
        request(3, Action::TakePermits(take)),
        admin(Act::Freeze { freeze: FreezeId(1), scope }),
        admin(Act::SetLimit { name: Name::new("pool").unwrap(), limit: Permits::new(2).ok() }),
    ];
    cluster.replica(leader).set_disk_short(true);
    for operation in &growing {
        let refused = cluster.replica(leader).submit(operation.clone());
        assert_eq!(refused, Err(NotTaken::DiskShort), "{operation:?}");
    }
    assert_eq!(
        NotTaken::DiskShort.to_string(),
        "the disk is nearly full: releases go on, new locks are refused; free space"
    );
    let renewal = cluster.keep_alive(leader, 1).unwrap();
    assert_eq!(answered(&mut cluster, leader, renewal), Outcome::Renewed);
    let released = cluster.ask(request(2, Action::Release { grant: GrantId(1), report: None }));
    assert!(matches!(released.reply.outcome, Outcome::Released { .. }), "{released:?}");
    cluster.replica(leader).set_disk_short(false);
    for operation in growing.into_iter().filter(|operation| !matches!(operation, Operation::Admin(_))) {
        cluster.replica(leader).submit(operation).unwrap();
    }
}
