//! Which stream waits for which ticket.

use fencepost_core::{RequestNumber, SessionId, Ticket};

use super::{StreamId, Table};
use crate::tier::Tier;

/// What a stream has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Open,
    Attach,
    KeepAlive,
    Request(RequestNumber),
}

impl Kind {
    /// The request's number. An open, an attach and a keep-alive have none.
    pub(super) fn number(self) -> Option<RequestNumber> {
        match self {
            Kind::Request(number) => Some(number),
            Kind::Open | Kind::Attach | Kind::KeepAlive => None,
        }
    }
}

/// What a ticket stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) stream: StreamId,
    pub(super) session: SessionId,
    pub(super) kind: Kind,
}

/// The tickets of both tiers that belong to streams. Each tier counts its tickets by itself.
#[derive(Debug)]
pub(super) struct Tickets(Table<(Tier, Ticket), Asked>);

impl Tickets {
    pub(super) fn new(hash_seed: u64) -> Tickets {
        Tickets(super::table(hash_seed))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn insert(&mut self, tier: Tier, ticket: Ticket, asked: Asked) {
        self.0.insert((tier, ticket), asked);
    }

    pub(super) fn take(&mut self, tier: Tier, ticket: Ticket) -> Option<Asked> {
        self.0.remove(&(tier, ticket))
    }

    /// Forgets the tickets of the efficiency tier: its lock state is gone with the term.
    pub(super) fn forget_efficiency(&mut self) {
        self.0.retain(|(tier, _), _| *tier != Tier::Efficiency);
    }
}
