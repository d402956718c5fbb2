//! The workloads by name, and how large they are.

use std::str::FromStr;

/// What is asked of the systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// W1: free locks, many names.
    Uncontended,
    /// W2: one lock that all want.
    HotLock,
    /// W3: readers and a few writers of one name.
    Shared,
    /// W4: many sessions that hold locks and do nothing.
    Idle,
    /// W5: many sessions die at once.
    Dying,
    /// W6: the leader is killed, or hands over.
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
    /// In the order in which they are run.
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

    /// As it is typed, and as it stands in `results.jsonl`.
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

    /// For headings.
    pub fn title(self) -> &'static str {
        match self {
            Workload::Uncontended => "W1: free locks, many names",
            Workload::HotLock => "W2: one hot lock",
            Workload::Shared => "W3: readers and writers of one name, 95 to 5",
            Workload::Idle => "W4: idle sessions that hold locks",
            Workload::Dying => "W5: sessions that die at once",
            Workload::Failover => "W6: the leader is killed, or hands over",
            Workload::Restart => "W8: starting again with many locks",
            Workload::Efficiency => "The efficiency tier: free locks, many names",
            Workload::OpenLoop => "W1 as an open loop",
            Workload::Programs => "W1 by programs with one thread and with several, with one connection and with four",
            Workload::EfficiencyPrograms => {
                "The efficiency tier by programs with one thread and with several, with one connection and with four"
            }
        }
    }

    /// What is done in it, for the report.
    pub fn story(self) -> &'static str {
        match self {
            Workload::Uncontended => {
                "Each of C contenders takes and gives back one lock after the other, each on names of its own. A pair is an acquire and a \
                 release. CPU is the processor time of all processes for one pair: of the servers, and with the load."
            }
            Workload::HotLock => {
                "N contenders want the same lock, and ask again as soon as they have given it back. A hand-over counts from the call that gives \
                 the lock back to the moment when the next one has it. Systems that are slow here, or whose waiters ask again and again, are \
                 measured with fewer waiters."
            }
            Workload::Shared => {
                "64 contenders on one name, 95% of the time as readers, 5% as writers. Before that, all of them take it as readers at the same \
                 time, and none gives it back before all have it: if a reader waited for a reader, this would not end."
            }
            Workload::Idle => {
                "Sessions on many connections hold five locks each, and do nothing but say that they live. Memory is what the leader's process \
                 grew by, log included."
            }
            Workload::Dying => {
                "Sessions that hold a lock each, for which another one waits, fall silent at once. Counted from the last of their deadlines to \
                 the moment when the last lock is with its next holder, as the library tells its user."
            }
            Workload::Failover => {
                "Three nodes. The leader is killed with -9, and from then on a client asks for a lock: how long until it has it. Then the lead is \
                 handed over on purpose, while a client takes and gives back locks: the longest time between two grants."
            }
            Workload::Restart => {
                "One node that holds many locks is killed with -9 and started again: from the start of the process until a new client has a lock."
            }
            Workload::Programs => {
                "As W1. The load runs on a runtime with one thread, as in the other workloads, and on one with a thread for each core, as \
                 `#[tokio::main]` makes it; its contenders share one connection, or four. Systems that need a connection for each contender \
                 have it in both cases. All shapes have their blocks in turn."
            }
            Workload::EfficiencyPrograms => {
                "As above, in the efficiency tier, beside a single Redis that writes nothing to disk."
            }
            Workload::Efficiency => "As W1, beside a single Redis that writes nothing to disk.",
            Workload::OpenLoop => {
                "Locks are asked for at instants that were fixed beforehand, at random, at 50, 70 and 90% of what the system did in a closed loop \
                 just before. The time of an acquire counts from the instant when it was due, whether or not anybody was free to ask."
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

/// How the program is built that makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Whether its runtime has a thread for each core, as `#[tokio::main]` makes it, and not one alone.
    pub is_threaded: bool,
    /// How many connections its contenders share.
    pub connections: usize,
}

impl Shape {
    /// How most workloads are run.
    pub const PLAIN: Shape = Shape { is_threaded: false, connections: 1 };
    /// Those that are compared.
    pub const ALL: [Shape; 4] = [
        Shape::PLAIN,
        Shape { is_threaded: true, connections: 1 },
        Shape { is_threaded: false, connections: 4 },
        Shape { is_threaded: true, connections: 4 },
    ];

    /// For tables.
    pub fn label(self) -> String {
        let threads = if self.is_threaded { "multi-threaded" } else { "one thread" };
        let connections = if self.connections == 1 { "one connection" } else { "four connections" };
        format!("{threads}, {connections}")
    }
}

/// How large the workloads are.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// W1: how many contenders.
    pub contenders: Vec<usize>,
    /// The efficiency tier: how many contenders.
    pub efficiency: Vec<usize>,
    /// Programs of several shapes, in both tiers: how many contenders.
    pub programs: Vec<usize>,
    /// The open loop: how many contenders are there to ask.
    pub open: usize,
    /// W2: how many contenders.
    pub waiters: Vec<usize>,
    /// W3: how many contenders.
    pub readers: usize,
    /// W4: sessions, on so many connections.
    pub idle_sessions: usize,
    /// W4.
    pub idle_connections: usize,
    /// W4: how long they are watched, in seconds.
    pub idle_seconds: u64,
    /// W5: sessions.
    pub dying: usize,
    /// W6: how often the leader is killed, and hands over.
    pub kills: usize,
    /// W8: locks.
    pub restart_locks: usize,
}

impl Sizes {
    /// Those of the goals.
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

    /// To see in a minute whether everything works. Its figures say little.
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
    fn a_workload_is_read_as_it_is_written_or_all_of_them_are_said() {
        for workload in Workload::ALL {
            assert_eq!(workload.id().parse(), Ok(workload));
        }
        assert_eq!("W2".parse(), Ok(Workload::HotLock));
        let refused = "w7".parse::<Workload>().expect_err("there is none");
        assert!(refused.contains("w1, programs, open, w2"), "{refused}");
    }
}
