//! One file a system.

pub mod etcd;
pub mod fencepost;
pub mod postgres;
pub mod redis;
pub mod redlock;
mod servers;
pub mod zookeeper;
