//! The plan and the two phases of a random run: first faults, in which safety must hold; then a healed world, in which every node must
//! serve and every worker must get an answer.
//!
//! It owns how long each phase lasts and what is checked at its end. Which faults happen is decided in `faults.rs` and `leases.rs`.

use super::{Happening, World};
use crate::check::{Report, Violation};
use crate::fact::{Fact, WorldTime};
use crate::store::StoreTally;

/// Seeds of a default test run: at least three times as many as it takes to find any planted bug.
pub const SEEDS_DEFAULT: u64 = 1_000;

/// Time after healing within which every node must serve.
pub(super) const SERVES_WITHIN_MS: u64 = 5_000;
/// Time after healing within which every worker must get an answer. Sessions of crashed clients live for up to 15 s, their locks rest for
/// up to 3 s, and then a queue of workers has to be served.
const SERVED_WITHIN_MS: u64 = 60_000;

/// The parameters of a random run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Nodes at the start.
    pub nodes: u64,
    /// Client processes of the correctness tier.
    pub clients: usize,
    /// Users in each of these processes that take locks.
    pub workers: usize,
    /// Users in each of these processes that run jobs.
    pub runners: usize,
    /// Client processes of the efficiency tier.
    pub efficiency_clients: usize,
    /// Whether there is a hostile client.
    pub hostile: bool,
    /// Length of the phase with faults, in seconds of the world.
    pub seconds: u64,
    /// Whether there are faults.
    pub faults: bool,
    /// Whether administrators break grants, evict sessions and freeze names.
    pub administered: bool,
    /// Whether this is a lease run: only the leadership, very often, and the holders of locks are disturbed. Then everything with a
    /// deadline must end within a bound of real time.
    pub leases: bool,
    /// Whether the nodes start with an older release and are upgraded one by one.
    pub upgrades: bool,
}

impl Plan {
    /// The default plan of a seed: every eighth is a lease run.
    pub fn of_seed(seed: u64) -> Plan {
        if seed % 8 == 7 { Plan::of_leases(seed) } else { Plan::usual(seed) }
    }

    /// Every third seed has five nodes, every second has administrators, two of every four have a client of the efficiency tier, and four of
    /// every eight have a hostile client. In two of every four, one user of each process runs jobs.
    fn usual(seed: u64) -> Plan {
        // The users are as many as in other runs, so that all runs cost the same.
        let runs_jobs = seed % 4 == 1 || seed % 4 == 2;
        Plan {
            nodes: if seed.is_multiple_of(3) { 5 } else { 3 },
            clients: 3,
            workers: if runs_jobs { 2 } else { 3 },
            runners: usize::from(runs_jobs),
            efficiency_clients: usize::from(seed % 4 < 2),
            hostile: seed % 8 < 4,
            seconds: 60,
            administered: seed.is_multiple_of(2),
            ..Plan::quiet()
        }
    }

    /// No nodes, no clients, no administrators. The base of all other plans.
    pub(super) fn quiet() -> Plan {
        Plan {
            nodes: 0,
            clients: 0,
            workers: 0,
            runners: 0,
            efficiency_clients: 0,
            hostile: false,
            seconds: 0,
            faults: true,
            administered: false,
            leases: false,
            upgrades: false,
        }
    }

    /// A lease run (see [`Plan::leases`]), with one, three or five nodes.
    pub fn of_leases(seed: u64) -> Plan {
        let nodes = [3, 1, 3, 5][(seed / 8 % 4) as usize];
        let (clients, workers, seconds) = (2, 1, 150);
        Plan { nodes, clients, workers, seconds, leases: true, ..Plan::quiet() }
    }

