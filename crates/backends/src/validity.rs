//! How long a lock is certain, when to renew it, and when it is lost: for every system the same.
//!
//! A system that was asked at our instant S and said yes keeps the lock for its TTL from some later moment on, by its own clock.
//! So at S + TTL it has not ended yet, if the two clocks tick alike; one in a hundred is taken off for clocks that do not, and a
//! millisecond for rounding. That is the same sum as for Fencepost's own locks (`fencepost_session::anchor`), whose stamps have no use here.
//!
//! It is renewed when a third of that time is over. A renewal that fails is tried again soon; a lock that was not renewed in
//! time is lost, and stays lost. This file asks no clock: `now` is an argument.

use std::time::Duration;

use fencepost::{GrantState, Lost, Nanos};

use crate::backend::Proof;

/// Of every hundred nanoseconds of a TTL, so many may be believed.
const BELIEVED_OF_HUNDRED: u32 = 99;
/// Systems count in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(1);
/// The longest warning before a deadline, as for Fencepost's own locks.
const WARNING_MAX: Duration = Duration::from_secs(10);

/// What a holder knows of its lock.
#[derive(Clone, Debug)]
pub struct Validity {
    /// Until when it is certain.
    until: Nanos,
    /// From when on little is left.
    warned_at: Nanos,
    renew_at: Nanos,
    /// Invariant: once it is set, it stays.
    lost: Option<Lost>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the system to let the lock go on.
    Renew,
    /// Nothing until then.
    WaitUntil(Nanos),
    /// Nothing ever again.
    Lost(Lost),
}

impl Validity {
    /// Of a lock that was granted.
    pub fn new(proof: Proof) -> Validity {
        let mut validity = Validity { until: Nanos(0), warned_at: Nanos(0), renew_at: Nanos(0), lost: None };
        validity.handle_proof(proof);
        validity
    }

    /// The system has said once more that the lock is ours.
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

    /// A renewal did not get through. `pause` is how long to wait before the next.
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
        match self.lost {
            Some(why) => GrantState::Lost(why),
            None if now >= self.warned_at => GrantState::Jeopardy,
            None => GrantState::Held,
        }
    }

    /// How long it is certainly held.
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
            // Those who listen want to hear of the warning, too.
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
    fn a_lock_that_is_not_renewed_is_renewed_at_a_third_warned_at_two_and_lost_before_the_ttl() {
        let mut validity = Validity::new(proof(1_000));
        // 9,899 ms are believed.
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
    fn a_renewal_is_believed_from_when_it_was_sent_and_an_old_answer_takes_nothing_away() {
        let mut validity = Validity::new(proof(1_000));
        validity.handle_proof(proof(5_000));
        assert_eq!(validity.remaining(at(5_000)), Duration::from_millis(9_899));
        validity.handle_proof(proof(4_000));
        assert_eq!(validity.remaining(at(5_000)), Duration::from_millis(9_899));
    }

    #[test]
    fn a_renewal_that_fails_is_tried_again_until_the_lock_is_lost() {
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
    fn what_the_system_says_is_final() {
        let mut validity = Validity::new(proof(0));
        validity.handle_lost(Lost::Gone);
        validity.handle_proof(proof(10));
        assert_eq!(validity.poll(at(20)), Step::Lost(Lost::Gone));
        assert_eq!(validity.remaining(at(20)), Duration::ZERO);
    }
}
