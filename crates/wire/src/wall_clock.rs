//! Which wall-clock time each stamp of logical time was. For people; nothing is decided by it.
//!
//! Logical time stands still while there is no leader, so a stamp alone does not say when something happened. Each log entry carries
//! the leader's wall clock beside its stamp. The table keeps a row where the two have moved apart, so it stays short: one row for
//! each pause, and one for each second that a wall clock was set or has drifted. It depends on the log alone, so every replica has the
//! same table.

use std::collections::VecDeque;

use fencepost_core::LogicalMs;

use crate::bounds::{WALL_CLOCK_ROWS_MAX, WALL_CLOCK_STEP_MS};
use crate::error::WireError;
use crate::v1 as wire;

/// The wall-clock times of stamps. The oldest rows are dropped when it is full; stamps before the first row are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    /// From each row's stamp on, up to the next row, both clocks run alike.
    /// Invariant: the stamps rise strictly, and there are at most [`WALL_CLOCK_ROWS_MAX`] rows.
    rows: VecDeque<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    stamp: LogicalMs,
    /// The wall clock at that stamp, in milliseconds since 1970.
    wall_clock_ms: u64,
}

impl Row {
    fn at(&self, stamp: LogicalMs) -> u64 {
        self.wall_clock_ms.saturating_add(stamp.0.saturating_sub(self.stamp.0))
    }
}

impl WallClock {
    /// No times are known.
    pub const NONE: WallClock = WallClock { rows: VecDeque::new() };

    /// The wall clock at a stamp, in milliseconds since 1970, within [`WALL_CLOCK_STEP_MS`]. `None` if the stamp is older than the
    /// table.
    pub fn at(&self, stamp: LogicalMs) -> Option<u64> {
        let later = self.rows.partition_point(|row| row.stamp <= stamp);
        Some(self.rows[later.checked_sub(1)?].at(stamp))
    }

