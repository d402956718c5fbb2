//! The session protocol without I/O: the client's side ([`client`]) and the node's side ([`edge`]).
//!
//! This crate has no socket, no clock, no randomness and no `async`. A driver passes input to `handle_*` and takes output from `poll_*`.
//! The client library, the server and the simulation drive the same machines. The two sides share types, bounds and errors, and never
//! call each other.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the public API, and this table |
//! | `client/mod.rs` | the types of the client's side: requests, answers, grant states, events |
//! | `client/connection.rs` | one stream with its sessions: what to send and when, and where each message goes |
//! | `client/session.rs` | one session: pending requests, grants with their deadlines, keep-alives |
//! | `client/answers.rs` | what the cluster's answers and pushes do to a session |
//! | `client/seen.rs` | which answers the client has seen and acknowledged |
//! | `client/reconnect.rs` | which node to dial and when: leader hints, rounds, backoff, breaker |
//! | `client/tests/` | the client's machines against the real lock state, on a network that loses streams |
//! | `edge/mod.rs` | the node's side: takes messages, submits commands, sends each answer and push to the right stream |
//! | `edge/stream.rs` | the state of one stream |
//! | `edge/binding.rs` | which stream may act for which session, and in which epoch |
//! | `edge/opening.rs` | requests held until their open is answered |
//! | `edge/tickets.rs` | which stream waits for the reply to which ticket |
//! | `edge/outbox.rs` | the send buffer of one stream, and its bound |
//! | `edge/tests.rs` | tests of the edge alone: every bound, and consistent tables |
//! | `anchor.rs` | how long a holder may trust a deadline in logical time |
//! | `end.rs` | why a stream ends, a request is not taken, or a call is refused, with the messages |
//! | `tier.rs` | the two tiers, correctness and efficiency, and their group numbers |
//! | `bounds.rs` | every limit and timeout, with its reason |
//! | `planted.rs` | deliberate faults behind a feature, for the simulation to find |
//! | `testing.rs` | a lock state behind the edge, for tests |
//! | `seeds.rs` | random numbers for tests |

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
