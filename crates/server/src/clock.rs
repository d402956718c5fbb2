//! The clock that a replica is turned by: monotonic, and not slewed by whoever sets the wall clock.

use fencepost_replica::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds since some moment before the process began.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::MonotonicRaw);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
