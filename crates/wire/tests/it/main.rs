//! The integration tests of this crate, in one program: each program costs a link and a start.

mod damage;
mod forge;
mod generator;
mod golden;
mod round_trip;
mod service;
