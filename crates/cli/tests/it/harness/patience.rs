//! Waiting for something that must come, however busy the machine is.

use std::time::{Duration, Instant};

/// Nothing that works takes so long, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Looks again and again until there is something.
#[track_caller]
pub(crate) fn wait_until<Found>(what: &str, mut look: impl FnMut() -> Option<Found>) -> Found {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it took too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
