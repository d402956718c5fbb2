//! The benchmarks. [`compare`] (`fencepost-bench compare`) runs the same workloads on Fencepost and on other lock systems, on the same
//! machine, in turns. [`growth`] (`fencepost-bench growth`) measures how the costs of Fencepost grow.
//!
//! A [`system`] is a running lock system, which is used through its own client. A workload takes locks and records the latencies.
//! No workload knows how a system works inside; only Fencepost reports its own counters. The loops of the load are in
//! `fencepost-load`.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the list of modules, and this table |
//! | `main.rs` | the command line of `fencepost-bench`: its options and help texts |
//! | `compare.rs` | the run of `compare`: starts the systems, gives each its blocks in turn, records the figures |
//! | `catalogue.rs` | all systems that can be compared: their ids, workloads and limits |
//! | `workload.rs` | the workloads: their names, explanations and sizes |
//! | `work.rs` | what the contenders of one system do in one block: closed loop, open loop, hot lock, shared lock |
//! | `system.rs` | what a workload needs of a lock system (traits) |
//! | `systems/mod.rs` | the list of the systems |
//! | `systems/fencepost.rs` | Fencepost: a cluster of real `fencepost serve` processes, and contenders with its library |
//! | `systems/etcd.rs` | etcd with its lock service |
//! | `systems/zookeeper.rs` | ZooKeeper with the lock recipe of Curator |
//! | `systems/redis.rs` | one Redis with `SET NX PX`, in memory or synced |
//! | `systems/redlock.rs` | Redlock over five Redis servers |
//! | `systems/postgres.rs` | Postgres with advisory locks |
//! | `systems/servers.rs` | starts the servers of other projects |
//! | `alone/mod.rs` | the workloads for Fencepost alone, and how they take many locks |
//! | `alone/failover.rs` | W6: the leader is killed, or transfers leadership |
//! | `alone/restart.rs` | W8: a node restarts with many locks |
//! | `alone/dying.rs` | W5: many sessions die at once |
//! | `alone/idle.rs` | W4: many idle sessions that hold locks |
//! | `alone/elsewhere.rs` | clients on a thread of their own that can fall silent all at once |
//! | `growth/mod.rs` | the run of `growth`: its curves, sizes and results |
//! | `growth/handover.rs` | the hand-over of a lock, over its contenders |
//! | `growth/locks.rs` | a pair of acquire and release, over the locks that are held |
//! | `growth/memory.rs` | the memory of a node, over locks, waiters and sessions |
//! | `growth/restart.rs` | the restart of a node, over the locks to restore |
//! | `growth/failover.rs` | the time without a grant, over many kills of the leader |
//! | `growth/storms.rs` | sessions that open, close and expire at once |
//! | `growth/report.rs` | the report of `growth`: explanations, tables and plots |
//! | `figures.rs` | recorded blocks, and their medians, ranges and ratios |
//! | `goals.rs` | the goals of `compare`, and whether they are met |
//! | `report.rs` | the report of `compare`, and the formats of numbers and dates |
//! | `plot.rs` | plots as SVG |
//! | `probe.rs` | probes of the machine's speed: sync, round trip, commit of three nodes |
//! | `usage.rs` | processor time and memory of processes, from `/proc` |
//! | `metrics.rs` | reads the metrics of a node |

pub mod catalogue;
pub mod compare;
pub mod figures;
pub mod growth;
pub mod metrics;
pub mod probe;
pub mod system;
pub mod systems;
pub mod usage;
pub mod work;
pub mod workload;

mod alone;
mod goals;
mod plot;
mod report;
