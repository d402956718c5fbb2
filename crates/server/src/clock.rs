//! The clocks of a node: the monotonic clock that drives the replica, and the wall clock for people.
//!
//! The monotonic clock is the raw one, which time synchronization does not slew. No decision uses the wall clock.
use fencepost_core::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds since a fixed moment before the process began.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::MonotonicRaw);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The wall clock, in milliseconds since 1970. For people; no decision uses it.
pub(crate) fn wall_ms() -> u64 {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    time.tv_sec.max(0) as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000
}
