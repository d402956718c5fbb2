//! One stream: who talks on it, which sessions are bound to it, and what waits to go down it.

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
    /// The stream stands among those that have something new to send.
    pub(super) is_ready: bool,
}

impl Stream {
    pub(super) fn new(tier: Tier, principal: Principal, hash_seed: u64) -> Stream {
        let (sessions, opening) = (super::set(hash_seed), Opening::new(hash_seed));
        Stream { tier, principal, sessions, opening, outbox: Outbox::default(), is_ready: false }
    }
}
