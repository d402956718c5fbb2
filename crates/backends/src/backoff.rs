//! How long to wait before asking again: a random part of a time that doubles (full jitter), so that those who failed together
//! do not come back together.

use std::time::Duration;

/// Pauses that grow.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    most: Duration,
    first: Duration,
}

impl Backoff {
    /// For a lock that somebody else has. Whoever waits should not find out much later than a tenth of a second.
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

    /// The next pause. `random` is any number; it decides how long, within the bounds. Never nothing at all.
    pub(crate) fn pause(&mut self, random: u64) -> Duration {
        let most = self.next;
        self.next = (most * 2).min(self.most);
        let least = self.first / 5;
        least + Duration::from_nanos(random % (most - least).as_nanos().max(1) as u64)
    }

    /// It went well: begin anew.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_never_nothing() {
        let mut backoff = Backoff::for_busy();
        let longest: Vec<u128> = (0..7).map(|_| backoff.pause(u64::MAX - 1).as_millis()).collect();
        assert!(longest.iter().all(|pause| *pause <= 100), "{longest:?}");
        let mut backoff = Backoff::for_busy();
        assert!((0..50).all(|_| backoff.pause(0) >= Duration::from_millis(1)));
        let spread: std::collections::BTreeSet<u128> =
            (0..100u64).map(|seed| backoff.pause(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).as_millis()).collect();
        assert!(spread.len() > 30, "two who wait do not come back together: {spread:?}");
        backoff.reset();
        assert!(backoff.pause(u64::MAX) <= Duration::from_millis(5));
    }
}
