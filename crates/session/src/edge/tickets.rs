//! Which stream waits for the reply to which ticket.
//!
//! A ticket that is not in this table belongs to the driver: a read, an administrative act or a change of the members.

use fencepost_core::{RequestNumber, SessionId, Ticket};

use super::{StreamId, Table};
use crate::tier::Tier;

/// The kind of a stream's command.
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

/// The command of a stream that a ticket stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamCommand {
    pub(super) stream: StreamId,
    pub(super) session: SessionId,
    pub(super) kind: Kind,
}

/// The tickets of both tiers that belong to streams. Each tier numbers its own tickets.
#[derive(Debug)]
pub(super) struct Tickets(Table<(Tier, Ticket), StreamCommand>);

impl Tickets {
    pub(super) fn new(hash_seed: u64) -> Tickets {
        Tickets(super::table(hash_seed))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn insert(&mut self, tier: Tier, ticket: Ticket, command: StreamCommand) {
        self.0.insert((tier, ticket), command);
    }

    pub(super) fn take(&mut self, tier: Tier, ticket: Ticket) -> Option<StreamCommand> {
        self.0.remove(&(tier, ticket))
    }

    /// Forgets the tickets of the efficiency tier. Its lock state ended with the term.
    pub(super) fn forget_efficiency(&mut self) {
        self.0.retain(|(tier, _), _| *tier != Tier::Efficiency);
    }
}
