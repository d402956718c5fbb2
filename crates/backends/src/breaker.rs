//! Knows when a server is taken for dead, so that callers hear it at once instead of hanging.
//!
//! After a few failures in a row the breaker opens, and calls fail without being sent. When the pause is over one call is let
//! through to see; the pauses grow while that fails, and one success closes the breaker.

use std::time::Duration;

use fencepost::Nanos;

use crate::backoff::Backoff;

/// So many failures in a row, and the server is taken for dead.
const FAILURES_MAX: u32 = 3;

/// Of one server, or of several that are one system.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    failures: u32,
    /// When the next call may go through while it is open.
    next_at: Nanos,
    backoff: Backoff,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker { failures: 0, next_at: Nanos(0), backoff: Backoff::for_unreachable() }
    }
}

impl Breaker {
    /// Whether a call may be sent now. While it is open, only one is let through after each pause.
    ///
    /// # Errors
    /// How long the pause still is.
    pub(crate) fn admit(&mut self, now: Nanos, random: u64) -> Result<(), Duration> {
        if self.failures < FAILURES_MAX {
            return Ok(());
        }
        if now < self.next_at {
            return Err(self.next_at.since(now));
        }
        // The others wait for what this one hears.
        self.next_at = now.after(self.backoff.pause(random));
        Ok(())
    }

    /// The server answered, whatever it said.
    pub(crate) fn handle_answer(&mut self) {
        *self = Breaker::default();
    }

    /// The server did not answer.
    pub(crate) fn handle_failure(&mut self, now: Nanos, random: u64) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES_MAX {
            self.next_at = now.after(self.backoff.pause(random));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_server_is_asked_by_one_caller_at_a_time_and_ever_less_often() {
        let mut breaker = Breaker::default();
        let mut now = Nanos(0);
        for _ in 0..FAILURES_MAX {
            assert_eq!(breaker.admit(now, 0), Ok(()));
            breaker.handle_failure(now, 0);
        }
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let pause = breaker.admit(now, u64::MAX - 1).expect_err("it is open");
            pauses.push(pause);
            now = now.after(pause);
            assert_eq!(breaker.admit(now, u64::MAX - 1), Ok(()), "one goes through");
            assert!(breaker.admit(now, 0).is_err(), "and no other meanwhile");
            breaker.handle_failure(now, u64::MAX - 1);
        }
        assert!(pauses.last() > pauses.first(), "{pauses:?}");
    }

    #[test]
    fn one_answer_closes_it() {
        let mut breaker = Breaker::default();
        (0..10).for_each(|_| breaker.handle_failure(Nanos(0), 7));
        breaker.handle_answer();
        breaker.handle_failure(Nanos(0), 7);
        assert_eq!(breaker.admit(Nanos(0), 7), Ok(()));
    }
}
