//! The integration tests of this crate, in one program: each program costs a link and a start.

mod conformance;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "full")]
mod guides;
#[cfg(feature = "redis")]
mod habits;
#[cfg(feature = "postgres")]
mod known_failures_postgres;
mod page;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "zookeeper")]
mod zookeeper;
