//! The one place that asks the operating system for the time.
//!
//! A deadline is worth nothing if the clock that measures it stops while the machine sleeps. So this is the clock that
//! counts through suspend, and everything else in the crate gets the time as an argument. Deadlines of guards are instants of this clock.

pub use fencepost_core::Nanos;

/// The time now.
#[cfg(unix)]
pub fn now() -> Nanos {
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
pub fn now() -> Nanos {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    Nanos(1).after(START.get_or_init(Instant::now).elapsed())
}
