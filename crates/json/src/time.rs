//! Wall-clock times, always in UTC: the machines of a cluster may have several time zones.

use fencepost_core::LogicalMs;
use fencepost_wire::api::observe::ReadAt;
use serde_json::Value;

/// `2026-11-18T16:02:03.123Z`, from milliseconds since 1970.
pub fn rfc_3339(ms: u64) -> String {
    let [year, month, day, hour, minute, second] = civil(ms);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1_000)
}

/// Year, month, day, hour, minute and second of an instant.
pub fn civil(ms: u64) -> [u64; 6] {
    let seconds = ms / 1_000;
    let (mut days, time) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // The calendar repeats after 400 years, which have 146,097 days.
    let mut year = 1970 + 400 * (days / 146_097);
    days %= 146_097;
    let year_days = |year: u64| if is_leap(year) { 366 } else { 365 };
    while days >= year_days(year) {
        (days, year) = (days - year_days(year), year + 1);
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        (days, month) = (days - length, month + 1);
    }
    [year, month, days + 1, time / 3_600, time / 60 % 60, time % 60]
}

/// Adds to JSON since when something is so: the wall-clock time and the age for people, `null` where they are unknown, and the stamp for
/// programs.
pub fn with_since(mut json: Value, at: &ReadAt, since: LogicalMs) -> Value {
    json["since"] = at.wall_clock.at(since).map(rfc_3339).into();
    json["age_ms"] = at.age(since).map(|age| age.as_millis() as u64).into();
    json["since_stamp_ms"] = since.0.into();
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What GNU `date --utc` prints for the same seconds.
    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599_007, "2024-12-31T23:59:59.007Z"),
            (1_763_481_723_123, "2025-11-18T16:02:03.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (12_622_780_800_000, "2370-01-01T00:00:00.000Z"),
            (253_402_300_799_000, "9999-12-31T23:59:59.000Z"),
        ];
        for (ms, text) in table {
            assert_eq!(rfc_3339(ms), text);
        }
    }
}
