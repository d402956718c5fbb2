//! The session protocol without I/O: the client's side ([`client`]) and the node's side ([`edge`]).
//!
//! This crate has no socket, no clock, no randomness and no `async`. A driver passes input to `handle_*` and takes output from `poll_*`.
//! The client library, the server and the simulation drive the same machines. The two sides share types, bounds and errors, and never
//! call each other.

pub mod anchor;
pub mod bounds;
pub mod client;
pub mod edge;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod end;

mod planted;
#[cfg(test)]
mod seeds;
mod tier;

#[cfg(feature = "planted-bugs")]
pub use planted::{Bug, plant};

pub use end::{End, NotTaken, Reason};
pub use tier::Tier;
