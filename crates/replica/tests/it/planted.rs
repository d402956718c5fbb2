//! Replicas compare their states: a node with a faulty build stops, and the others continue.

#![cfg(feature = "planted-bugs")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cluster::{Cluster, lock, open};
use fencepost_core::{Bug, Wait, plant};
use fencepost_replica::PROOF_EVERY_ENTRIES;

#[test]
fn a_node_with_another_state_stops_within_two_comparisons() {
    let mut cluster = Cluster::new(&[1, 2, 3], 30);
    cluster.ask(open(1, 600_000));
    cluster.ask(open(2, 600_000));
    let leader = cluster.run_until_leader();
    let faulty = if leader == 1 { 2 } else { 1 };
    cluster.faulty = Some((faulty, Bug::TokenFromEnqueue));
    // A request waits, so that the fault shows in the faulty node's state.
    cluster.ask(lock(1, 1, "r", Wait::No));
    cluster.ask(lock(2, 1, "r", Wait::Forever));
    let mut asked = 1;
    let stopped = catch_unwind(AssertUnwindSafe(|| {
        while asked < 4 * PROOF_EVERY_ENTRIES {
            asked += 1;
            cluster.ask(lock(1, asked, &format!("r{asked}"), Wait::No));
        }
    }));
    plant(None);
    let why = *stopped.expect_err("the faulty node stopped").downcast::<String>().expect("it says why");
    assert!(why.contains("StateDiffers"), "{why}");
    assert!(asked <= 2 * PROOF_EVERY_ENTRIES + 2, "after {asked} entries");
}
