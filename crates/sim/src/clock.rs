//! The monotonic clocks of the simulated processes. Each has its own start and rate; no clock shows the world's time.
//!
//! The rates stay within what the client library allows for. Wall clocks are not here: nodes have an offset for theirs.

use crate::fact::WorldTime;
use crate::random::Random;

/// Nanoseconds that the fastest and the slowest clock count in a million real ones. Two clocks differ by less than one percent, which is
/// the margin of the client library.
// Rule: holder-stops-first
const RATE_MOST: u64 = 1_004_900;
const RATE_LEAST: u64 = 995_100;

/// A monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: u64,
    rate: u64,
}

impl Clock {
    /// A random clock.
    pub(crate) fn draw(random: &mut Random) -> Clock {
        Clock { start: random.below(1 << 40), rate: random.between(RATE_LEAST, RATE_MOST) }
    }

    /// What the clock shows at this world time.
    pub(crate) fn shows(&self, now: WorldTime) -> u64 {
        self.start + (u128::from(now.0) * u128::from(self.rate) / 1_000_000) as u64
    }

    /// The earliest world time at which the clock shows this.
    pub(crate) fn when(&self, shown: u64) -> WorldTime {
        let counted = u128::from(shown.saturating_sub(self.start));
        WorldTime((counted * 1_000_000).div_ceil(u128::from(self.rate)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_is_the_earliest_time_that_shows_the_value() {
        let mut random = Random::new(1);
        for _ in 0..1_000 {
            let clock = Clock::draw(&mut random);
            let shown = clock.shows(WorldTime(0)) + random.below(1 << 50);
            let when = clock.when(shown);
            assert!(clock.shows(when) >= shown);
            assert!(when.0 == 0 || clock.shows(WorldTime(when.0 - 1)) <= shown);
        }
    }
}
