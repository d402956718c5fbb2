//! A whole cluster and its clients from one seed: the real replica and the real machines of the client library, on a simulated
//! network, disk and clock, with everything that they promise checked while they run.
//!
//! One seed decides everything. There are no sockets here, no threads and no real time, so a run that fails fails again. What
//! happens is told as [`fact::Fact`]s; the checkers in [`check`] see every one of them and believe nobody.

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
