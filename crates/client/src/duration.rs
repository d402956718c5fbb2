//! Durations as people type them: `1h30m`, `500ms`, or a number of seconds, as in `flock -w 5`. For settings and flags.

use std::time::Duration;

use fencepost_core::bounds::DURATION_MS_MAX;
use fencepost_core::shortened;

const EXAMPLES: &str = "write seconds, like 5, or numbers with units, like 500ms, 5s, 2m or 1h30m";

/// Milliseconds in each unit, the largest first.
const UNITS: [(&str, f64); 6] =
    [("d", 86_400_000.0), ("h", 3_600_000.0), ("m", 60_000.0), ("min", 60_000.0), ("s", 1_000.0), ("ms", 1.0)];

/// Parses `500ms`, `1.5m`, `1h30m` and `1h 30m`; without a unit it is seconds.
///
/// # Errors
/// A sentence that says what is wrong, and what to write.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err(format!("a duration cannot be negative: {EXAMPLES}"));
    }
    let ms = match number(text) {
        Ok(seconds) => seconds * 1_000.0,
        Err(_) => sum_of_parts(text)?,
    };
    if ms > DURATION_MS_MAX as f64 {
        return Err("longer than a year, which is the maximum: write a shorter duration".to_owned());
    }
    // Exact: `f64` represents every whole number up to a year in milliseconds.
    Ok(Duration::from_millis(ms.round() as u64))
}

/// The sum of parts such as `1h` and `30m`, in milliseconds. Each unit is smaller than the one before it.
fn sum_of_parts(text: &str) -> Result<f64, String> {
    let (mut rest, mut sum_ms, mut unit_before_ms) = (text.trim(), 0.0, f64::INFINITY);
    loop {
        let unit_at = rest.find(|it: char| it.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(unit_at);
        let end = after.find(|it: char| !it.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if digits.is_empty() {
            return Err(format!("{:?} does not begin with a number: {EXAMPLES}", shortened(rest)));
        }
        let number = number(digits)?;
        if unit.is_empty() {
            return Err(format!("the unit of {} is missing: {EXAMPLES}", shortened(digits)));
        }
        let Some((_, unit_ms)) = UNITS.into_iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit {:?}: {EXAMPLES}", shortened(unit)));
        };
        if unit_ms >= unit_before_ms {
            return Err(format!("{unit} comes after a unit that is not larger: {EXAMPLES}"));
        }
        (sum_ms, unit_before_ms, rest) = (sum_ms + number * unit_ms, unit_ms, after.trim_start());
        if rest.is_empty() {
            return Ok(sum_ms);
        }
    }
}

/// Only digits and a point: `f64` would also accept `inf`, `1e9` and `+1`.
fn number(text: &str) -> Result<f64, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = text.parse().ok().filter(|_| is_plain);
    number.ok_or_else(|| format!("{:?} is not a number: {EXAMPLES}", shortened(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_or_refused_with_what_to_write() {
        let read = [
            ("0", 0),
            ("5", 5_000),
            ("0.5", 500),
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("1m30.5s", 90_500),
            ("365d", DURATION_MS_MAX),
        ];
        for (text, ms) in read {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        let refused = [
            ("", "does not begin with a number"),
            ("1h30", "the unit of 30 is missing"),
            ("30m1h", "h comes after a unit that is not larger"),
            ("1m1min", "min comes after a unit that is not larger"),
            ("1h-5m", "not a number"),
            ("-5s", "cannot be negative"),
            ("-5", "cannot be negative"),
            ("s", "does not begin with a number"),
            ("5 s", "not a number"),
            ("1e9s", "unknown unit"),
            ("infs", "does not begin with a number"),
            ("inf", "does not begin with a number"),
            ("1.2.3s", "not a number"),
            ("5parsec", "unknown unit"),
            ("366d", "longer than a year"),
            ("99999999999999999999999999h", "longer than a year"),
        ];
        for (text, part) in refused {
            let message = parse_duration(text).expect_err(text);
            assert!(message.contains(part) && message.contains("write"), "{text}: {message}");
        }
    }
}
