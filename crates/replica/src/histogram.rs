//! A histogram of durations, for operators. It decides nothing and reads no clock.
//!
//! Several threads may observe while another one reads. An observation costs two relaxed additions, and allocates nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in nanoseconds: from a tenth of a millisecond, which a sync of a fast disk takes, to five minutes,
/// which a request may wait. All histograms have the same buckets. A last bucket without a bound follows.
const BOUNDS_NS: [u64; 19] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    300_000_000_000,
];

/// Durations, counted by buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Observations in each bucket, not added up.
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

/// The content of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Each bucket's upper bound, and the number of observations up to it. The last bucket has no bound and counts everything.
    pub buckets: Vec<(Option<Duration>, u64)>,
    /// The sum of all observations. While another thread observes, it may include one that `buckets` lacks.
    pub sum: Duration,
}

impl Histogram {
    /// Adds a duration.
    pub fn observe(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// What was observed up to now.
    pub fn observed(&self) -> Observed {
        let bounds = BOUNDS_NS.iter().map(|bound| Some(Duration::from_nanos(*bound))).chain([None]);
        let mut count = 0;
        let buckets = self.buckets.iter().zip(bounds).map(|(bucket, bound)| {
            count += bucket.load(Ordering::Relaxed);
            (bound, count)
        });
        Observed { buckets: buckets.collect(), sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)) }
    }
}

impl Observed {
    /// The number of all observations.
    pub fn count(&self) -> u64 {
        self.buckets.last().map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_counts_in_each_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::default();
        for ns in [0, 100_000, 100_001, 400_000_000_000] {
            histogram.observe(Duration::from_nanos(ns));
        }
        let observed = histogram.observed();
        assert_eq!(observed.buckets[0], (Some(Duration::from_micros(100)), 2), "a bound belongs to its bucket");
        assert_eq!(observed.buckets[1], (Some(Duration::from_micros(250)), 3));
        assert_eq!(observed.buckets.last(), Some(&(None, 4)));
        assert_eq!((observed.count(), observed.sum), (4, Duration::from_nanos(400_000_200_001)));
        assert!(BOUNDS_NS.is_sorted());
    }
}
