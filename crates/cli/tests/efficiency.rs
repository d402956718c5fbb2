//! The efficiency tier when the leader changes: real nodes, killed. What was held is lost, said so, and free again.

#[path = "harness/patience.rs"]
mod patience;
#[allow(dead_code, reason = "the tests with faults use the rest")]
mod real {
    pub(crate) mod background;
    pub(crate) mod cluster;
    pub(crate) mod proxy;
}

use patience::PATIENCE;
use real::cluster::Cluster;

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
