//! Groups under random faults, each from one seed: crashes, partitions, stalls, slow disks and snapshots, lost messages, leadership
//! transfers, and changes of the members.
//!
//! A client keeps acquiring locks. It sends an unanswered request again, with the same number. In the end every answer must be true:
//! each lock was granted once, tokens are unique, and all replicas have the same state. `FENCEPOST_SEEDS=N` runs more seeds,
//! `FENCEPOST_SEED=N` replays one.
#![allow(clippy::disallowed_methods, reason = "how many seeds to run comes from the environment")]

use std::collections::BTreeMap;

use crate::cluster::{Cluster, cause, lock, member, open, token};
use fencepost_core::{Name, Token, TokenCheck, Wait};
use fencepost_replica::{Log, MemberChange, Role};

const SEEDS_DEFAULT: u64 = 200;
const LOCKS: u64 = 60;

struct Random(u64);

impl Random {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

fn any_of(ids: &[u64], random: &mut Random) -> u64 {
    ids[random.below(ids.len() as u64) as usize]
}

/// Causes one fault, change or healing, and counts it. Fewer than half of `size` nodes are down or stalled at a time, and the group
/// always has at least `size` voters.
fn disturb(cluster: &mut Cluster, size: u64, random: &mut Random, faults: &mut BTreeMap<&'static str, u64>) {
    let ids: Vec<u64> = cluster.nodes.keys().copied().collect();
    let id = any_of(&ids, random);
    let hurt =
        cluster.nodes.values().filter(|node| node.replica.is_none() || node.stalled || node.disk_stalled).count();
    let may_hurt = (hurt as u64) < (size - 1) / 2;
    let is_well = {
        let node = cluster.node(id);
        node.replica.is_some() && !node.stalled && !node.disk_stalled
    };
    let name = match random.below(14) {
        0 if is_well && may_hurt => {
            cluster.crash(id);
            "crash"
        }
        1 if is_well && may_hurt => {
            cluster.node(id).stalled = true;
            "stall"
        }
        2 if is_well && may_hurt => {
            cluster.node(id).disk_stalled = true;
            "slow disk"
        }
        3 if may_hurt => {
            cluster.isolate(id);
            "isolation"
        }
        4 => {
            cluster.cut.insert((id, any_of(&ids, random)));
            "one-way cut"
        }
        5 => {
            let to = any_of(&ids, random);
            let Some(leader) = cluster.leader() else { return };
            // A node without a vote is refused.
            let Ok(()) = cluster.replica(leader).transfer_lead(to, cause()) else { return };
            "leadership transfer"
        }
        6 if is_well => {
            cluster.node(id).snapshots_stalled = true;
            "slow snapshots"
        }
        7..=10 => match change_members(cluster, size, random) {
            Some(name) => name,
            None => return,
        },
        _ => {
            heal(cluster);
            "healing"
        }
    };
    *faults.entry(name).or_default() += 1;
}

/// Asks the leader for a change of the members, if one can be made.
fn change_members(cluster: &mut Cluster, size: u64, random: &mut Random) -> Option<&'static str> {
    let leader = cluster.leader()?;
    let members = cluster.replica(leader).members();
    let of_role = |role| members.iter().filter(|view| view.role == role).map(|view| view.node).collect::<Vec<_>>();
    let (voters, learners) = (of_role(Role::Voter), of_role(Role::Learner));
    let voter = any_of(&voters, random);
    let is_spare = voters.len() as u64 > size;
    let (name, changes) = match (random.below(4), learners.first()) {
        (0, Some(learner)) if !is_spare => ("promotion", vec![MemberChange::Promote(*learner)]),
        (1, Some(learner)) => ("learner removed", vec![MemberChange::Remove(*learner)]),
        (_, Some(learner)) => ("replacement", vec![MemberChange::Promote(*learner), MemberChange::Remove(voter)]),
        (_, None) if is_spare => ("voter removed", vec![MemberChange::Remove(voter)]),
        (_, None) => {
            let new = cluster.nodes.keys().max()? + 1;
            cluster.replica(leader).change_members(&[MemberChange::AddLearner(member(new))], &cause()).ok()?;
            cluster.join(new);
            return Some("learner added");
        }
    };
    cluster.replica(leader).change_members(&changes, &cause()).ok().map(|_| name)
}

