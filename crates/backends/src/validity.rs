//! How long a lock is certainly held, when to renew it, and when it is lost. The same for every system.
//!
//! We send a request at our instant S, and the system accepts it. It then keeps the lock for its TTL from some later moment on, by
//! its own clock. So the lock is held at least until S + TTL, if both clocks run at the same rate. We subtract 1% for clocks that
//! do not, and 1 ms for rounding. This is the formula of Fencepost's own locks (`fencepost_session::anchor`), without stamps.
//!
//! A lock is renewed after a third of that time. A failed renewal is retried soon. A lock that is not renewed in time is lost, and
//! stays lost. This file reads no clock: `now` is an argument.

use std::time::Duration;

use fencepost::{GrantState, Lost, Nanos};

use crate::backend::Proof;

/// The percentage of a TTL that we rely on, because clocks may run at different rates.
const BELIEVED_OF_HUNDRED: u32 = 99;
/// Systems count in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
/// The longest warning before a deadline, as for Fencepost's own locks.
const WARNING_MAX: Duration = Duration::from_secs(10);

/// What a holder knows about its lock.
#[derive(Clone, Debug)]
pub struct Validity {
    /// The lock is certainly held until then.
    until: Nanos,
    /// The lock is in jeopardy from then on.
    warned_at: Nanos,
    renew_at: Nanos,
    /// Invariant: once set, it never changes.
    lost: Option<Lost>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Renew the lock.
    Renew,
    /// Wait until then.
    WaitUntil(Nanos),
    /// Stop: the lock is lost.
    Lost(Lost),
}

impl Validity {
    /// The validity of a lock at its grant.
    pub fn new(proof: Proof) -> Validity {
        let mut validity = Validity { until: Nanos(0), warned_at: Nanos(0), renew_at: Nanos(0), lost: None };
        validity.handle_proof(proof);
        validity
    }

    /// The system has confirmed that we hold the lock.
    // Rule: holder-stops-first
    pub fn handle_proof(&mut self, proof: Proof) {
        let Proof { sent_at, ttl } = proof;
        let believed = (ttl / 100 * BELIEVED_OF_HUNDRED).saturating_sub(ROUNDING);
        let until = sent_at.after(believed);
        if until > self.until {
            self.until = until;
            self.warned_at = until.before((believed / 3).min(WARNING_MAX));
        }
        self.renew_at = sent_at.after(believed / 3);
    }

    /// A renewal failed. The next attempt follows after `pause`.
    pub fn handle_failed(&mut self, now: Nanos, pause: Duration) {
        self.renew_at = now.after(pause);
    }

    /// The lock is gone.
    // Rule: lost-is-final
    pub fn handle_lost(&mut self, why: Lost) {
        self.lost.get_or_insert(why);
    }

    /// Held, in jeopardy, or lost and why.
    pub fn state(&mut self, now: Nanos) -> GrantState {
        if now >= self.until {
            self.handle_lost(Lost::DeadlinePassed);
        }
        match self.lost.clone() {
            Some(why) => GrantState::Lost(why),
            None if now >= self.warned_at => GrantState::Jeopardy,
            None => GrantState::Held,
        }
    }

    /// How long the lock is certainly held.
    pub fn remaining(&mut self, now: Nanos) -> Duration {
        match self.state(now) {
            GrantState::Lost(_) => Duration::ZERO,
            _ => self.until.since(now),
        }
    }

    /// What to do now.
    pub fn poll(&mut self, now: Nanos) -> Step {
        match self.state(now) {
            GrantState::Lost(why) => Step::Lost(why),
            _ if now >= self.renew_at => Step::Renew,
            // Also wakes at the warning, so that callers see the new state.
            GrantState::Held => Step::WaitUntil(self.renew_at.min(self.warned_at)),
            GrantState::Jeopardy => Step::WaitUntil(self.renew_at.min(self.until)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn proof(sent_at_ms: u64) -> Proof {
        Proof { sent_at: Nanos(sent_at_ms * MS), ttl: Duration::from_secs(10) }
    }

    fn at(ms: u64) -> Nanos {
        Nanos(ms * MS)
    }

    #[test]
    fn a_lock_is_due_for_renewal_at_one_third_in_jeopardy_at_two_thirds_and_lost_before_the_ttl() {
        let mut validity = Validity::new(proof(1_000));
        // We rely on 9,899 ms.
        let story = [
            (1_000, Step::WaitUntil(at(1_000).after(Duration::from_millis(9_899) / 3)), GrantState::Held),
            (4_300, Step::Renew, GrantState::Held),
            (7_650, Step::Renew, GrantState::Jeopardy),
            (10_898, Step::Renew, GrantState::Jeopardy),
            (10_899, Step::Lost(Lost::DeadlinePassed), GrantState::Lost(Lost::DeadlinePassed)),
        ];
        for (now, step, state) in story {
            assert_eq!((validity.poll(at(now)), validity.state(at(now))), (step, state), "at {now} ms");
        }
        validity.handle_proof(proof(10_900));
        assert_eq!(validity.state(at(10_901)), GrantState::Lost(Lost::DeadlinePassed), "lost is final");
    }

    #[test]
    fn a_renewal_counts_from_its_sending_and_an_old_answer_does_not_shorten_the_lock() {
        let mut validity = Validity::new(proof(1_000));
        validity.handle_proof(proof(5_000));
        assert_eq!(validity.remaining(at(5_000)), Duration::from_millis(9_899));
        validity.handle_proof(proof(4_000));
        assert_eq!(validity.remaining(at(5_000)), Duration::from_millis(9_899));
    }

    #[test]
    fn a_failed_renewal_is_retried_until_the_lock_is_lost() {
        let mut validity = Validity::new(proof(0));
        let mut tries = 0;
        let mut now = at(0);
        loop {
            match validity.poll(now) {
                Step::Renew => {
                    tries += 1;
                    validity.handle_failed(now, Duration::from_millis(500));
                }
                Step::WaitUntil(until) => now = until,
                Step::Lost(why) => {
                    assert_eq!(why, Lost::DeadlinePassed);
                    break;
                }
            }
        }
        assert!((10..=15).contains(&tries), "{tries}");
    }

    #[test]
    fn a_loss_that_the_system_reports_is_final() {
        let mut validity = Validity::new(proof(0));
        validity.handle_lost(Lost::Gone);
        validity.handle_proof(proof(10));
        assert_eq!(validity.poll(at(20)), Step::Lost(Lost::Gone));
        assert_eq!(validity.remaining(at(20)), Duration::ZERO);
    }
}
