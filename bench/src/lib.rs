//! Fencepost beside the systems that people use instead: the same workloads against each, on the same machine, in turns.
//!
//! A [`system`] is something that gives locks, running, with its own client; a workload asks for locks and notes how long it
//! took. Nothing here knows how any of them works inside, but for what Fencepost counts of itself.

pub mod system;
pub mod systems;
