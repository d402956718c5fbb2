//! The benchmarks. [`compare`] (`fencepost-bench compare`) runs the same workloads on Fencepost and on other lock systems, on the same
//! machine, in turns. [`growth`] (`fencepost-bench growth`) measures how the costs of Fencepost grow.
//!
//! A [`system`] is a running lock system, which is used through its own client. A workload takes locks and records the latencies.
//! No workload knows how a system works inside; only Fencepost reports its own counters. The loops of the load are in
//! `fencepost-load`.

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
