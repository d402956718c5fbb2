//! Words that the machines around the core share: an instant, a ticket, a position in the log.
//!
//! The core itself uses none of them. The replica, the session protocol and their drivers do, and none of these may depend on the
//! others for a word.

use std::time::Duration;

/// An instant of one machine's own monotonic clock, in nanoseconds from any beginning. Instants of two machines cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The instant that is later by `duration`.
    pub fn after(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_add(nanos(duration)))
    }

    /// The instant that is later by `ms` milliseconds.
    pub fn after_ms(self, ms: u64) -> Nanos {
        Nanos(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// The instant that is earlier by `duration`.
    pub fn before(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_sub(nanos(duration)))
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Names one submitted command, so that its reply finds its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A position in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// The index of the entry.
    pub index: u64,
    /// The term in which the entry was written.
    pub term: u64,
}