    /// Notes the wall clock of an entry. `before` is the stamp of the entry before it.
    pub fn note(&mut self, before: LogicalMs, stamp: LogicalMs, wall_clock_ms: u64) {
        let mut row = Row { stamp, wall_clock_ms };
        if let Some(newest) = self.rows.back() {
            // A new leader's first entry has the stamp of the last entry before the pause. What happened then keeps its time.
            if stamp <= before {
                let after = LogicalMs(before.0.saturating_add(1));
                row = Row { stamp: after, wall_clock_ms: row.at(after) };
            }
            if newest.at(row.stamp).abs_diff(row.wall_clock_ms) <= WALL_CLOCK_STEP_MS {
                return;
            }
            self.rows.pop_back_if(|newest| newest.stamp == row.stamp);
        }
        if self.rows.len() == WALL_CLOCK_ROWS_MAX {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
    }

    pub(crate) fn to_wire(&self) -> wire::WallClock {
        let row = |Row { stamp, wall_clock_ms }: &Row| wire::WallClockRow {
            stamp_ms: stamp.0,
            wall_clock_ms: *wall_clock_ms,
        };
        wire::WallClock { rows: self.rows.iter().map(row).collect() }
    }

    /// Takes only what [`WallClock::to_wire`] writes: at most [`WALL_CLOCK_ROWS_MAX`] rows, in order.
    pub(crate) fn from_wire(what: &'static str, wire: &wire::WallClock) -> Result<WallClock, WireError> {
        let damaged = |detail: &str| Err(WireError::Damaged { what, detail: detail.to_owned() });
        if wire.rows.len() > WALL_CLOCK_ROWS_MAX {
            return damaged("the table of wall-clock times has too many rows");
        }
        if !wire.rows.is_sorted_by(|one, next| one.stamp_ms < next.stamp_ms) {
            return damaged("the table of wall-clock times is not in order");
        }
        let row = |row: &wire::WallClockRow| Row { stamp: LogicalMs(row.stamp_ms), wall_clock_ms: row.wall_clock_ms };
        Ok(WallClock { rows: wire.rows.iter().map(row).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NINE: u64 = 9 * 3_600_000;

    fn at(clock: &WallClock, stamp: u64) -> Option<u64> {
        clock.at(LogicalMs(stamp)).map(|ms| ms - NINE)
    }

    /// Notes entries: each with its stamp, and its milliseconds after nine o'clock.
    fn noted(entries: &[(u64, u64)]) -> WallClock {
        let mut clock = WallClock::default();
        let mut before = LogicalMs(0);
        for (stamp, after_nine_ms) in entries {
            clock.note(before, LogicalMs(*stamp), NINE + after_nine_ms);
            before = LogicalMs(*stamp);
        }
        clock
    }

    #[test]
    fn a_pause_moves_later_stamps_and_no_earlier_ones() {
        let clock = noted(&[(0, 0), (5_000, 5_000), (5_500, 1_805_500), (6_000, 1_806_000)]);
        assert_eq!(clock.rows.len(), 2);
        assert_eq!([0, 5_000, 5_500, 7_000].map(|stamp| at(&clock, stamp)), [0, 5_000, 1_805_500, 1_807_000].map(Some));
    }

    #[test]
    fn what_happened_in_the_last_entry_before_a_failover_keeps_its_time() {
        let clock = noted(&[(0, 0), (5_000, 5_000), (5_000, 15_000), (5_000, 25_000), (5_001, 25_001)]);
        assert_eq!(at(&clock, 5_000), Some(5_000));
        assert_eq!(at(&clock, 5_001), Some(25_001));
        assert_eq!(clock.rows.len(), 2, "the second failover at one stamp replaces the row of the first");
    }

    #[test]
    fn a_clock_that_drifts_gets_a_row_a_second() {
        let entries: Vec<(u64, u64)> = (0..=100).map(|step| (step * 1_000, step * 1_100)).collect();
        let clock = noted(&entries);
        assert_eq!(clock.rows.len(), 10);
        for (stamp, after_nine_ms) in entries {
            assert!(at(&clock, stamp).is_some_and(|shown| shown.abs_diff(after_nine_ms) <= WALL_CLOCK_STEP_MS));
        }
    }

    #[test]
    fn a_clock_that_was_set_back_is_believed() {
        let clock = noted(&[(0, 60_000), (1_000, 61_000), (2_000, 2_000)]);
        assert_eq!([1_000, 2_000].map(|stamp| at(&clock, stamp)), [Some(61_000), Some(2_000)]);
    }

    #[test]
    fn a_full_table_forgets_its_oldest_rows() {
        let entries: Vec<(u64, u64)> = (0..=WALL_CLOCK_ROWS_MAX as u64).map(|step| (step, step * 2_000)).collect();
        let clock = noted(&entries);
        assert_eq!(clock.rows.len(), WALL_CLOCK_ROWS_MAX);
        assert_eq!([0, 1].map(|stamp| at(&clock, stamp)), [None, Some(2_000)]);
        assert_eq!(WallClock::default().at(LogicalMs(7)), None);
    }

    #[test]
    fn only_a_table_in_its_written_form_is_read() {
        let clock = noted(&[(0, 0), (10, 10_000), (20, 20_000)]);
        let good = clock.to_wire();
        assert_eq!(WallClock::from_wire("", &good), Ok(clock));
        let mut doubled = good.clone();
        doubled.rows.push(good.rows[2]);
        let mut disordered = good.clone();
        disordered.rows.reverse();
        let row = |stamp_ms| wire::WallClockRow { stamp_ms, wall_clock_ms: 0 };
        let too_long = wire::WallClock { rows: (0..=WALL_CLOCK_ROWS_MAX as u64).map(row).collect() };
        for bad in [doubled, disordered, too_long] {
            assert!(matches!(WallClock::from_wire("", &bad), Err(WireError::Damaged { .. })));
        }
    }
}
