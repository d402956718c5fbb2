//! Which node to dial, and when: follow hints to the leader, try all endpoints in turn, and back off between rounds.
//!
//! A round is one try of every endpoint. The pause after a failed round is a random part of a time that doubles each round (full
//! jitter), so that a thousand clients of one dead node do not come back at the same moment. After a few rounds without an answer
//! from any node the breaker opens: calls fail at once instead of hanging. The rounds go on, and the first success closes it. A
//! cluster whose nodes answer but do not lead is not dead: it elects a leader, which is soon over, so calls wait and the pauses stay
//! short. A leadership transfer takes milliseconds, so the first of these pauses is very short.
//!
//! A first connect fails fast if every endpoint says no at once: no program listens there, or one that says that this is the wrong port or
//! protocol. Every endpoint must have refused twice in a row. The caller can ask for more patience: then the breaker waits as long. A
//! client that was once connected never fails in this way.

use std::time::Duration;

use crate::bounds::{
    BACKOFF_ELECTION_FIRST, BACKOFF_ELECTION_MAX, BACKOFF_FIRST, BACKOFF_MAX, BREAKER_ROUNDS, HINTS_FOLLOWED,
    REFUSED_ROUNDS,
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
    /// No program listens at the address: its host refused the connection at once.
    Refused,
    /// The program at the address said that it is the wrong port, or that it speaks another protocol.
    WrongDoor,
    /// No answer came, or the stream broke.
    Unreachable,
    /// The stream was up, but no answer came for too long.
    Stalled,
}

/// Whether the client was ever connected.
#[derive(Clone, Copy, Debug)]
enum FirstConnect {
    NotBegun,
    /// The client has dialled since this instant.
    Since(Nanos),
    Done,
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
    /// Every try of this round was refused.
    only_refused: bool,
    /// Consecutive rounds in which every try was refused.
    refused_rounds: u32,
    first_connect: FirstConnect,
    /// How long a first connect goes on although every endpoint refuses.
    refused_patience: Duration,
    wait_until: Nanos,
}

