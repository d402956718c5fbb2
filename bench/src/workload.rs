//! The workloads: their names, their explanations for the report, and their sizes. `compare.rs` and `alone/` run them.

use std::str::FromStr;

/// What the systems have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// W1: free locks, many names.
    Uncontended,
    /// W2: one lock that all contenders want.
    HotLock,
    /// W3: readers and a few writers of one name.
    Shared,
    /// W4: many sessions that hold locks and do nothing.
    Idle,
    /// W5: many sessions die at once.
    Dying,
    /// W6: the leader is killed, or transfers leadership.
    Failover,
    /// W8: a node starts again with many locks.
    Restart,
    /// W1 in the efficiency tier.
    Efficiency,
    /// W1 as an open loop.
    OpenLoop,
    /// W1 by programs of several shapes.
    Programs,
    /// The efficiency tier by programs of several shapes.
    EfficiencyPrograms,
}

impl Workload {
    /// All workloads, in the order in which they run.
    pub const ALL: [Workload; 11] = [
        Workload::Uncontended,
        Workload::Programs,
        Workload::OpenLoop,
        Workload::HotLock,
        Workload::Shared,
        Workload::Efficiency,
        Workload::EfficiencyPrograms,
        Workload::Failover,
        Workload::Restart,
        Workload::Dying,
        Workload::Idle,
    ];

    /// Its name in `--workloads` and in `results.jsonl`.
    pub fn id(self) -> &'static str {
        match self {
            Workload::Uncontended => "w1",
            Workload::HotLock => "w2",
            Workload::Shared => "w3",
            Workload::Idle => "w4",
            Workload::Dying => "w5",
            Workload::Failover => "w6",
            Workload::Restart => "w8",
            Workload::Efficiency => "efficiency",
            Workload::OpenLoop => "open",
            Workload::Programs => "programs",
            Workload::EfficiencyPrograms => "efficiency-programs",
        }
    }

    /// The heading in the report.
    pub fn title(self) -> &'static str {
        match self {
            Workload::Uncontended => "W1: free locks, many names",
            Workload::HotLock => "W2: one hot lock",
            Workload::Shared => "W3: readers and writers of one name, 95 to 5",
            Workload::Idle => "W4: idle sessions that hold locks",
            Workload::Dying => "W5: sessions that die at once",
            Workload::Failover => "W6: the leader is killed, or transfers leadership",
            Workload::Restart => "W8: restart with many locks",
            Workload::Efficiency => "The efficiency tier: free locks, many names",
            Workload::OpenLoop => "W1 as an open loop",
            Workload::Programs => "W1 by programs with one thread and with several, with one connection and with four",
            Workload::EfficiencyPrograms => {
                "The efficiency tier by programs with one thread and with several, with one connection and with four"
            }
        }
    }

    /// The explanation in the report.
    pub fn story(self) -> &'static str {
        match self {
            Workload::Uncontended => {
                "Each of C contenders takes and releases one lock after the other, on names of its own. A pair is an acquire and a release. \
                 CPU is the processor time for one pair: of the servers alone, and of the servers and the load together."
            }
            Workload::HotLock => {
                "N contenders want the same lock. Each asks for it again as soon as it has given it back. A hand-over counts from the call of \
                 release until the next holder has the lock. Systems that are slow here, or whose waiters poll, are measured with fewer \
                 contenders."
            }
            Workload::Shared => {
                "64 contenders use one name. 95% of their requests are for reading, 5% for writing. Before that, all of them take it as readers \
                 at the same time, and none releases it before all have it: if a reader waited for a reader, this would not end."
            }
            Workload::Idle => {
                "Sessions on many connections hold five locks each, and send only keep-alives. Memory is the growth of the leader's process, \
                 log included."
            }
            Workload::Dying => {
                "Sessions hold one lock each, and another client waits for each lock. All these sessions fall silent at once. Times count from \
                 their deadlines until the library tells the next holder that it has the lock."
            }
            Workload::Failover => {
                "Three nodes. The leader is killed with -9, and a client asks for a lock: the time from the kill to the grant. Then leadership is \
                 transferred as planned, while a client takes and releases a lock in a loop: the longest time between two grants."
            }
            Workload::Restart => {
                "One node with many locks is killed with -9 and started again. The time counts from the start of the process until a new client \
                 has a lock."
            }
            Workload::Programs => {
                "As W1, by programs of four shapes. The runtime of the load has one thread, as in the other workloads, or a thread for each core, \
                 as `#[tokio::main]` makes it. Its contenders share one connection, or four. Systems that need a connection for each contender \
                 have it in all shapes. The blocks of all shapes take turns."
            }
            Workload::EfficiencyPrograms => {
                "As above, in the efficiency tier, beside a single Redis that writes nothing to disk."
            }
            Workload::Efficiency => "As W1, beside a single Redis that writes nothing to disk.",
            Workload::OpenLoop => {
                "Locks are asked for at random instants that are fixed in advance, at 50, 70 and 90% of the rate that the system reached in a \
                 closed loop just before. The time of an acquire counts from the instant when it was due, even if no contender was free to ask."
            }
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        let found = Workload::ALL.into_iter().find(|workload| workload.id() == text.to_ascii_lowercase());
        found.ok_or_else(|| {
            let ids: Vec<&str> = Workload::ALL.iter().map(|workload| workload.id()).collect();
            format!("there is no workload {text:?}: write one of {}", ids.join(", "))
        })
    }
}

