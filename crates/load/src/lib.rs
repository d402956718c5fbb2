//! Load on a lock system: contenders that take and release locks, and their latencies.
//!
//! `fencepost bench` loads a running cluster with it ([`live`]), and the comparison in `bench/` loads every system with the same loops
//! ([`pairs`]). It starts no servers. The only system that it knows is Fencepost.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | number formatting, the limit of open files, and this table |
//! | `contender.rs` | what a loop needs of a lock system, and a contender that uses the `fencepost` library |
//! | `pairs.rs` | closed and open loops of acquire and release, and their latencies |
//! | `alarm.rs` | waking a task at an instant, to some microseconds |
//! | `live.rs` | the load of `fencepost bench` on a running cluster |

pub mod contender;
pub mod live;
pub mod pairs;

mod alarm;

/// Formats a number without a fraction, with commas between thousands.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value <= -0.5 { format!("-{text}") } else { text }
}

/// Raises this process's limit of open files to what the system allows. Its child processes inherit the limit.
///
/// A thousand contenders with a connection each exceed the usual soft limit. If the limit cannot be raised, a contender that opens one
/// file too many gets the error.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