impl Reconnect {
    /// For these addresses. There must be at least one. A first connect goes on for `refused_patience` although every endpoint refuses;
    /// with zero it fails at the second refusal of each.
    pub fn new(endpoints: Vec<String>, refused_patience: Duration) -> Reconnect {
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
            only_refused: true,
            refused_rounds: 0,
            first_connect: FirstConnect::NotBegun,
            refused_patience,
            wait_until: start,
        }
    }

    /// The next step while there is no connection.
    pub fn poll(&mut self, now: Nanos) -> Step {
        if now < self.wait_until {
            let gives_up_at = self.gives_up_at().filter(|at| now < *at);
            return Step::WaitUntil(gives_up_at.map_or(self.wait_until, |at| at.min(self.wait_until)));
        }
        if let FirstConnect::NotBegun = self.first_connect {
            self.first_connect = FirstConnect::Since(now);
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
        self.first_connect = FirstConnect::Done;
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
        self.only_refused &= matches!(failure, DialFailure::Refused | DialFailure::WrongDoor);
        match failure {
            DialFailure::NotLeader { leader: Some(leader) } if self.hints_followed < HINTS_FOLLOWED => {
                self.hints_followed += 1;
                self.hint = Some(leader);
                return;
            }
            // No hint, or too many in a row. In the second case a pause comes first, to avoid a tight loop.
            DialFailure::NotLeader { leader } => self.hint = leader,
            DialFailure::Refused | DialFailure::WrongDoor | DialFailure::Unreachable => {}
            // The node hangs and would stall the next stream, too. The other nodes are dialled before it.
            DialFailure::Stalled => self.next = (self.next + 1) % self.endpoints.len(),
        }
        if self.tried >= self.endpoints.len() || self.hints_followed >= HINTS_FOLLOWED {
            (self.tried, self.hints_followed) = (0, 0);
            let was_refused = std::mem::replace(&mut self.only_refused, true);
            self.refused_rounds = if was_refused { self.refused_rounds.saturating_add(1) } else { 0 };
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
    pub fn is_open(&self, now: Nanos) -> bool {
        // A first connect that has patience with refusals is not over before that.
        self.gives_up_at().map_or(self.rounds >= BREAKER_ROUNDS, |at| now >= at)
    }

    /// Whether the first connect has failed: every endpoint refuses.
    pub fn is_refused(&self, now: Nanos) -> bool {
        self.gives_up_at().is_some_and(|at| now >= at)
    }

    /// Whether every endpoint refuses, although the first connect may still go on.
    pub fn is_refusing(&self) -> bool {
        self.gives_up_at().is_some()
    }

    /// When the first connect fails, if every endpoint goes on refusing.
    fn gives_up_at(&self) -> Option<Nanos> {
        match self.first_connect {
            FirstConnect::Since(begun) if self.refused_rounds >= REFUSED_ROUNDS => {
                Some(begun.after(self.refused_patience))
            }
            _ => None,
        }
    }
}

fn jitter(most: Duration, random: u64) -> Duration {
    Duration::from_nanos(random % (most.as_nanos() as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: DialFailure = DialFailure::Unreachable;

    fn reconnect(endpoints: &[&str]) -> Reconnect {
        patient(endpoints, Duration::ZERO)
    }

    fn patient(endpoints: &[&str], refused_patience: Duration) -> Reconnect {
        Reconnect::new(endpoints.iter().map(|it| (*it).to_owned()).collect(), refused_patience)
    }

    fn dials(reconnect: &mut Reconnect, now: Nanos) -> String {
        match reconnect.poll(now) {
            Step::Dial(address) => address,
            Step::WaitUntil(until) => panic!("waits until {until:?}"),
        }
    }

    #[test]
    fn the_leader_that_is_named_is_dialled_at_once() {
        let mut reconnect = reconnect(&["a:1", "b:1"]);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "a:1");
        reconnect.handle_failed(Nanos(0), DialFailure::NotLeader { leader: Some("c:1".into()) }, 7);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "c:1");
    }

    #[test]
    fn nodes_that_point_at_each_other_are_not_asked_in_a_tight_loop() {
        let mut reconnect = reconnect(&["a:1", "b:1"]);
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
        let mut reconnect = reconnect(&["a:1"]);
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
        let mut reconnect = reconnect(&["a:1", "b:1", "c:1"]);
        let mut now = Nanos(0);
        // The old leader is gone for good, and the two others elect no leader for a while.
        for _ in 0..50 {
            for failure in [FAILED, DialFailure::NotLeader { leader: None }, DialFailure::NotLeader { leader: None }] {
                dials(&mut reconnect, now);
                reconnect.handle_failed(now, failure, u64::MAX / 2);
            }
            assert!(!reconnect.is_open(now), "two nodes answered");
            if let Step::WaitUntil(until) = reconnect.poll(now) {
                assert!(until.since(now) <= BACKOFF_ELECTION_MAX, "an election is soon over");
                now = until;
            }
        }
    }

    #[test]
    fn a_node_that_hangs_is_asked_after_the_others() {
        let mut reconnect = reconnect(&["a:1", "b:1", "c:1"]);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "a:1");
        reconnect.handle_connected("a:1");
        reconnect.handle_failed(Nanos(0), DialFailure::Stalled, 7);
        assert_eq!(dials(&mut reconnect, Nanos(0)), "b:1");
    }

    #[test]
    fn every_endpoint_is_tried_before_a_pause_and_pauses_grow() {
        let mut reconnect = reconnect(&["a:1", "b:1", "c:1"]);
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
            assert_eq!(reconnect.is_open(now), round + 1 >= u64::from(BREAKER_ROUNDS));
            if let Step::WaitUntil(until) = reconnect.poll(now) {
                longest = longest.max(until.since(now));
                now = until;
            }
        }
        assert!(longest > Duration::from_millis(500) && longest <= BACKOFF_MAX, "{longest:?}");
        dials(&mut reconnect, now);
        reconnect.handle_connected("b:1");
        assert!(!reconnect.is_open(now), "a success closes the breaker");
        assert_eq!(dials(&mut reconnect, now), "b:1", "the node that led is asked first");
    }

    /// Fails every dial in this way until the instant. Returns when the first connect has failed.
    fn refused_at(reconnect: &mut Reconnect, failures: &[DialFailure], until: Nanos) -> Option<Nanos> {
        let (mut now, mut tries) = (Nanos(0), 0);
        while now < until {
            match reconnect.poll(now) {
                Step::Dial(_) => {
                    // The longest first pause that chance can pick.
                    let random = BACKOFF_FIRST.as_nanos() as u64;
                    reconnect.handle_failed(now, failures[tries % failures.len()].clone(), random);
                    tries += 1;
                }
                Step::WaitUntil(at) => now = at,
            }
            if reconnect.is_refusing() {
                assert_eq!(reconnect.is_open(now), reconnect.is_refused(now), "calls fail then, and no sooner");
            }
            if reconnect.is_refused(now) {
                return Some(now);
            }
        }
        None
    }

    const A_MINUTE: Nanos = Nanos(60_000_000_000);

    #[test]
    fn a_first_connect_fails_when_every_endpoint_has_refused_twice_within_300_ms() {
        for endpoints in [&["a:1"][..], &["a:1", "b:1", "c:1"]] {
            for failures in [&[DialFailure::Refused][..], &[DialFailure::WrongDoor, DialFailure::Refused]] {
                let failed = refused_at(&mut reconnect(endpoints), failures, A_MINUTE);
                let failed = failed.expect("it fails").since(Nanos(0));
                assert!(failed <= Duration::from_millis(300), "{failed:?}");
            }
        }
        let mut once = reconnect(&["a:1", "b:1"]);
        dials(&mut once, Nanos(0));
        once.handle_failed(Nanos(0), DialFailure::Refused, 0);
        dials(&mut once, Nanos(0));
        once.handle_failed(Nanos(0), DialFailure::Refused, 0);
        assert!(!once.is_refused(Nanos(0)), "a node that restarts refuses for a moment");
    }

    #[test]
    fn a_first_connect_goes_on_while_any_endpoint_hangs_elects_or_answers() {
        let refused = DialFailure::Refused;
        for other in [FAILED, DialFailure::Stalled, DialFailure::NotLeader { leader: None }] {
            let mut reconnect = reconnect(&["a:1", "b:1"]);
            assert_eq!(refused_at(&mut reconnect, &[refused.clone(), other.clone()], A_MINUTE), None, "{other:?}");
        }
    }

    #[test]
    fn a_first_connect_that_has_patience_goes_on_for_exactly_that_time() {
        for patience in [Duration::from_millis(700), Duration::from_secs(20)] {
            let mut reconnect = patient(&["a:1"], patience);
            let failed = refused_at(&mut reconnect, &[DialFailure::Refused], A_MINUTE);
            assert_eq!(failed, Some(Nanos(0).after(patience)));
        }
    }

    #[test]
    fn a_client_that_was_once_connected_never_fails_fast() {
        let mut reconnect = reconnect(&["a:1"]);
        dials(&mut reconnect, Nanos(0));
        reconnect.handle_connected("a:1");
        reconnect.handle_failed(Nanos(0), FAILED, 0);
        assert_eq!(refused_at(&mut reconnect, &[DialFailure::Refused], A_MINUTE), None);
        assert!(reconnect.is_open(A_MINUTE), "the breaker opens as before");
    }
}
