//! What must hold for bytes that a stranger sent or a disk returned: one module for each fuzz target, each with one function `check`
//! that panics if it does not hold.
//!
//! The checks are here and not in `fuzz_targets/`, so that a test on the stable compiler runs them over the seeds, and an input that
//! was found can be debugged without the fuzzing engine.

pub mod client_messages;
pub mod fence_header;
pub mod frames;
pub mod log_entries;
pub mod snapshots;

/// The snapshot format written a second time. The tests of `wire` own it.
#[path = "../../crates/wire/tests/it/forge/mod.rs"]
mod forge;
