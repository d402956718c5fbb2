//! The two tiers of locks, correctness and efficiency, and the group number that tells them apart on the wire.
//!
//! The edge uses it to pick the lock state of a stream. What the tiers promise stands in docs/semantics.md.

/// The purpose of a lock, which decides which lock state keeps it. A session belongs to one tier; the same id in the other tier is
/// another session.
// Rule: tier-efficiency
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Data depends on the locks: they have fencing tokens. The replicated lock state keeps them.
    Correctness,
    /// The locks only avoid double work, so they have no tokens. The leader keeps them in memory, for one term.
    Efficiency,
}

/// The bit that marks the group number of an efficiency tier. The other bits are the term, so each term has its own group. Replicated
/// groups count from one.
// Rule: tier-efficiency
const EFFICIENCY_GROUPS: u64 = 1 << 63;

impl Tier {
    /// The group number in the hello of a stream of this tier.
    pub(crate) fn group(self, replicated: u64, term: u64) -> u64 {
        match self {
            Tier::Correctness => replicated,
            Tier::Efficiency => EFFICIENCY_GROUPS | term,
        }
    }
}
