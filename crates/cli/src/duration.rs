//! Durations as people type and read them. The library reads them, because settings have durations, too. JSON output does not use this; it
//! has milliseconds.

pub(crate) use fencepost::settings::parse_duration as parse;

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
