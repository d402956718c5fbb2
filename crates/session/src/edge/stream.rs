//! One stream: who talks on it, which sessions it may act for, and what waits to go down it.

use fencepost_core::{Principal, SessionId};

use super::Set;
use super::opening::Opening;
use super::outbox::Outbox;
use crate::tier::Tier;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tier: Tier,
    pub(super) principal: Principal,
    /// Sessions that were opened or attached here. The stream acts for these only: an id alone is no credential.
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
