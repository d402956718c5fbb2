//! Backoff: how long to pause before a retry.
//!
//! A pause is a random part of a duration that doubles up to a bound (full jitter), so that clients that failed together do not
//! retry together. This file does not sleep and draws no random numbers.

use std::time::Duration;

/// Pauses that grow up to a bound.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
    first: Duration,
}

impl Backoff {
    /// For a lock that another holder has. A waiter notices a release after about a tenth of a second at most.
    pub(crate) fn for_busy() -> Backoff {
        Backoff::new(Duration::from_millis(5), Duration::from_millis(100))
    }

    /// For a server that does not answer.
    pub(crate) fn for_unreachable() -> Backoff {
        Backoff::new(Duration::from_millis(50), Duration::from_secs(5))
    }

    fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { next: first, most, first }
    }

    /// The next pause. `random` is any number; it chooses the length within the bounds. A pause is never zero.
    pub(crate) fn pause(&mut self, random: u64) -> Duration {
        let most = self.next;
        self.next = (most * 2).min(self.most);
        let least = self.first / 5;
        least + Duration::from_nanos(random % (most - least).as_nanos().max(1) as u64)
    }

    /// Starts again with the shortest pause, after a success.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_never_zero() {
        let mut backoff = Backoff::for_busy();
        let longest: Vec<u128> = (0..7).map(|_| backoff.pause(u64::MAX - 1).as_millis()).collect();
        assert!(longest.iter().all(|pause| *pause <= 100), "{longest:?}");
        let mut backoff = Backoff::for_busy();
        assert!((0..50).all(|_| backoff.pause(0) >= Duration::from_millis(1)));
        let spread: std::collections::BTreeSet<u128> =
            (0..100u64).map(|seed| backoff.pause(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).as_millis()).collect();
        assert!(spread.len() > 30, "two waiters do not retry together: {spread:?}");
        backoff.reset();
        assert!(backoff.pause(u64::MAX) <= Duration::from_millis(5));
    }
}
