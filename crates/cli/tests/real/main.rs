//! Real binaries, real sockets, real faults (L6): `fencepost serve` processes on loopback that are killed, paused, cut off, or run out of
//! disk. A separate program from `it`, because its runs load both cores for minutes.

mod background;
mod checker;
mod clients;
mod cluster;
mod efficiency;
mod faults;
mod history;
mod jobs;
mod paused_holders;
mod proxy;
mod run;
mod silent;
mod store;
mod watcher;

#[path = "../it/harness/patience.rs"]
mod patience;
