//! The clock that a replica is turned by: monotonic, and not slewed by whoever sets the wall clock. And the wall clock, for remarks.
use fencepost_core::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds since some moment before the process began.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::MonotonicRaw);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// What the wall clock says, in milliseconds since 1970. For people; nothing is decided by it.
pub(crate) fn wall_ms() -> u64 {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    time.tv_sec.max(0) as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000
}
