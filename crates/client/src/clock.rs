//! The one place that asks the operating system for the time.
//!
//! A deadline is worth nothing if the clock that measures it stops while the machine sleeps. So this is the clock that
//! counts through suspend, and everything else in the crate gets the time as an argument.

use std::time::Duration;

/// An instant of this machine's own clock, in nanoseconds from some start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time now.
    pub fn now() -> Nanos {
        now()
    }

    /// So much later.
    pub fn after(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_add(nanos(duration)))
    }

    /// So much earlier.
    pub fn before(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_sub(nanos(duration)))
    }

    /// How long after `earlier` this is; nothing if it is not.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The time now.
#[cfg(unix)]
pub(crate) fn now() -> Nanos {
    use rustix::time::{ClockId, clock_gettime};
    // Rule: holder-stops-first. Where it is not called so, the monotonic clock is the one that counts through suspend.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The time now.
#[cfg(not(unix))]
pub(crate) fn now() -> Nanos {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    Nanos(nanos(START.get_or_init(Instant::now).elapsed()) + 1)
}
