//! Which node to dial, and when: follow hints to the leader, try all endpoints in turn, and back off between rounds.
//!
//! A round is one try of every endpoint. The pause after a failed round is a random part of a time that doubles each round (full
//! jitter), so that a thousand clients of one dead node do not come back at the same moment. After a few rounds without an answer
//! from any node the breaker opens: calls fail at once instead of hanging. The rounds go on, and the first success closes it. A
//! cluster whose nodes answer but do not lead is not dead: it elects a leader, which is soon over, so calls wait and the pauses stay
//! short. A leadership transfer takes milliseconds, so the first of these pauses is very short.

use std::time::Duration;

use crate::bounds::{
    BACKOFF_ELECTION_FIRST, BACKOFF_ELECTION_MAX, BACKOFF_FIRST, BACKOFF_MAX, BREAKER_ROUNDS, HINTS_FOLLOWED,
};
use fencepost_core::Nanos;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Dial this address.
    Dial(String),
    /// Do nothing until this instant.
    WaitUntil(Nanos),
}

/// Why a try failed, or a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialFailure {
    /// The node does not lead. It may know the leader.
    NotLeader {
        /// The leader's address for clients.
        leader: Option<String>,
    },
    /// No answer came, or the stream broke.
    Unreachable,
    /// The stream was up, but no answer came for too long.
    Stalled,
}

/// Decides which node to dial and when.
#[derive(Clone, Debug)]
pub struct Reconnect {
    endpoints: Vec<String>,
    /// The index of the next endpoint to dial.
    next: usize,
    /// Endpoints tried in this round.
    tried: usize,
    /// The address that a node named as the leader's. It is dialled before any endpoint.
    hint: Option<String>,
    hints_followed: u32,
    /// A node answered in this round, even if only to say that it does not lead.
    answered: bool,
    /// Consecutive rounds without any answer.
    rounds: u32,
    /// Consecutive rounds with an answer but without a leader.
    elections: u32,
    wait_until: Nanos,
}

impl Reconnect {
    /// For these addresses. There must be at least one.
    pub fn new(endpoints: Vec<String>) -> Reconnect {
        let start = Nanos::default();
        Reconnect {
            endpoints,
            next: 0,
            tried: 0,
            hint: None,
            hints_followed: 0,
            answered: false,
            rounds: 0,
            elections: 0,
            wait_until: start,
        }
    }

    /// The next step while there is no connection.
    pub fn poll(&mut self, now: Nanos) -> Step {
        if now < self.wait_until {
            return Step::WaitUntil(self.wait_until);
        }
        if let Some(leader) = self.hint.take() {
            return Step::Dial(leader);
        }
        let endpoint = self.endpoints[self.next % self.endpoints.len()].clone();
        self.next = (self.next + 1) % self.endpoints.len();
        self.tried += 1;
        Step::Dial(endpoint)
    }

    /// The leader answered at this address.
    pub fn handle_connected(&mut self, address: &str) {
        (self.tried, self.rounds, self.elections, self.hints_followed) = (0, 0, 0, 0);
        (self.hint, self.answered) = (None, false);
        // When this connection breaks, the same node is dialled first: only the network may have failed.
        if let Some(at) = self.endpoints.iter().position(|endpoint| endpoint == address) {
            self.next = at;
        }
    }

    /// A try failed, or a connection ended. `random` is any number; it picks the pause within the bounds.
    pub fn handle_failed(&mut self, now: Nanos, failure: DialFailure, random: u64) {
        if let DialFailure::NotLeader { .. } = failure {
            (self.answered, self.rounds) = (true, 0);
        }
        match failure {
            DialFailure::NotLeader { leader: Some(leader) } if self.hints_followed < HINTS_FOLLOWED => {
                self.hints_followed += 1;
                self.hint = Some(leader);
                return;
            }
            // No hint, or too many in a row. In the second case a pause comes first, to avoid a tight loop.
            DialFailure::NotLeader { leader } => self.hint = leader,
            DialFailure::Unreachable => {}
            // The node hangs and would stall the next stream, too. The other nodes are dialled before it.
            DialFailure::Stalled => self.next = (self.next + 1) % self.endpoints.len(),
        }
        if self.tried >= self.endpoints.len() || self.hints_followed >= HINTS_FOLLOWED {
            (self.tried, self.hints_followed) = (0, 0);
            let (first, most, rounds) = if std::mem::take(&mut self.answered) {
                (BACKOFF_ELECTION_FIRST, BACKOFF_ELECTION_MAX, &mut self.elections)
            } else {
                self.elections = 0;
                (BACKOFF_FIRST, BACKOFF_MAX, &mut self.rounds)
            };
            self.wait_until = now.after(jitter(most.min(first * 2u32.saturating_pow((*rounds).min(16))), random));
            *rounds = rounds.saturating_add(1);
        }
    }

    /// Whether the cluster counts as dead. Then requests that were not sent should fail at once.
    pub fn is_open(&self) -> bool {
        self.rounds >= BREAKER_ROUNDS
    }
}

