//! The circuit breaker: treats a server as dead after several failures, so that callers get an error at once instead of waiting.
//!
//! After a few failures in a row the breaker opens, and calls fail without being sent. After a pause it admits one call as a
//! probe. The pauses grow while the probes fail. One answer closes the breaker. It sends nothing itself: `now` is an argument.

use std::time::Duration;

use fencepost::Nanos;

use crate::backoff::Backoff;

/// Failures in a row after which the breaker opens.
const FAILURES_MAX: u32 = 3;

/// The breaker of one system, of one server or several.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    failures: u32,
    /// When the open breaker admits the next call.
    next_at: Nanos,
    backoff: Backoff,
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker { failures: 0, next_at: Nanos(0), backoff: Backoff::for_unreachable() }
    }
}

impl Breaker {
    /// Whether a call may be sent now. An open breaker admits one call after each pause.
    ///
    /// # Errors
    /// The rest of the pause.
    pub(crate) fn admit(&mut self, now: Nanos, random: u64) -> Result<(), Duration> {
        if self.failures < FAILURES_MAX {
            return Ok(());
        }
        if now < self.next_at {
            return Err(self.next_at.since(now));
        }
        // Only this call probes the server. The other calls fail until the next pause is over.
        self.next_at = now.after(self.backoff.pause(random));
        Ok(())
    }

    /// The server answered. A refusal counts as an answer.
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
    fn an_open_breaker_admits_one_call_after_each_pause_and_the_pauses_grow() {
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
            assert_eq!(breaker.admit(now, u64::MAX - 1), Ok(()), "one call is admitted");
            assert!(breaker.admit(now, 0).is_err(), "the next call is not");
            breaker.handle_failure(now, u64::MAX - 1);
        }
        assert!(pauses.last() > pauses.first(), "{pauses:?}");
    }

    #[test]
    fn one_answer_closes_the_breaker() {
        let mut breaker = Breaker::default();
        (0..10).for_each(|_| breaker.handle_failure(Nanos(0), 7));
        breaker.handle_answer();
        breaker.handle_failure(Nanos(0), 7);
        assert_eq!(breaker.admit(Nanos(0), 7), Ok(()));
    }
}
