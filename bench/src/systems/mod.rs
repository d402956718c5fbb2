//! The systems that can be compared, one file for each. `catalogue.rs` lists them; `servers.rs` starts the servers of other projects.

pub mod etcd;
pub mod fencepost;
pub mod postgres;
pub mod redis;
pub mod redlock;
mod servers;
pub mod zookeeper;
