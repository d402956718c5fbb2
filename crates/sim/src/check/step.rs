//! One event of an entry as the checkers see it: with the ledger just before it, and the operation that caused it.

use fencepost_core::{Arrival, Event, Held, Operation, Outcome, Reply};

use crate::fact::LoggedEntry;

use super::follow::is_stronger;
use super::ledger::{Ledger, Whose};
use super::place::{Stance, Stands, needs_of};

/// One event, before the ledger follows it.
pub(super) struct Step<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) entry: &'a LoggedEntry,
    pub(super) event: &'a Event,
    /// The index of the operation that caused it, if any.
    pub(super) cause: Option<usize>,
    /// The waiter whose wait it ends, if any.
    pub(super) waiter: Option<Arrival>,
}

/// A request that is granted locks or a stronger mode, and its queues just before the grant.
pub(super) struct GrantedRequest<'a> {
    pub(super) whose: Whose<'a>,
    pub(super) stands: Stands,
    /// `None` if it did not wait: then it is the newest of all.
    pub(super) arrival: Option<Arrival>,
}

impl<'a> Step<'a> {
    pub(super) fn new(ledger: &'a Ledger, entry: &'a LoggedEntry, event: &'a Event, cause: Option<usize>) -> Step<'a> {
        let waiter = match event {
            Event::Granted { request, .. } | Event::NotGranted { request, .. } => {
                ledger.waiting(request.session, request.number)
            }
            Event::Converted { grant, .. } if cause.is_none() => {
                ledger.grants.get(grant).and_then(|grant| grant.converting)
            }
            _ => None,
        };
        Step { ledger, entry, event, cause, waiter }
    }

    pub(super) fn operation(&self) -> Option<&'a Operation> {
        self.cause.map(|at| &self.entry.batch.operations[at])
    }

    pub(super) fn reply(&self) -> Option<&'a Reply> {
        self.cause.and_then(|at| self.entry.effects.replies.get(self.entry.batch.renewals.len() + at))
    }

    /// Whether the service's deadlock search gave up on the request that is queued here.
    pub(super) fn is_unchecked(&self) -> bool {
        matches!(self.reply().map(|reply| &reply.outcome), Some(Outcome::Queued { unchecked: true, .. }))
    }

    /// The request that is granted locks or a stronger mode here. `None` for a re-entry, a weakening and everything else. Permits give a
    /// request without queues.
    pub(super) fn granted_request(&self) -> Option<GrantedRequest<'a>> {
        let waiter = self.waiter.and_then(|arrival| self.ledger.waiters.get(&arrival));
        let waiting = waiter.map(|waiter| waiter.stands.clone());
        match self.event {
            Event::Granted { request, grant, .. } if !self.ledger.grants.contains_key(grant) => Some(GrantedRequest {
                whose: Whose::request(request),
                stands: waiting.unwrap_or_else(|| self.ledger.stands_of(request)),
                arrival: self.waiter,
            }),
            Event::Converted { grant, held: held @ Held::Locks(locks), .. } => {
                let grant = self.ledger.grants.get(grant).filter(|grant| is_stronger(&grant.held, held))?;
                let whose = Whose::grant(grant);
                let stance =
                    |(name, need)| Stance::of(need, self.ledger.own_modes(whose, &name)).map(|stance| (name, stance));
                let stands = waiting.unwrap_or_else(|| needs_of(locks).into_iter().filter_map(stance).collect());
                Some(GrantedRequest { whose, stands, arrival: self.waiter })
            }
            _ => None,
        }
    }
}