    /// A usual run in which the nodes are also upgraded one by one.
    #[cfg(feature = "made-up-version")]
    pub fn of_upgrades(seed: u64) -> Plan {
        Plan { upgrades: true, ..Plan::usual(seed) }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Violated invariants.
    pub violations: Vec<Violation>,
    /// A hash of everything that happened. Two runs of the same seed must have the same.
    pub trace_hash: u64,
    /// Length of the run in the world's time.
    pub simulated_ms: u64,
    /// Operations that the log decided.
    pub operations: u64,
    /// Entries of the log.
    pub entries: u64,
    /// Faults by kind.
    pub faults: std::collections::BTreeMap<&'static str, u64>,
    /// What happened at the stores.
    pub store: StoreTally,
    /// Answers of the cluster that workers got.
    pub served: u64,
    /// Snapshots that nodes made.
    pub snapshots: u64,
    /// How often the format version was raised.
    pub raises: u64,
    /// How much the checkers checked.
    pub checked: Report,
}

impl World {
    /// Runs both phases of a plan.
    pub fn run(&mut self, plan: &Plan) -> Outcome {
        let begun = self.now;
        self.agenda.put(self.now, Happening::Chance);
        if plan.faults {
            self.disturb();
        }
        self.plan_upgrades(plan);
        self.run_until(begun.after_ms(plan.seconds * 1_000));
        let healed_at = self.now;
        self.heal();
        self.wake_all_clients();
        self.run_until(healed_at.after_ms(SERVES_WITHIN_MS));
        self.thaw_everything();
        self.tell_who_serves();
        let served_by = healed_at.after_ms(SERVED_WITHIN_MS);
        let is_unfinished = |world: &World| world.is_a_worker_unserved(healed_at) || world.is_raise_due();
        while self.stopped.is_none() && self.now < served_by && is_unfinished(self) {
            self.run_until(self.now.after_ms(1_000).min(served_by));
        }
        self.tell_who_was_not_served(healed_at);
        self.tell_whether_raised();
        self.end_run();
        self.outcome()
    }

    pub(super) fn end_run(&mut self) {
        if let Some(why) = self.stopped.take() {
            self.observer.checkers.found("a node stopped", self.now, why);
        } else {
            self.observer.fact(self.now, &Fact::Over);
        }
    }

    /// The result up to now.
    pub fn outcome(&self) -> Outcome {
        Outcome {
            violations: self.observer.checkers.violations().to_vec(),
            trace_hash: self.observer.trace_hash(),
            simulated_ms: self.now.ms() - super::BEGINNING.ms(),
            operations: self.observer.operations,
            entries: self.observer.entries,
            faults: self.observer.faults.clone(),
            store: self.store.tally,
            served: self.clients.iter().flat_map(|client| client.served()).map(|(_, served, _)| served.count).sum(),
            snapshots: self.snapshots_made,
            raises: self.raises,
            checked: self.observer.checkers.report().clone(),
        }
    }

    pub(super) fn tell_who_serves(&mut self) {
        let Some(leader) = self.leader() else {
            let nodes: Vec<String> = self.nodes.iter().map(|(id, node)| node.tell(*id)).collect();
            let what = format!("no node leads though everything is healed: {}", nodes.join("; "));
            self.observer.checkers.found("I19", self.now, what);
            return;
        };
        let members = self.nodes[&leader].replica.as_ref().expect("it leads").members();
        for view in members {
            let lives = self.nodes.get(&view.node).is_some_and(|node| node.runs());
            self.observer.fact(self.now, &Fact::Shown { node: view.node, lives, hears: view.hears });
            // A damaged node stays down until it is replaced.
            let Some(node) = self.nodes.get(&view.node).filter(|node| !node.damaged) else { continue };
            let ready = node.replica.as_ref().is_some_and(|replica| replica.serves() || replica.leader().is_some());
            self.observer.fact(self.now, &Fact::Serves { node: view.node, ready });
        }
    }

    fn is_a_worker_unserved(&self, since: WorldTime) -> bool {
        self.clients.iter().flat_map(|client| client.served()).any(|(_, served, _)| served.at <= since)
    }

    fn tell_who_was_not_served(&mut self, since: WorldTime) {
        for client in &self.clients {
            for (user, _, doing) in client.served().filter(|(_, served, _)| served.at <= since) {
                let what = format!("user {user} of client {} was not served: {doing:?}", client.id);
                self.observer.checkers.found("I19", self.now, what);
            }
        }
    }
}
