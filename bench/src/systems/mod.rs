//! One file a system.
