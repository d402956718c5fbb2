//! One file a system.

pub mod fencepost;
