//! The integration tests of this crate, in one program: each program costs a link and a start.

mod cluster;
mod disk;
mod engine;
mod faults;
mod golden;
mod group;
mod hearing;
mod members;
mod node;
mod planted;
mod private;
mod reserve;
mod room;
mod snapshots;
mod store;
mod time;
mod turns;
mod upgrades;
