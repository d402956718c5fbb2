//! A lock state behind the edge's port, without log, disk or consensus.
//!
//! It is for tests, here and in other crates, that need real answers to what clients send. It never refuses a command unless a test
//! sets `is_overloaded`.

use fencepost_core::{Batch, Event, LockState, LogPosition, LogicalMs, Operation, ReplyTo, Ticket};

use crate::edge::{Command, Edge, Submit};
use crate::end::NotTaken;
use crate::tier::Tier;

/// A lock state that gathers the commands of the edge. [`LoneState::apply`] applies them.
pub struct LoneState {
    /// The state.
    pub state: LockState,
    /// Set by a test: every command is refused with [`NotTaken::Overloaded`].
    pub is_overloaded: bool,
    index: u64,
    last_ticket: u64,
    gathered: Batch,
    renewals: Vec<(Tier, Ticket)>,
    operations: Vec<(Tier, Ticket)>,
}

impl Default for LoneState {
    fn default() -> LoneState {
        LoneState {
            state: LockState::new(0),
            is_overloaded: false,
            index: 0,
            last_ticket: 0,
            gathered: Batch::default(),
            renewals: Vec::new(),
            operations: Vec::new(),
        }
    }
}

impl Submit for LoneState {
    fn submit(&mut self, tier: Tier, command: Command) -> Result<Ticket, NotTaken> {
        if self.is_overloaded {
            return Err(NotTaken::Overloaded);
        }
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        match command {
            Command::Operation(operation) => {
                self.gathered.operations.push(operation);
                self.operations.push((tier, ticket));
            }
            Command::Renewal(renewal) => {
                self.gathered.renewals.push(renewal);
                self.renewals.push((tier, ticket));
            }
        }
        Ok(ticket)
    }
}

impl LoneState {
    /// The index of the last entry.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Gathers an operation that no stream asked for.
    pub fn operate(&mut self, operation: Operation) {
        self.submit(Tier::Correctness, Command::Operation(operation)).expect("the test has not set `is_overloaded`");
    }

    /// Applies the gathered commands as one entry, which may be empty: time passes even so. Then applies the commands that the edge
    /// submits in response, entry by entry. Returns the events of each entry.
    pub fn apply(&mut self, stamp: LogicalMs, edge: &mut Edge) -> Vec<(u64, Vec<Event>)> {
        let mut events = Vec::new();
        while events.is_empty() || !self.renewals.is_empty() || !self.operations.is_empty() {
            let (batch, renewals, operations) = (
                std::mem::take(&mut self.gathered),
                std::mem::take(&mut self.renewals),
                std::mem::take(&mut self.operations),
            );
            let stamp = stamp.max(self.state.stamp());
            let effects = self.state.apply(stamp, batch);
            self.index += 1;
            let at = (LogPosition { index: self.index, term: 1 }, stamp);
            for reply in effects.replies {
                let of = match reply.to {
                    ReplyTo::Renewal(place) => renewals[place],
                    ReplyTo::Operation(place) => operations[place],
                };
                edge.handle_reply(of, at, reply, self);
            }
            for push in &effects.pushes {
                edge.handle_push(Tier::Correctness, at, push);
            }
            events.push((self.index, effects.events));
        }
        events
    }
}
