//! Durations as people type and read them: a number and a unit.
//!
//! A unit is required: `5` could mean seconds or milliseconds. JSON output does not use this; it has milliseconds.

use std::time::Duration;

use fencepost_core::bounds::DURATION_MS_MAX;
use fencepost_core::shortened;

const EXAMPLES: &str = "write a number and a unit, like 500ms, 5s, 2m or 1h";

/// Parses `500ms`, `5s`, `1.5m`, `2h`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|it: char| it.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    if number.starts_with('-') {
        return Err(format!("a duration cannot be negative: {EXAMPLES}"));
    }
    let unit_ms = match unit {
        "ms" => 1.0,
        "s" => 1_000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        "" => return Err(format!("the unit is missing: {EXAMPLES}")),
        _ => return Err(format!("unknown unit {:?}: {EXAMPLES}", shortened(unit))),
    };
    // Only digits and a point: `f64` would also accept `inf`, `1e9` and `+1`.
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("{:?} is not a number: {EXAMPLES}", shortened(number)));
    }
    let number: f64 = number.parse().map_err(|_| format!("{:?} is not a number: {EXAMPLES}", shortened(number)))?;
    let ms = (number * unit_ms).round();
    if ms > DURATION_MS_MAX as f64 {
        return Err("longer than a year, which is the maximum: write a shorter duration".to_owned());
    }
    // Exact: `f64` represents every whole number up to a year in milliseconds.
    Ok(Duration::from_millis(ms as u64))
}

/// `1h 5m`, `12s`, `340ms`: two units at most, for people.
pub(crate) fn show(ms: u64) -> String {
    let (seconds, minutes, hours, days) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        _ => format!("{large}{large_unit} {small}{small_unit}"),
    };
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..10_000 => format!("{}.{}s", seconds, ms % 1_000 / 100),
        10_000..60_000 => format!("{seconds}s"),
        60_000..3_600_000 => two(minutes, "m", seconds % 60, "s"),
        3_600_000..86_400_000 => two(hours, "h", minutes % 60, "m"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_or_refused_with_what_to_write() {
        let read = [
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("365d", DURATION_MS_MAX),
        ];
        for (text, ms) in read {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        let refused = [
            ("", "unit is missing"),
            ("5", "unit is missing"),
            ("-5s", "cannot be negative"),
            ("s", "not a number"),
            ("5 s", "not a number"),
            ("1e9s", "unknown unit"),
            ("infs", "unknown unit"),
            ("1.2.3s", "not a number"),
            ("5parsec", "unknown unit"),
            ("366d", "longer than a year"),
            ("99999999999999999999999999h", "longer than a year"),
        ];
        for (text, part) in refused {
            let message = parse(text).expect_err(text);
            assert!(message.contains(part) && message.contains("write"), "{text}: {message}");
        }
    }

    #[test]
    fn durations_are_shown_with_two_units_at_most() {
        let shown = [
            (0, "0ms"),
            (999, "999ms"),
            (1_250, "1.2s"),
            (12_345, "12s"),
            (60_000, "1m"),
            (3_725_000, "1h 2m"),
            (90_000_000, "1d 1h"),
        ];
        for (ms, text) in shown {
            assert_eq!(show(ms), text);
        }
    }
}
