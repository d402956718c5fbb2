//! What a fail-over does to the locks of each tier, with real nodes that are killed.
//!
//! Locks in the leader's memory (efficiency) are lost: the holder is told, and the lock is free again. Locks in the log
//! (correctness) stay held, also when a node comes back without its disk. In the same situations, Redis and Redlock give one lock
//! to two clients (`crates/backends/tests/it/conformance/known_failures.rs`).

use crate::cluster::Cluster;
use crate::patience::PATIENCE;

// Rule: tier-efficiency
#[test]
fn a_new_leader_forgets_efficiency_locks_and_the_holder_is_told() {
    let mut cluster = Cluster::start_on(3, None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(async { cluster.client("holder") });
    let (fast, correct) = runtime.block_on(async {
        let fast = client.lock("nightly").efficiency().acquire().await.expect("the lock is free");
        (fast, client.lock("nightly").acquire().await.expect("the lock is free in the other tier"))
    });
    let lead = cluster.leader(0);
    cluster.kill(lead.node);
    runtime.block_on(async {
        let why = tokio::time::timeout(PATIENCE, fast.lost()).await.expect("the holder is told in time");
        assert_eq!(why, fencepost::Lost::Gone, "the next leader does not know the lock");
        let again = client.lock("nightly").efficiency().wait(PATIENCE).acquire();
        let again = tokio::time::timeout(PATIENCE, again).await.expect("it is granted again in time");
        again.expect("the lock is free").release().await.expect("the lock is held");
        assert!(correct.is_held(), "the next leader knows the locks in the log");
        correct.release().await.expect("the lock is held");
    });
}

// Rule: tier-correctness
#[test]
fn a_killed_leader_and_a_node_without_its_disk_give_no_lock_to_two_clients() {
    let mut cluster = Cluster::start_on(3, None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (first, second) = runtime.block_on(async { (cluster.client("first"), cluster.client("second")) });
    let one = runtime.block_on(first.lock("nightly-report").acquire()).expect("the lock is free");

    // The fail-over of Redis: the node that granted the lock is gone.
    let lead = cluster.leader(0);
    cluster.kill(lead.node);
    let taken = runtime.block_on(second.lock("nightly-report").try_acquire()).expect("an answer");
    assert!(taken.is_none() && one.is_held(), "the next leader knows the holder");

    // The restart of a Redlock master: one of the majority that granted the lock comes back without data.
    let refusal = cluster.restart_without_its_disk(lead.node).expect_err("it must not vote a second time");
    assert!(refusal.contains("--join"), "the message says what to do: {refusal}");
    let taken = runtime.block_on(second.lock("nightly-report").try_acquire()).expect("an answer");
    assert!(taken.is_none() && one.is_held(), "the cluster does not forget the holder");
    let token = one.token();
    runtime.block_on(async {
        one.release().await.expect("the lock is held");
        let two = second.lock("nightly-report").wait(PATIENCE).acquire().await.expect("the lock is free");
        assert!(two.token() > token);
        two.release().await.expect("the lock is held");
    });
}
