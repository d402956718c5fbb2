//! Real binaries, real sockets, real faults (L6): `fencepost serve` processes on the loopback that are killed, stopped, cut off and filled
//! up. A program of its own, beside `it`, because its runs load both cores for minutes.

mod background;
mod checker;
mod clients;
mod cluster;
mod efficiency;
mod faults;
mod history;
mod paused_holders;
mod proxy;
mod run;
mod silent;
mod store;
mod watcher;

#[path = "../it/harness/patience.rs"]
mod patience;
