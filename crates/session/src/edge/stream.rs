//! One stream: its client's principal, the sessions that are bound to it, and its send buffer.
//!
//! It only keeps state. `mod.rs` decides what happens to it.

use fencepost_core::{Principal, SessionId};

use super::Set;
use super::opening::Opening;
use super::outbox::Outbox;
use crate::tier::Tier;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tier: Tier,
    pub(super) principal: Principal,
    /// Invariant: exactly the sessions that are bound to this stream.
    pub(super) sessions: Set<SessionId>,
    pub(super) opening: Opening,
    pub(super) outbox: Outbox,
    /// The stream is listed in `Edge::ready`.
    pub(super) is_ready: bool,
}

impl Stream {
    pub(super) fn new(tier: Tier, principal: Principal, hash_seed: u64) -> Stream {
        let (sessions, opening) = (super::set(hash_seed), Opening::new(hash_seed));
        Stream { tier, principal, sessions, opening, outbox: Outbox::default(), is_ready: false }
    }
}
