//! When a lease ends: the lease of a session, and that of a lock with a TTL of its own.
//!
//! A lease runs from its last renewal. A fail-over lifts every lease, but is stored as one number, the stamp of the new
//! leader's first entry: a lifted deadline is computed when it is needed, and no lease is updated. In the same way, one
//! keep-alive renews all locks of a session without touching each of them.

use std::collections::BTreeSet;

use crate::bounds::FAILOVER_GRACE_MS;
use crate::words::{GrantId, LogicalMs, Ttl};

/// The deadline of a lease that was last renewed at `renewed_at`.
///
/// A fail-over at `grace_at` lifts it to at least `grace_at` plus the TTL or the grace, whichever is less. It never adds
/// more than the grace to the plain deadline.
// Rule: failover-grace
pub(crate) fn deadline(renewed_at: LogicalMs, ttl: Ttl, grace_at: Option<LogicalMs>) -> LogicalMs {
    let ttl_ms = ttl.millis().get();
    let plain = renewed_at.0 + ttl_ms;
    let lifted = match grace_at {
        Some(grace_at) if grace_at >= renewed_at => {
            (grace_at.0 + ttl_ms.min(FAILOVER_GRACE_MS)).min(plain + FAILOVER_GRACE_MS)
        }
        _ => plain,
    };
    LogicalMs(plain.max(lifted))
}

/// The locks of one session that have a TTL of their own.
///
/// The first keep-alive after a grant moves it from `fresh` to `renewed`. Later keep-alives renew it without touching it,
/// because all locks in `renewed` run from the session's last keep-alive.
// Rule: ttl
#[derive(Clone, Debug, Default)]
pub(crate) struct LockTtls {
    /// Granted before the last keep-alive. Each runs from that keep-alive.
    renewed: BTreeSet<(Ttl, GrantId)>,
    /// Granted since the last keep-alive. Each runs from its own grant. Ordered by the deadline without grace, which a grace
    /// can only lift.
    fresh: BTreeSet<(LogicalMs, Ttl, GrantId)>,
}

impl LockTtls {
    /// Adds a grant. Its session was last renewed at `renewed_at`; that is after `granted_at` only if the grant comes from a
    /// snapshot.
    pub(crate) fn insert(&mut self, granted_at: LogicalMs, ttl: Ttl, grant: GrantId, renewed_at: LogicalMs) {
        if renewed_at > granted_at {
            self.renewed.insert((ttl, grant));
        } else {
            self.fresh.insert((granted_at.after(ttl.millis()), ttl, grant));
        }
    }

    pub(crate) fn remove(&mut self, granted_at: LogicalMs, ttl: Ttl, grant: GrantId) {
        let was_there =
            self.fresh.remove(&(granted_at.after(ttl.millis()), ttl, grant)) || self.renewed.remove(&(ttl, grant));
        assert!(was_there, "grant {} has a TTL that its session does not know", grant.0);
    }

    /// A keep-alive: from now on, all locks run from it.
    pub(crate) fn renew(&mut self) {
        for (_, ttl, grant) in std::mem::take(&mut self.fresh) {
            self.renewed.insert((ttl, grant));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.renewed.is_empty() && self.fresh.is_empty()
    }

    /// The earliest deadline of these locks.
    pub(crate) fn earliest(&self, renewed_at: LogicalMs, grace_at: Option<LogicalMs>) -> Option<LogicalMs> {
        // These all run from the same keep-alive, so the shortest TTL ends first, with or without a grace.
        let mut earliest = self.renewed.first().map(|(ttl, _)| deadline(renewed_at, *ttl, grace_at));
        for (plain, ttl, _) in &self.fresh {
            if earliest.is_some_and(|earliest| earliest <= *plain) {
                break;
            }
            let deadline = fresh_deadline(*plain, *ttl, grace_at);
            earliest = Some(earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        }
        earliest
    }

    /// The grants whose deadline the stamp has reached.
    pub(crate) fn due(
        &self,
        stamp: LogicalMs,
        renewed_at: LogicalMs,
        grace_at: Option<LogicalMs>,
    ) -> impl Iterator<Item = GrantId> + '_ {
        let renewed = self
            .renewed
            .iter()
            .take_while(move |(ttl, _)| deadline(renewed_at, *ttl, grace_at) <= stamp)
            .map(|(_, grant)| *grant);
        let fresh = self
            .fresh
            .iter()
            .take_while(move |(plain, ..)| *plain <= stamp)
            .filter(move |(plain, ttl, _)| fresh_deadline(*plain, *ttl, grace_at) <= stamp)
            .map(|(.., grant)| *grant);
        renewed.chain(fresh)
    }
}

fn fresh_deadline(plain: LogicalMs, ttl: Ttl, grace_at: Option<LogicalMs>) -> LogicalMs {
    deadline(LogicalMs(plain.0 - ttl.millis().get()), ttl, grace_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(renewed: u64, ttl: u64, grace: Option<u64>) -> u64 {
        deadline(LogicalMs(renewed), Ttl::new(ttl).unwrap(), grace.map(LogicalMs)).0
    }

    #[test]
    fn a_fail_over_lifts_by_no_more_than_the_grace() {
        assert_eq!(at(0, 30_000, None), 30_000);
        assert_eq!(at(0, 30_000, Some(10_000)), 30_000, "a lease that ends much later is not lifted");
        assert_eq!(
            at(0, 30_000, Some(29_000)),
            32_000,
            "the lease lasts for at least three seconds after the fail-over"
        );
        assert_eq!(at(0, 30_000, Some(32_500)), 33_000, "two fail-overs together add no more than the grace");
        assert_eq!(at(0, 1_000, Some(900)), 1_900, "a short lease gets at most its own TTL");
        assert_eq!(at(5_000, 1_000, Some(900)), 6_000, "a renewal after the fail-over gets no grace");
    }

    #[test]
    fn the_earliest_deadline_is_the_least_of_all() {
        // Compared with all deadlines, over several graces and with grants in both sets.
        for grace in [None, Some(0), Some(1_500), Some(2_900), Some(9_000)] {
            let grace = grace.map(LogicalMs);
            let mut ttls = LockTtls::default();
            let mut all = Vec::new();
            for (id, (granted, ttl)) in
                [(0, 9_000), (100, 5_000), (1_000, 1_000), (1_400, 1_200), (2_000, 3_000)].into_iter().enumerate()
            {
                let (granted, ttl) = (LogicalMs(granted), Ttl::new(ttl).unwrap());
                if id == 2 {
                    ttls.renew();
                }
                ttls.insert(granted, ttl, GrantId(id as u64), LogicalMs(if id < 2 { 0 } else { 500 }));
                all.push(deadline(granted.max(LogicalMs(500)), ttl, grace));
            }
            assert_eq!(ttls.earliest(LogicalMs(500), grace), all.iter().copied().min(), "{grace:?}");
            for stamp in (0..15_000).step_by(100).map(LogicalMs) {
                let mut due: Vec<u64> = ttls.due(stamp, LogicalMs(500), grace).map(|grant| grant.0).collect();
                due.sort();
                let expected: Vec<u64> = (0..5).filter(|id| all[*id as usize] <= stamp).collect();
                assert_eq!(due, expected, "{grace:?} {stamp:?}");
            }
        }
    }
}
