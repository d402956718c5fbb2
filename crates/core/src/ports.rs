//! Types that the crates around the core share: an instant, a ticket, a position in the log.
//!
//! The core itself uses none of them. They are here because the replica, the session protocol and their drivers all need
//! them and must not depend on each other.

use std::time::Duration;

/// An instant of one machine's monotonic clock, in nanoseconds since an arbitrary start. Instants of two machines cannot be
/// compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The instant `duration` later.
    pub fn after(self, duration: Duration) -> Nanos {
        Nanos(self.0.saturating_add(nanos(duration)))
    }

    /// The instant `ms` milliseconds later.
    pub fn after_ms(self, ms: u64) -> Nanos {
        Nanos(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// The instant `duration` earlier.
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

/// The id of one submitted command, by which its reply is returned to the submitter.
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
