//! The periods of `--once-per`: each has a key, and every host whose clock is in the period computes the same one.
//!
//! Periods are counted in UTC, because the machines of a cluster may have several time zones and a day of 23 hours would run twice or never.

use std::time::Duration;

use fencepost_json::civil;

use crate::duration;

const SECOND_MS: u64 = 1_000;
const HOUR_MS: u64 = 60 * 60 * SECOND_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// How often a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Period {
    Hour,
    Day,
    /// From Monday to Sunday.
    Week,
    Month,
    /// This many milliseconds: whole seconds that divide a day, or whole days.
    Every(u64),
}

pub(crate) fn parse(text: &str) -> Result<Period, String> {
    let every = match text {
        "hour" => HOUR_MS,
        "day" => DAY_MS,
        "week" => return Ok(Period::Week),
        "month" => return Ok(Period::Month),
        _ => duration::parse(text)
            .map_err(|why| format!("not a period: write hour, day, week, month or a duration such as 15m ({why})"))?
            .as_millis() as u64,
    };
    match every {
        HOUR_MS => Ok(Period::Hour),
        DAY_MS => Ok(Period::Day),
        0..SECOND_MS => Err("the shortest period is a second: write 1s or more".to_owned()),
        _ if every.is_multiple_of(DAY_MS) => Ok(Period::Every(every)),
        _ if every.is_multiple_of(SECOND_MS) && DAY_MS.is_multiple_of(every) => Ok(Period::Every(every)),
        _ => Err(format!(
            "{} does not divide a day, so its periods would begin at another time each day: write one that does, such as 15m, 6h or 8h, \
             or whole days",
            duration::show(every)
        )),
    }
}

impl Period {
    /// The key of the period that an instant is in: its beginning. Keys of hours, days, weeks, months and durations differ in form, so
    /// jobs with one name and several periods are not taken for each other.
    pub(super) fn key(self, now: Duration) -> String {
        let now_ms = now.as_millis() as u64;
        let [year, month, day, hour, ..] = civil(now_ms);
        match self {
            Period::Month => format!("{year:04}-{month:02}"),
            Period::Week => week(now_ms / DAY_MS),
            Period::Day => format!("{year:04}-{month:02}-{day:02}"),
            Period::Hour => format!("{year:04}-{month:02}-{day:02}T{hour:02}Z"),
            Period::Every(every_ms) => {
                let [year, month, day, hour, minute, second] = civil(now_ms - now_ms % every_ms);
                let seconds =
                    if every_ms.is_multiple_of(60 * SECOND_MS) { String::new() } else { format!(":{second:02}") };
                format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}{seconds}Z")
            }
        }
    }
}

/// `2026-W47`, as ISO 8601 counts: a week belongs to the year of its Thursday.
fn week(days: u64) -> String {
    let year_of = |day: u64| civil(day * DAY_MS)[0];
    // The first day of 1970 was a Thursday.
    let thursday = days + 3 - (days + 3) % 7;
    let year = year_of(thursday);
    let before = (1..).take_while(|weeks| thursday >= weeks * 7 && year_of(thursday - weeks * 7) == year).count();
    format!("{year:04}-W{:02}", before + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instants as `date --utc +%s` has them, and weeks as `date --utc +%G-W%V`.
    #[test]
    fn the_key_is_the_beginning_of_the_period() {
        let at = |seconds: u64, period: &str| parse(period).unwrap().key(Duration::from_secs(seconds));
        // 2026-11-18 14:29:59, a Wednesday.
        let wednesday = 1_795_012_199;
        for (period, key) in [
            ("hour", "2026-11-18T14Z"),
            ("1h", "2026-11-18T14Z"),
            ("60m", "2026-11-18T14Z"),
            ("day", "2026-11-18"),
            ("24h", "2026-11-18"),
            ("week", "2026-W47"),
            ("month", "2026-11"),
            ("15m", "2026-11-18T14:15Z"),
            ("30m", "2026-11-18T14:00Z"),
            ("6h", "2026-11-18T12:00Z"),
            ("90s", "2026-11-18T14:28:30Z"),
            ("1s", "2026-11-18T14:29:59Z"),
            ("48h", "2026-11-17T00:00Z"),
        ] {
            assert_eq!(at(wednesday, period), key, "{period}");
        }
        assert_eq!(at(wednesday + 1, "15m"), "2026-11-18T14:30Z");
        assert_eq!(at(wednesday + 24 * 3_600, "48h"), "2026-11-19T00:00Z");
    }

    #[test]
    fn weeks_are_those_of_iso_8601() {
        for (seconds, key) in [
            (0, "1970-W01"),
            (1_104_451_200, "2004-W53"), // 2004-12-31, a Friday
            (1_104_537_600, "2004-W53"), // 2005-01-01, a Saturday
            (1_104_710_400, "2005-W01"), // 2005-01-03, a Monday
            (1_230_681_600, "2009-W01"), // 2008-12-31, a Wednesday
            (1_262_304_000, "2009-W53"), // 2010-01-01, a Friday
            (1_798_761_600, "2026-W53"), // 2027-01-01, a Friday
            (1_799_020_800, "2027-W01"), // 2027-01-04, a Monday
        ] {
            assert_eq!(Period::Week.key(Duration::from_secs(seconds)), key, "{seconds}");
        }
    }

    #[test]
    fn a_period_divides_a_day_or_is_whole_days() {
        for (text, said) in [
            ("7h", "7h does not divide a day"),
            ("25h", "does not divide a day"),
            ("0s", "1s or more"),
            ("500ms", "1s or more"),
            ("1500ms", "does not divide a day"),
            ("daily", "write hour, day, week, month or a duration"),
            ("", "write hour, day"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(said), "{text}: {why}");
        }
        assert_eq!((parse("7d"), parse("2d")), (Ok(Period::Every(7 * DAY_MS)), Ok(Period::Every(2 * DAY_MS))));
    }
}