fn jitter(most: Duration, random: u64) -> Duration {
    Duration::from_nanos(random % (most.as_nanos() as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: DialFailure = DialFailure::Unreachable;

    fn dials(reconnect: &mut Reconnect, now: Nanos) -> String {
        match reconnect.poll(now) {
            Step::Dial(address) => address,
            Step::WaitUntil(until) => panic!("waits until {until:?}"),
        }
    }

    #[test]
    fn the_leader_that_is_named_is_dialled_at_once() {
        let mut reconnect = Reconnect::new(vec!["a:1".into(), "b:1".into()]);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "a:1");
        reconnect.handle_failed(Nanos(0), DialFailure::NotLeader { leader: Some("c:1".into()) }, 7);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "c:1");
    }

    #[test]
    fn nodes_that_point_at_each_other_are_not_asked_in_a_tight_loop() {
        let mut reconnect = Reconnect::new(vec!["a:1".into(), "b:1".into()]);
        let mut tries = 0;
        while let Step::Dial(_) = reconnect.poll(Nanos(0)) {
            tries += 1;
            assert!(tries < 20, "never pauses");
            reconnect.handle_failed(Nanos(0), DialFailure::NotLeader { leader: Some("b:1".into()) }, u64::MAX / 3);
        }
        assert!(tries >= 3);
    }

    #[test]
    fn a_new_leader_is_looked_for_at_once_and_then_less_often() {
        let mut reconnect = Reconnect::new(vec!["a:1".into()]);
        let mut now = Nanos(0);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            dials(&mut reconnect, now);
            reconnect.handle_failed(now, DialFailure::NotLeader { leader: None }, u64::MAX / 3);
            let Step::WaitUntil(until) = reconnect.poll(now) else { panic!("it never pauses") };
            pauses.push(until.since(now));
            now = until;
        }
        assert!(pauses[0] <= BACKOFF_ELECTION_FIRST, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= BACKOFF_ELECTION_MAX), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause > BACKOFF_ELECTION_MAX / 4), "{pauses:?}");
        dials(&mut reconnect, now);
        reconnect.handle_connected("a:1");
        reconnect.handle_failed(now, DialFailure::NotLeader { leader: None }, u64::MAX / 3);
        dials(&mut reconnect, now);
        reconnect.handle_failed(now, DialFailure::NotLeader { leader: None }, u64::MAX / 3);
        let Step::WaitUntil(until) = reconnect.poll(now) else { panic!("it never pauses") };
        assert!(until.since(now) <= BACKOFF_ELECTION_FIRST, "a leader was there, so the backoff starts again");
    }

    #[test]
    fn nodes_that_elect_do_not_count_as_dead() {
        let mut reconnect = Reconnect::new(vec!["a:1".into(), "b:1".into(), "c:1".into()]);
        let mut now = Nanos(0);
        // The old leader is gone for good, and the two others elect no leader for a while.
        for _ in 0..50 {
            for failure in [FAILED, DialFailure::NotLeader { leader: None }, DialFailure::NotLeader { leader: None }] {
                dials(&mut reconnect, now);
                reconnect.handle_failed(now, failure, u64::MAX / 2);
            }
            assert!(!reconnect.is_open(), "two nodes answered");
            if let Step::WaitUntil(until) = reconnect.poll(now) {
                assert!(until.since(now) <= BACKOFF_ELECTION_MAX, "an election is soon over");
                now = until;
            }
        }
    }

    #[test]
    fn a_node_that_hangs_is_asked_after_the_others() {
        let mut reconnect = Reconnect::new(vec!["a:1".into(), "b:1".into(), "c:1".into()]);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "a:1");
        reconnect.handle_connected("a:1");
        reconnect.handle_failed(Nanos(0), DialFailure::Stalled, 7);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "b:1");
    }

    #[test]
    fn every_endpoint_is_tried_before_a_pause_and_pauses_grow() {
        let mut reconnect = Reconnect::new(vec!["a:1".into(), "b:1".into(), "c:1".into()]);
        let mut now = Nanos(0);
        let mut longest = Duration::ZERO;
        for round in 0..12 {
            let tried: Vec<String> = (0..3)
                .map(|_| {
                    let address = dials(&mut reconnect, now);
                    reconnect.handle_failed(now, FAILED, (1 << 62) - 1 - round);
                    address
                })
                .collect();
            assert_eq!(tried, ["a:1", "b:1", "c:1"]);
            assert_eq!(reconnect.is_open(), round + 1 >= u64::from(BREAKER_ROUNDS));
            if let Step::WaitUntil(until) = reconnect.poll(now) {
                longest = longest.max(until.since(now));
                now = until;
            }
        }
        assert!(longest > Duration::from_millis(500) && longest <= BACKOFF_MAX, "{longest:?}");
        dials(&mut reconnect, now);
        reconnect.handle_connected("b:1");
        assert!(!reconnect.is_open(), "a success closes the breaker");
        assert_eq!(dials(&mut reconnect, now), "b:1", "the node that led is asked first");
    }
}
