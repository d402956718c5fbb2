//! What a fail-over does to each tier: real nodes, killed. What was held in the leader's memory is lost, said so, and free again; what
//! consensus knows stays where it was, also when a node comes back without its disk. Those are the stories in which Redis and
//! Redlock give one lock to two (`crates/backends/tests/conformance/known_failures.rs`).

use crate::cluster::Cluster;
use crate::patience::PATIENCE;

// Rule: tier-efficiency
#[test]
fn a_new_leader_knows_nothing_and_the_holder_learns_it() {
    let mut cluster = Cluster::start_on(3, None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(async { cluster.client("holder") });
    let (fast, correct) = runtime.block_on(async {
        let fast = client.lock("nightly").efficiency().acquire().await.expect("it is free");
        (fast, client.lock("nightly").acquire().await.expect("it is free in this tier, too"))
    });
    let lead = cluster.leader(0);
    cluster.kill(lead.node);
    runtime.block_on(async {
        let why = tokio::time::timeout(PATIENCE, fast.lost()).await.expect("the loss is told in time");
        assert_eq!(why, fencepost::Lost::Gone, "another term knows nothing of it");
        let again = client.lock("nightly").efficiency().wait(PATIENCE).acquire();
        let again = tokio::time::timeout(PATIENCE, again).await.expect("it is granted anew in time");
        again.expect("it is free").release().await.expect("it is held");
        assert!(correct.is_held(), "what consensus knows, the next leader knows");
        correct.release().await.expect("it is held");
    });
}

// Rule: tier-correctness
#[test]
fn a_killed_leader_and_a_node_that_forgot_give_no_lock_to_two() {
    let mut cluster = Cluster::start_on(3, None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (first, second) = runtime.block_on(async { (cluster.client("first"), cluster.client("second")) });
    let one = runtime.block_on(first.lock("nightly-report").acquire()).expect("it is free");

    // The fail-over of Redis: whoever granted it is gone.
    let lead = cluster.leader(0);
    cluster.kill(lead.node);
    let taken = runtime.block_on(second.lock("nightly-report").try_acquire()).expect("an answer");
    assert!(taken.is_none() && one.is_held(), "the next leader knows whose it is");

    // The forgetful master of Redlock: one of the majority that granted it comes back with nothing.
    let refusal = cluster.restart_without_its_disk(lead.node).expect_err("it may not vote a second time");
    assert!(refusal.contains("--join"), "it says what to do: {refusal}");
    let taken = runtime.block_on(second.lock("nightly-report").try_acquire()).expect("an answer");
    assert!(taken.is_none() && one.is_held(), "nobody can be made to forget it");
    let token = one.token();
    runtime.block_on(async {
        one.release().await.expect("it is held");
        let two = second.lock("nightly-report").wait(PATIENCE).acquire().await.expect("it is free");
        assert!(two.token() > token);
        two.release().await.expect("it is held");
    });
}
