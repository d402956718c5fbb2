//! Waiting for something that must come, however busy the machine is.

use std::time::{Duration, Instant};

/// How long a test waits. Code that works is faster, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `look` until it returns a value.
#[track_caller]
pub(crate) fn wait_until<Found>(what: &str, mut look: impl FnMut() -> Option<Found>) -> Found {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out while waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
