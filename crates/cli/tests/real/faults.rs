//! Real binaries, real sockets, real faults (L6): three and five `fencepost serve` processes on loopback, while clients take and
//! hand over locks and write to a fenced SQLite file. The history of each run is recorded and checked.
//!
//! The runs go one after the other. Each prints what it checked and how long the first grant after each fault took, even if
//! it passes: `cargo test -p fencepost-cli --test real`.

use std::process::Command;
use std::time::Duration;

use crate::background::Background;
use crate::cluster::say;
use crate::patience::{PATIENCE, wait_until};
use crate::proxy::Link;
use crate::run::Run;
use fencepost::Error;

#[test]
fn the_leader_is_killed_again_and_again() {
    let mut run = Run::start("leader killed", 3);
    for _ in 0..4 {
        let lead = run.cluster.leader(0);
        let killed_at = run.fault("kill -9 of the leader");
        run.cluster.kill(lead.node);
        run.first_grant("leader killed", killed_at);
        run.work(20);
        run.cluster.restart(lead.node);
        run.every_node_serves();
    }
    run.finish();
}

/// A leader is paused for longer than an election takes. After it wakes up, it believes for a moment that it still leads.
#[test]
fn a_leader_that_slept_does_no_harm() {
    let mut run = Run::start("leader paused", 3);
    for _ in 0..2 {
        let lead = run.cluster.leader(0);
        let paused_at = run.fault("SIGSTOP of the leader");
        run.cluster.pause(lead.node);
        run.first_grant("leader paused", paused_at);
        run.cluster.leader(lead.term);
        run.work(20);
        run.watch_goes_on();
        let resumed_at = run.fault("SIGCONT of the old leader");
        run.cluster.resume(lead.node);
        run.first_grant("old leader resumed", resumed_at);
        run.every_node_serves();
    }
    run.finish();
}

#[test]
fn links_are_cut_and_healed() {
    let mut run = Run::start("links cut", 5);
    for state in [Link::Frozen, Link::Closed] {
        let lead = run.cluster.leader(0);
        let follower = (0..5).find(|node| *node != lead.node).expect("there are five");
        let cut_at = run.fault("follower cut off");
        run.cluster.isolate(follower, state);
        run.first_grant("follower cut off", cut_at);
        run.work(20);
        heal(&mut run);

        let lead = run.cluster.leader(0);
        let cut_at = run.fault("leader cut off, both ways");
        run.cluster.isolate(lead.node, state);
        run.cluster.leader(lead.term);
        run.first_grant("leader cut off", cut_at);
        run.work(20);
        heal(&mut run);
    }
    let lead = run.cluster.leader(0);
    let cut_at = run.fault("leader muted");
    run.cluster.mute(lead.node, Link::Frozen);
    run.first_grant("leader muted", cut_at);
    run.work(20);
    heal(&mut run);

    let lead = run.cluster.leader(0);
    let cut_at = run.fault("leader deafened");
    run.cluster.deafen(lead.node, Link::Frozen);
    run.first_grant("leader deafened", cut_at);
    run.work(20);
    heal(&mut run);
    run.finish();
}

fn heal(run: &mut Run) {
    let healed_at = run.fault("heal");
    run.cluster.heal();
    run.first_grant("healed", healed_at);
    run.every_node_serves();
}

#[test]
fn all_nodes_are_killed_at_once() {
    let mut run = Run::start("all killed", 3);
    for _ in 0..2 {
        run.fault("kill -9 of all nodes");
        run.cluster.kill_all();
        run.cluster.restart(0);
        run.cluster.restart(1);
        let majority_at = run.recorder.now();
        run.cluster.restart(2);
        run.first_grant("a majority is up again", majority_at);
        run.every_node_serves();
        run.work(30);
    }
    run.finish();
}

#[test]
fn members_come_and_go_while_serving() {
    let mut run = Run::start("members", 3);
    for _ in 0..2 {
        let added_at = run.fault("member added");
        run.cluster.add(None);
        run.first_grant("member added", added_at);
        run.work(10);
    }
    assert_eq!(run.cluster.voters(), 5);
    run.every_node_serves();
    // First a follower, then the leader.
    for leads in [false, true] {
        let lead = run.cluster.leader(0);
        let running = run.cluster.running();
        let gone = running.into_iter().find(|node| (*node == lead.node) == leads).expect("there are several");
        let (id, voters) = (run.cluster.id(gone), run.cluster.voters());
        let kind = if leads { "leader removed" } else { "follower removed" };
        let removed_at = run.fault(kind);
        wait_until("the member is removed", || {
            // After a lost answer, the next request fails because the node is no longer a member.
            let _ = run.cluster.ask(async |client| client.admin().reason("test").remove_member(id).await);
            (run.cluster.voters() == voters - 1).then_some(())
        });
        run.first_grant(kind, removed_at);
        run.cluster.end_gracefully(gone);
        run.work(20);
    }
    assert_eq!(run.cluster.voters(), 3);
    run.every_node_serves();
    run.finish();
}

