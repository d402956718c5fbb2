//! One file a command: what it can be told, and what it does.

pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod dev;
pub(crate) mod serve;
