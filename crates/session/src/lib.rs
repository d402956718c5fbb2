//! The session protocol without I/O: what a client decides ([`client`]).
//!
//! There is no socket here, no clock, no randomness and no `async`. What happens goes in by `handle_*`, what is to be sent comes out
//! by `poll_*`. The client library and the simulation drive the same machines.

pub mod anchor;
pub mod bounds;
pub mod client;

mod planted;
#[cfg(test)]
mod seeds;

#[cfg(feature = "planted-bugs")]
pub use planted::{Bug, plant};
