//! The leader's logical clock: how monotonic nanoseconds become stamps that never run faster than real time.
//!
//! A stamp is a base plus the whole milliseconds in the nanoseconds counted since the base. Nothing is rounded twice, so nothing
//! drifts. A leader that stalls between two turns stalls time. Late is safe; early would end the leases of clients that are
//! alive. The clock reads no system clock: instants come in as arguments.

use fencepost_core::{LogicalMs, Nanos};

use crate::bounds::TURN_MS_MAX;
use crate::planted::at_the_speed_of_the_clock;

/// The clock of one leader in one term.
#[derive(Clone, Debug)]
pub(crate) struct StampClock {
    base: LogicalMs,
    counted_ns: u64,
    last_turn: Nanos,
}

impl StampClock {
    /// Starts to count at `base`. For a leader that is the stamp of the first entry of its term, when that entry is applied.
    pub(crate) fn new(base: LogicalMs, now: Nanos) -> StampClock {
        StampClock { base, counted_ns: 0, last_turn: now }
    }

    /// Counts the time since the last turn. A clock that seems to go back counts nothing.
    pub(crate) fn turn(&mut self, now: Nanos) {
        let passed = now.0.saturating_sub(self.last_turn.0);
        self.counted_ns += passed.min(TURN_MS_MAX * 1_000_000);
        self.last_turn = self.last_turn.max(now);
    }

    /// When the clock reaches this stamp, if no turn is longer than [`TURN_MS_MAX`].
    pub(crate) fn reaches(&self, stamp: LogicalMs) -> Nanos {
        let to_count_ns = stamp.0.saturating_sub(self.base.0).saturating_mul(1_000_000);
        Nanos(self.last_turn.0.saturating_add(to_count_ns.saturating_sub(self.counted_ns)))
    }

    /// The stamp as of the last turn.
    pub(crate) fn stamp(&self) -> LogicalMs {
        LogicalMs(self.base.0 + at_the_speed_of_the_clock(self.counted_ns) / 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_short_turns_lose_no_time() {
        let mut clock = StampClock::new(LogicalMs(10), Nanos(0));
        for turn in 1..=3_000_000 {
            clock.turn(Nanos(turn * 333));
        }
        assert_eq!(clock.stamp(), LogicalMs(10 + 999));
    }

    #[test]
    fn a_leader_that_slept_has_stalled_time() {
        let mut clock = StampClock::new(LogicalMs(0), Nanos(0));
        clock.turn(Nanos(0).after_ms(40_000));
        assert_eq!(clock.stamp(), LogicalMs(TURN_MS_MAX));
    }

    #[test]
    fn a_clock_that_goes_back_counts_nothing_twice() {
        let mut clock = StampClock::new(LogicalMs(0), Nanos(0).after_ms(100));
        for ms in [200, 150, 200, 300] {
            clock.turn(Nanos(0).after_ms(ms));
        }
        assert_eq!(clock.stamp(), LogicalMs(200));
    }
}
