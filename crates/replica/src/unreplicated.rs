//! The lock state of the efficiency tier: the same state machine, in the leader's memory and in no log.
//!
//! It answers in the same turn. It is only as safe as one process: a node forgets it when it stops leading, and a deposed leader
//! that does not know it yet still grants beside its successor. So every instance belongs to one term, and a client that is
//! answered from another term has lost its locks. // Rule: tier-efficiency

use fencepost_core::{FormatVersion, LockState, LogPosition, LogicalMs, Nanos, Operation, Renewal, ReplyTo, Ticket};

use crate::error::NotTaken;
use crate::gather::Gather;
use crate::ports::Output;
use crate::replica::grows_the_state;
use crate::stamp::StampClock;
use crate::tally::Tally;

/// The efficiency tier of one term.
#[derive(Debug)]
pub struct Unreplicated {
    state: LockState,
    clock: StampClock,
    gather: Gather,
    /// The term, and the number of batches applied in it.
    position: LogPosition,
    last_ticket: u64,
    last_turn: Nanos,
}

impl Unreplicated {
    /// An empty lock state for this term.
    pub fn new(term: u64, hash_seed: u64, now: Nanos) -> Unreplicated {
        Unreplicated {
            state: LockState::new(hash_seed),
            clock: StampClock::new(LogicalMs(0), now),
            gather: Gather::default(),
            position: LogPosition { index: 0, term },
            last_ticket: 0,
            last_turn: now,
        }
    }

    /// The lock state.
    pub fn state(&self) -> &LockState {
        &self.state
    }

    /// Takes a keep-alive or an attach for the next turn.
    pub fn submit_renewal(&mut self, renewal: Renewal) -> Ticket {
        let ticket = self.ticket();
        self.gather.renewal(ticket, renewal);
        ticket
    }

    /// Takes an operation for the next turn.
    ///
    /// # Errors
    /// [`NotTaken::Overloaded`] if too many operations wait.
    pub fn submit(&mut self, operation: Operation) -> Result<Ticket, NotTaken> {
        if !self.gather.has_room(grows_the_state(&operation)) {
            return Err(NotTaken::Overloaded);
        }
        let ticket = self.ticket();
        self.gather.operation(ticket, operation);
        Ok(ticket)
    }

    /// As [`EfficiencyTier::turn`]. Counts in `tally` what ended.
    fn turn(&mut self, version: FormatVersion, now: Nanos, tally: &mut Tally) -> Vec<Output> {
        self.clock.turn(now);
        self.last_turn = now;
        let stamp = self.clock.stamp();
        let mut outputs = Vec::new();
        loop {
            let deadline_passed = self.state.next_deadline().is_some_and(|deadline| deadline <= stamp);
            let Some((mut batch, tickets)) = self.gather.take(now, deadline_passed, true) else { return outputs };
            batch.raise_to = Some(version);
            let effects = self.state.apply(stamp, batch);
            tally.note(&effects);
            self.position.index += 1;
            let position = self.position;
            outputs.extend(effects.replies.into_iter().map(|reply| {
                let ticket = match reply.to {
                    ReplyTo::Renewal(place) => tickets.renewals[place],
                    ReplyTo::Operation(place) => tickets.operations[place],
                };
                Output::Reply { ticket, position, stamp, reply }
            }));
            outputs.extend(effects.pushes.into_iter().map(|push| Output::Push { position, stamp, push }));
        }
    }

    /// When the next turn is due if nothing arrives. `None` if nothing is pending and nothing can expire.
    pub fn next_turn(&self) -> Option<Nanos> {
        if self.gather.is_urgent(true) {
            return Some(self.last_turn);
        }
        let renewals = self.gather.has_renewals().then_some(Nanos(0));
        let deadline = self.state.next_deadline().map(|deadline| self.clock.reaches(deadline));
        renewals.into_iter().chain(deadline).min().map(|reason| reason.max(self.gather.next_beat()))
    }

    fn ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }
}

/// The efficiency tier of a node: a separate lock state for each term in which the node serves, and none while it does not serve.
// Rule: tier-efficiency
#[derive(Debug, Default)]
pub struct EfficiencyTier {
    /// The term in which the node serves, if it does.
    serves_in: Option<u64>,
    /// Invariant: present exactly while `serves_in` is, and for that term.
    of_term: Option<Unreplicated>,
    tally: Tally,
}

impl EfficiencyTier {
    /// Sets the term in which the node serves. Returns whether it changed: then the tier forgets all its locks.
    pub fn follow(&mut self, serves_in: Option<u64>, hash_seed: impl FnOnce() -> u64, now: Nanos) -> bool {
        if std::mem::replace(&mut self.serves_in, serves_in) == serves_in {
            return false;
        }
        self.of_term = serves_in.map(|term| Unreplicated::new(term, hash_seed(), now));
        true
    }

    /// The lock state of the term, if the node serves.
    pub fn of_term(&mut self) -> Option<&mut Unreplicated> {
        self.of_term.as_mut()
    }

