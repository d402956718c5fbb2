//! The commands that have arrived and wait for the next entry.
//!
//! While an entry is in flight, later operations wait for the next one. So batches form by themselves, and operations need no
//! timer. When enough operations wait, the next entry goes out before the previous one is applied: disk and network work on one
//! while this node computes the other. Keep-alives are not urgent: they go out with any entry, or at the next beat. This file
//! decides what an entry holds. The replica decides when one may go out.

use std::collections::VecDeque;

use fencepost_core::{Action, Batch, Nanos, Operation, Renewal, Seen, Terms, Ticket};

use crate::bounds::{BEAT_MS, ENTRY_COMMANDS_MAX, ENTRY_WEIGHT_MAX, WAITING_OPERATIONS_MAX, WAITING_WANTS_MAX};

/// The tickets of an entry's renewals and operations, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tickets {
    pub(crate) renewals: Vec<Ticket>,
    pub(crate) operations: Vec<Ticket>,
}

/// Everything that waits for the next entry.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    renewals: VecDeque<(Ticket, Renewal)>,
    operations: VecDeque<(Ticket, Operation)>,
    /// An attach waits. A client waits for its answer, so it does not wait for the beat.
    urgent: bool,
    last_beat: Option<Nanos>,
}

impl Gather {
    pub(crate) fn renewal(&mut self, ticket: Ticket, renewal: Renewal) {
        self.urgent |= matches!(renewal, Renewal::Attach { .. });
        self.renewals.push_back((ticket, renewal));
    }

    pub(crate) fn has_room(&self, wants_more: bool) -> bool {
        self.operations.len() < if wants_more { WAITING_WANTS_MAX } else { WAITING_OPERATIONS_MAX }
    }

    pub(crate) fn operation(&mut self, ticket: Ticket, operation: Operation) {
        self.operations.push_back((ticket, operation));
    }

    /// The content of the next entry, if there is a reason to write one. With `time_is_due`, passing time alone is a reason.
    /// Without `room_for_operations`, operations stay in the queue.
    pub(crate) fn take(
        &mut self,
        now: Nanos,
        time_is_due: bool,
        room_for_operations: bool,
    ) -> Option<(Batch, Tickets)> {
        if !self.is_urgent(room_for_operations) {
            if now < self.next_beat() || (self.renewals.is_empty() && !time_is_due) {
                return None;
            }
            self.last_beat = Some(now);
        }
        let mut room = Room { commands: ENTRY_COMMANDS_MAX, weight: ENTRY_WEIGHT_MAX };
        let (renewal_tickets, renewals) = room.fill(&mut self.renewals, renewal_weight);
        let (operation_tickets, operations) = match room_for_operations {
            true => room.fill(&mut self.operations, operation_weight),
            false => (Vec::new(), Vec::new()),
        };
        self.urgent &= !self.renewals.is_empty();
        let batch = Batch { renewals, operations, ..Batch::default() };
        Some((batch, Tickets { renewals: renewal_tickets, operations: operation_tickets }))
    }

    /// Whether a command waits that must not wait for the beat.
    pub(crate) fn is_urgent(&self, room_for_operations: bool) -> bool {
        self.urgent || (room_for_operations && !self.operations.is_empty())
    }

    /// How many operations wait.
    pub(crate) fn operations(&self) -> usize {
        self.operations.len()
    }

    /// Whether renewals wait.
    pub(crate) fn has_renewals(&self) -> bool {
        !self.renewals.is_empty()
    }

    /// When keep-alives and passing time may cause the next entry.
    pub(crate) fn next_beat(&self) -> Nanos {
        self.last_beat.map_or(Nanos(0), |last| last.after_ms(BEAT_MS))
    }

    /// Empties the queues of a node that no longer leads, and returns the tickets.
    pub(crate) fn abandon(&mut self) -> Vec<Ticket> {
        self.urgent = false;
        let renewals = self.renewals.drain(..).map(|(ticket, _)| ticket);
        renewals.chain(self.operations.drain(..).map(|(ticket, _)| ticket)).collect()
    }
}

/// The room left in an entry.
struct Room {
    commands: usize,
    weight: usize,
}

impl Room {
    /// Takes commands from the front while they fit. The rest waits for the next entry.
    fn fill<Command>(
        &mut self,
        waiting: &mut VecDeque<(Ticket, Command)>,
        weight: fn(&Command) -> usize,
    ) -> (Vec<Ticket>, Vec<Command>) {
        let mut taken = (Vec::new(), Vec::new());
        while self.commands > 0
            && let Some((ticket, command)) = waiting.pop_front_if(|(_, command)| weight(command) <= self.weight)
        {
            self.commands -= 1;
            self.weight -= weight(&command);
            taken.0.push(ticket);
            taken.1.push(command);
        }
        taken
    }
}

/// Bytes of a command in the log without its texts and lists, estimated from above. It follows from the format: not for tuning.
const COMMAND_BYTES: usize = 256;

