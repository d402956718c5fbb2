//! Fencepost beside the systems that people use instead: the same workloads against each, on the same machine, in turns.
//!
//! A [`system`] is something that gives locks, running, with its own client; a workload asks for locks and notes how long it
//! took. Nothing here knows how any of them works inside, but for what Fencepost counts of itself.
//!
//! [`compare`] is `fencepost-bench compare`, and [`growth`] is `fencepost-bench growth`. The load itself is `fencepost-load`'s.

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