#[test]
fn a_restart_rolls_through_the_cluster() {
    let mut run = Run::start("rolling restart", 3);
    let lead = run.cluster.leader(0);
    // The leader last, as an operator would do it.
    let mut order: Vec<usize> = (0..3).filter(|node| *node != lead.node).collect();
    order.push(lead.node);
    for node in order {
        let was_leader = run.cluster.leader(0).node == node;
        let ended_at = run.fault(if was_leader { "graceful end of the leader" } else { "graceful end of a follower" });
        run.cluster.end_gracefully(node);
        run.first_grant(if was_leader { "leader ended gracefully" } else { "follower ended gracefully" }, ended_at);
        run.cluster.restart(node);
        run.every_node_serves();
        run.work(20);
    }
    run.finish();
}

/// Each node gets a small disk in memory. Needs no root where the system allows user namespaces.
#[test]
fn a_disk_fills_up_and_is_freed() {
    const DISK_BYTES: u64 = 128 << 20;
    let probe = Command::new("unshare").args(["-rm", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        say(&format!(
            "SKIPPED a_disk_fills_up_and_is_freed: this system allows no small disk without root ({probe:?})"
        ));
        return;
    }
    let mut run = Run::start_on("disk full", 3, Some(DISK_BYTES));
    let lead = run.cluster.leader(0);
    let filler = run.cluster.disk(lead.node).join("filler");
    // Acquired before the disk is full, and released after.
    let held =
        run.cluster.ask(async |client| client.lock("held on a full disk").acquire().await).expect("the disk has room");
    // A lock whose holder dies while the disk is full, and a client that waits for it.
    let (dies, waits) = (Background::start(), Background::start());
    let left = dies.block_on(async {
        let session = run.cluster.client("dies").session().ttl(Duration::from_secs(3)).open().expect("a valid TTL");
        session.lock("left by the dead").acquire().await.expect("the disk has room")
    });
    let wanted = waits.block_on(async { run.cluster.client("waits").lock("left by the dead") });
    let heir = waits.handle().spawn(wanted.wait(PATIENCE).acquire());
    wait_until("the client waits", || {
        let waiters = run.cluster.ask(async |client| client.waiters("left by the dead", None).await.ok())?;
        (waiters.rows.len() == 1).then_some(())
    });
    run.fault("disk of the leader full");
    fill(&filler);
    // The log has some reserved room left. Large entries use it up sooner.
    wait_until("the leader says that its disk is short", || {
        run.cluster.ask(async |client| {
            for number in 0..64 {
                let lock = client.lock(format!("large-{number}")).metadata([0; 4_000]);
                // Refused as soon as the disk is full.
                let Ok(Some(lock)) = lock.try_acquire().await else { break };
                drop(lock);
            }
        });
        run.cluster.status()?.disk_short.then_some(())
    });
    let refused =
        run.cluster.ask(async |client| client.lock("on a full disk").wait(Duration::ZERO).try_acquire().await);
    assert!(refused.as_ref().is_err_and(Error::is_failed), "new locks are refused on a full disk: {refused:?}");
    run.cluster.ask(async |_| held.release().await).expect("locks can be released on a full disk");
    run.fault("a holder dies while the disk is full");
    let dead = left.session();
    drop(dies);
    let heir = waits.block_on(heir).expect("the task is not cancelled").expect("the dead holder's lock is handed on");
    let found = run.cluster.ask(async |client| client.find_session(dead).await.map(|found| found.what));
    assert!(matches!(found, Ok(None)), "the dead session has expired: {found:?}");
    waits.block_on(heir.release()).expect("the new holder can release it");
    assert!(run.cluster.status().is_some_and(|status| status.disk_short), "the disk was full all the time");
    drop(left);
    let freed_at = run.fault("disk freed");
    std::fs::remove_file(&filler).expect("`fill` created it");
    run.first_grant("disk freed", freed_at);
    wait_until("the disk is no longer short", || (!run.cluster.status()?.disk_short).then_some(()));
    run.work(30);
    run.every_node_serves();
    run.finish();
}

/// Fills the disk to the last byte.
fn fill(path: &std::path::Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("the disk of our own child");
    for size in [1 << 20, 4096, 1] {
        let block = vec![0; size];
        while file.write_all(&block).is_ok() {}
    }
}