/// The shape of the program that makes the load: its threads and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Whether its runtime has a thread for each core, as `#[tokio::main]` makes it. Otherwise it has one thread.
    pub is_threaded: bool,
    /// How many connections its contenders share.
    pub connections: usize,
}

impl Shape {
    /// The shape for most workloads.
    pub const PLAIN: Shape = Shape { is_threaded: false, connections: 1 };
    /// The shapes that are compared.
    pub const ALL: [Shape; 4] = [
        Shape::PLAIN,
        Shape { is_threaded: true, connections: 1 },
        Shape { is_threaded: false, connections: 4 },
        Shape { is_threaded: true, connections: 4 },
    ];

    /// The name of the shape in the report.
    pub fn label(self) -> String {
        let threads = if self.is_threaded { "multi-threaded" } else { "one thread" };
        let connections = if self.connections == 1 { "one connection" } else { "four connections" };
        format!("{threads}, {connections}")
    }
}

/// How large the workloads are.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// W1: numbers of contenders.
    pub contenders: Vec<usize>,
    /// The efficiency tier: numbers of contenders.
    pub efficiency: Vec<usize>,
    /// Programs of several shapes, in both tiers: numbers of contenders.
    pub programs: Vec<usize>,
    /// The open loop: number of contenders.
    pub open: usize,
    /// W2: numbers of contenders.
    pub waiters: Vec<usize>,
    /// W3: number of contenders.
    pub readers: usize,
    /// W4: number of sessions.
    pub idle_sessions: usize,
    /// W4: number of connections.
    pub idle_connections: usize,
    /// W4: how long the cluster is watched, in seconds.
    pub idle_seconds: u64,
    /// W5: number of sessions.
    pub dying: usize,
    /// W6: how often the leader is killed, and how often it transfers leadership.
    pub kills: usize,
    /// W8: number of locks.
    pub restart_locks: usize,
}

impl Sizes {
    /// The sizes of the goals.
    pub fn full() -> Sizes {
        Sizes {
            contenders: vec![1, 16, 64, 256, 1_000],
            efficiency: vec![1, 16, 64, 256],
            programs: vec![16, 64, 256],
            open: 256,
            waiters: vec![2, 8, 64, 1_000, 10_000],
            readers: 64,
            idle_sessions: 100_000,
            idle_connections: 1_000,
            idle_seconds: 60,
            dying: 10_000,
            kills: 5,
            restart_locks: 1_000_000,
        }
    }

    /// Small sizes, which show quickly whether everything works. Their figures say little.
    pub fn quick() -> Sizes {
        Sizes {
            contenders: vec![1, 64],
            efficiency: vec![1, 64],
            programs: vec![16],
            open: 64,
            waiters: vec![2, 64],
            readers: 16,
            idle_sessions: 1_000,
            idle_connections: 10,
            idle_seconds: 10,
            dying: 200,
            kills: 1,
            restart_locks: 20_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_found_by_its_id_and_an_unknown_id_lists_all_ids() {
        for workload in Workload::ALL {
            assert_eq!(workload.id().parse(), Ok(workload));
        }
        assert_eq!("W2".parse(), Ok(Workload::HotLock));
        let refused = "w7".parse::<Workload>().expect_err("there is no w7");
        assert!(refused.contains("w1, programs, open, w2"), "{refused}");
    }
}
