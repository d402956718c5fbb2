//! The clock of the client: the only place that asks the operating system for the time of deadlines.
//!
//! A deadline is useless if its clock stops while the machine sleeps. So this clock counts through suspend. Deadlines of guards
//! are instants of this clock, and the machines of `fencepost-session` get the time from it as an argument.

pub use fencepost_core::Nanos;

/// The time now.
#[cfg(unix)]
pub fn now() -> Nanos {
    use rustix::time::{ClockId, clock_gettime};
    // Rule: holder-stops-first. On other systems than these, the monotonic clock counts through suspend.
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
