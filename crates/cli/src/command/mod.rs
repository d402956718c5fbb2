//! The commands, one file each: the arguments, and what the command does.

pub(crate) mod administer;
pub(crate) mod backends;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod describe;
pub(crate) mod dev;
pub(crate) mod exec;
pub(crate) mod fence;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod locks;
pub(crate) mod members;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod top;
pub(crate) mod transfer;
pub(crate) mod watch;
pub(crate) mod why;
