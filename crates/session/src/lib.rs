//! The session protocol without I/O, both ends: what a client decides ([`client`]), and what a node decides at its door ([`edge`]).
//!
//! There is no socket here, no clock, no randomness and no `async`. What happens goes in by `handle_*`, what is to be sent comes out
//! by `poll_*`. The client library, the server and the simulation drive the same machines. The two ends share words, bounds and
//! errors, and never call each other.

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