    /// What ended in this tier, in all terms since the process began.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Counts time, applies what has arrived, and returns the answers: only [`Output::Reply`] and [`Output::Push`]. `version` is the
    /// cluster's active version, so that both tiers follow the same rules. Returns nothing while the node does not serve.
    pub fn turn(&mut self, version: FormatVersion, now: Nanos) -> Vec<Output> {
        let EfficiencyTier { of_term, tally, .. } = self;
        of_term.as_mut().map(|tier| tier.turn(version, now, tally)).unwrap_or_default()
    }

    /// As [`Unreplicated::next_turn`]. `None` while the node does not serve.
    pub fn next_turn(&self) -> Option<Nanos> {
        self.of_term.as_ref().and_then(Unreplicated::next_turn)
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::{
        Acquire, Action, Epoch, Lock, LockMode, Metadata, Name, Open, Outcome, Principal, Push, Request, RequestNumber,
        SecretHash, Seen, SessionId, Terms, Ttl, Wait,
    };

    use super::*;

    fn open(session: u128) -> Operation {
        Operation::Open(Open {
            session: SessionId(session),
            secret_hash: SecretHash([0; 32]),
            principal: Principal::new("tester").unwrap(),
            ttl: Ttl::new(1_000).unwrap(),
            metadata: Metadata::default(),
        })
    }

    fn acquire(session: u128) -> Operation {
        let locks = [Lock { name: Name::new("nightly").unwrap(), mode: LockMode::Exclusive }].into_iter().collect();
        Operation::Request(Request {
            session: SessionId(session),
            epoch: Epoch(1),
            number: RequestNumber(1),
            seen: Seen::default(),
            action: Action::Acquire(Acquire { locks, owner: None, wait: Wait::Forever, terms: Terms::default() }),
        })
    }

    fn outcome(output: &Output) -> Option<&Outcome> {
        match output {
            Output::Reply { reply, .. } => Some(&reply.outcome),
            _ => None,
        }
    }

    #[test]
    fn operations_are_answered_in_the_same_turn_and_time_alone_ends_leases() {
        let (mut tier, mut tally) = (Unreplicated::new(7, 1, Nanos(0)), Tally::default());
        assert_eq!(tier.next_turn(), None, "nothing can expire");
        for operation in [open(1), open(2), acquire(1), acquire(2)] {
            tier.submit(operation).unwrap();
        }
        let outputs = tier.turn(FormatVersion::FIRST, Nanos(0), &mut tally);
        let outcomes: Vec<&Outcome> = outputs.iter().filter_map(outcome).collect();
        let [Outcome::Opened { .. }, Outcome::Opened { .. }, Outcome::Granted { .. }, Outcome::Queued { .. }] =
            outcomes[..]
        else {
            panic!("{outcomes:?}");
        };
        assert!(outputs.iter().all(|output| matches!(output, Output::Reply { position, .. } if position.term == 7)));

        // The waiter sends a keep-alive, the holder does not.
        tier.turn(FormatVersion::FIRST, Nanos(0).after_ms(400), &mut tally);
        tier.submit_renewal(Renewal::KeepAlive { session: SessionId(2), epoch: Epoch(1), seen: Seen::default() });
        tier.turn(FormatVersion::FIRST, Nanos(0).after_ms(800), &mut tally);
        let due = tier.next_turn().expect("a lease ends");
        let outputs = tier.turn(FormatVersion::FIRST, due.after_ms(1), &mut tally);
        let pushes: Vec<&Push> = outputs.iter().filter_map(push).collect();
        assert!(
            pushes.iter().any(|push| matches!(push, Push::SessionEnded { session: SessionId(1), .. })),
            "{pushes:?}"
        );
        let granted =
            |push: &&Push| matches!(push, Push::Ended { session: SessionId(2), outcome: Outcome::Granted { .. }, .. });
        assert!(pushes.iter().any(granted), "{pushes:?}");
        assert_eq!((tally.sessions.expired, tally.grants.expired, tally.requests.granted), (1, 1, 2));
        let waited = tally.waits.observed();
        assert!(waited.count() == 1 && waited.sum >= std::time::Duration::from_secs(1), "{waited:?}");
    }

    #[test]
    fn the_tier_of_a_node_forgets_everything_with_the_term() {
        let mut tier = EfficiencyTier::default();
        assert!(tier.of_term().is_none(), "a node that does not serve has no efficiency tier");
        for (serves_in, changes) in [(Some(3), true), (Some(3), false), (None, true), (Some(5), true)] {
            assert_eq!(tier.follow(serves_in, || 0, Nanos(0)), changes, "{serves_in:?}");
            assert_eq!(tier.of_term().is_some(), serves_in.is_some());
            let Some(of_term) = tier.of_term().filter(|_| changes) else { continue };
            of_term.submit(open(1)).unwrap();
            let outputs = tier.turn(FormatVersion::FIRST, Nanos(0));
            assert!(matches!(outputs.first().and_then(outcome), Some(Outcome::Opened { .. })), "{outputs:?}");
        }
    }

    fn push(output: &Output) -> Option<&Push> {
        match output {
            Output::Push { push, .. } => Some(push),
            _ => None,
        }
    }
}