fn seen_weight(seen: &Seen) -> usize {
    // Two numbers of at most ten bytes each, with their keys and lengths.
    24 * seen.ranges.len()
}

fn renewal_weight(renewal: &Renewal) -> usize {
    let (Renewal::KeepAlive { seen, .. } | Renewal::Attach { seen, .. }) = renewal;
    COMMAND_BYTES / 2 + seen_weight(seen)
}

fn terms_weight(terms: &Terms) -> usize {
    let job = terms.job.as_ref().map_or(0, |job| job.key.as_str().len() + 16);
    terms.metadata.as_bytes().len() + terms.value.as_ref().map_or(0, |value| value.as_bytes().len()) + job
}

fn operation_weight(operation: &Operation) -> usize {
    let texts = match operation {
        #[cfg(feature = "made-up-version")]
        Operation::MadeUp(text) => text.as_str().len(),
        Operation::Open(open) => open.metadata.as_bytes().len() + open.principal.as_str().len(),
        Operation::Admin(admin) => {
            // A name or a prefix, the key of a job, a principal and a reason.
            let bounds = fencepost_core::bounds::NAME_BYTES_MAX + fencepost_core::bounds::JOB_KEY_BYTES_MAX;
            admin.by.as_str().len() + admin.reason.as_str().len() + bounds
        }
        Operation::Request(request) => {
            let action = match &request.action {
                Action::Acquire(acquire) => {
                    let names: usize = acquire.locks.iter().map(|lock| lock.name.as_str().len() + 16).sum();
                    let owner = acquire.owner.as_ref().map_or(0, |owner| owner.as_str().len());
                    names + owner + terms_weight(&acquire.terms)
                }
                Action::TakePermits(take) => take.name.as_str().len() + terms_weight(&take.terms),
                Action::Convert { name, .. } => name.as_str().len(),
                Action::SetValue { value, .. } => value.as_bytes().len(),
                Action::Checkpoint { bytes, .. } => bytes.as_bytes().len(),
                Action::Release { report, .. } => report.as_ref().map_or(0, |report| report.bytes.as_bytes().len() + 8),
                Action::Cancel { .. } | Action::Extend { .. } | Action::Begin { .. } | Action::Close => 0,
            };
            action + seen_weight(&request.seen)
        }
    };
    COMMAND_BYTES + texts
}

#[cfg(test)]
mod tests {
    use fencepost_core::{
        Acquire, Epoch, GrantId, JobBytes, JobReport, Lock, LockMode, LogicalMs, Metadata, Name, Request,
        RequestNumber, SessionId, Value, Verdict, Wait,
    };
    use fencepost_wire::{Entry, encode};

    use super::*;

    #[test]
    fn the_heaviest_commands_never_make_an_entry_that_the_log_refuses() {
        let terms = Terms {
            metadata: Metadata::new(&[1; 4096]).unwrap(),
            value: Some(Value::new(&[1; 4096]).unwrap()),
            ..Terms::default()
        };
        let name = |lock: usize| Name::new(&format!("{lock:0>512}")).unwrap();
        let locks = (0..64).map(|lock| Lock { name: name(lock), mode: LockMode::Exclusive }).collect();
        let heavy = Operation::Request(Request {
            session: SessionId(u128::MAX),
            epoch: Epoch(u64::MAX),
            number: RequestNumber(u64::MAX),
            seen: Seen { mark: u64::MAX, ranges: (0..2_000).map(|at| (u64::MAX - at, u64::MAX)).collect() },
            action: Action::Acquire(Acquire { locks, owner: None, wait: Wait::Forever, terms }),
        });
        let mut gather = Gather::default();
        for ticket in 0..500 {
            gather.operation(Ticket(ticket), heavy.clone());
        }
        // What jobs store is as heavy as anything else, and short of everything else.
        let report = JobReport { verdict: Verdict::Open, bytes: JobBytes::new(&[1; 4096]).unwrap() };
        let reports = Action::Release { grant: GrantId(u64::MAX), report: Some(Box::new(report)) };
        let stores = Action::Checkpoint { grant: GrantId(u64::MAX), bytes: JobBytes::new(&[1; 4096]).unwrap() };
        for (ticket, action) in (500..).zip([reports, stores].into_iter().cycle().take(1_000)) {
            let Operation::Request(request) = heavy.clone() else { unreachable!("it is a request") };
            gather.operation(Ticket(ticket), Operation::Request(Request { action, seen: Seen::default(), ..request }));
        }
        let mut taken = 0;
        while let Some((batch, tickets)) = gather.take(Nanos(0), false, true) {
            taken += tickets.operations.len();
            assert!(!tickets.operations.is_empty(), "every entry takes something");
            let entry = Entry { term: u64::MAX, stamp: LogicalMs(u64::MAX), batch, ..Entry::default() };
            assert!(encode(&entry).len() <= ENTRY_WEIGHT_MAX + 64, "the estimate is from above");
        }
        assert_eq!(taken, 1_500);
    }
}
