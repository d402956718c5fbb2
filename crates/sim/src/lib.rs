//! Simulates a whole cluster with its clients from one seed: the real replica, edge and client machines on a simulated network, disk and
//! clock. Checkers verify the promises of the cluster while it runs.
//!
//! The seed decides everything. There are no sockets, no threads and no real time, so a run that fails fails again. Everything that
//! happens is reported as a [`fact::Fact`]. The checkers in [`check`] see every fact, and do not trust what nodes and clients say of
//! themselves.

pub mod check;
pub mod fact;
pub mod observer;
pub mod random;
pub mod run;
pub mod scenario;
pub mod world;

mod agenda;
mod clock;
mod disk;
mod holder;
mod hostile;
mod network;
mod node;
mod port;
mod process;
mod redlock;
mod scripted;
mod store;
mod telling;
mod user;
mod watcher;
mod worker;

pub use store::StoreTally;
