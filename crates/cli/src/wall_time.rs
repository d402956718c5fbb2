//! Wall-clock times as people read them in sentences and tables. `fencepost_json` has the form for programs.

use fencepost_json::civil;

/// `2026-11-18 16:02:03 UTC`, from milliseconds since 1970.
pub(crate) fn for_people(ms: u64) -> String {
    let [year, month, day, hour, minute, second] = civil(ms);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_people_are_short() {
        assert_eq!(for_people(1_763_481_723_123), "2025-11-18 16:02:03 UTC");
    }
}