fn heal(cluster: &mut Cluster) {
    cluster.heal();
    for id in cluster.nodes.keys().copied().collect::<Vec<_>>() {
        let node = cluster.node(id);
        node.stalled = false;
        node.disk_stalled = false;
        node.snapshots_stalled = false;
        if node.replica.is_none() {
            cluster.restart(id);
        }
    }
}

#[test]
fn every_answer_is_true_whatever_happens() {
    let number_from = |variable| std::env::var(variable).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number_from("FENCEPOST_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number_from("FENCEPOST_SEEDS").unwrap_or(SEEDS_DEFAULT),
    };
    let mut faults = BTreeMap::new();
    let mut snapshots = 0;
    for seed in seeds.clone() {
        let voters: &[u64] = if seed % 3 == 0 { &[1, 2, 3, 4, 5] } else { &[1, 2, 3] };
        let size = voters.len() as u64;
        let mut cluster = Cluster::new(&[], seed);
        if seed % 4 == 0 {
            // So little that a few dozen entries fill the log.
            cluster.settings.log_bytes_max = 4 << 10;
        }
        for id in voters {
            cluster.add_node(*id, Log::new(voters), None);
        }
        let mut random = Random(seed);
        cluster.ask(open(1, 3_600_000));
        cluster.loss_percent = random.below(8);
        cluster.delay_ms_max = 1 + random.below(40);

        let mut tokens = BTreeMap::new();
        for number in 1..=LOCKS {
            let mut tries = 0;
            let answered = loop {
                if random.below(4) == 0 {
                    disturb(&mut cluster, size, &mut random, &mut faults);
                }
                tries += 1;
                if tries % 40 == 0 {
                    heal(&mut cluster);
                }
                assert!(tries < 400, "seed {seed}: lock {number} was never answered");
                let Some(leader) = cluster.leader() else {
                    cluster.run_ms(50);
                    continue;
                };
                let submitted = cluster.replica(leader).submit(lock(1, number, &format!("r{number}"), Wait::No));
                cluster.run_ms(20 + random.below(200));
                let answered = submitted.ok().and_then(|ticket| cluster.node(leader).replies.get(&ticket).cloned());
                if let Some(answered) = answered {
                    break answered;
                }
            };
            tokens.insert(number, token(&answered));
        }

        heal(&mut cluster);
        cluster.loss_percent = 0;
        // Removed nodes, and nodes that never became members, do not catch up.
        let members = cluster.run_until("no change is in progress", |cluster| {
            let leader = cluster.leader()?;
            let members = cluster.replica(leader).members();
            members.iter().all(|view| view.role != Role::Leaving).then_some(members)
        });
        cluster.nodes.retain(|id, _| members.iter().any(|view| view.node == *id));
        cluster.assert_replicas_equal();
        let leader = cluster.run_until_leader();
        let state = cluster.replica(leader).state();
        for (number, token) in &tokens {
            let found = state.check(&Name::new(&format!("r{number}")).expect("a plain name"), Token(*token));
            assert!(
                matches!(found, TokenCheck::Stands { .. }),
                "seed {seed}: lock {number} was granted {token}: {found:?}"
            );
        }
        let counts = state.counts();
        assert_eq!((counts.grants as u64, counts.last_token), (LOCKS, Token(LOCKS)), "seed {seed}: granted once each");
        snapshots += cluster.snapshots_made;
    }
    println!("{seeds:?} seeds, {snapshots} snapshots, faults: {faults:?}");
    if seeds.end() - seeds.start() + 1 < SEEDS_DEFAULT {
        return;
    }
    let disturbances =
        ["crash", "stall", "slow disk", "isolation", "one-way cut", "leadership transfer", "slow snapshots", "healing"];
    let changes = ["learner added", "promotion", "replacement", "voter removed", "learner removed"];
    for fault in disturbances.into_iter().chain(changes) {
        assert!(faults.get(fault).is_some_and(|count| *count >= 20), "too few faults of a kind: {faults:?}");
    }
}
