//! What locks are for: correctness or efficiency.

/// What locks are for, and so which lock state keeps them. A session belongs to one tier; the same id in the other tier is another
/// session.
// Rule: tier-efficiency
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Data depends on the locks: they have fencing tokens. The replicated lock state keeps them.
    Correctness,
    /// The locks save work that may now and then be done twice: they have no tokens. The leader keeps them in memory, for one term.
    Efficiency,
}

/// Set in the group number of an efficiency tier. The term stands beside it: each term has a group of its own. Replicated groups count
/// from one.
// Rule: tier-efficiency
const EFFICIENCY_GROUPS: u64 = 1 << 63;

impl Tier {
    /// The group number that a stream of this tier is greeted with.
    pub(crate) fn group(self, replicated: u64, term: u64) -> u64 {
        match self {
            Tier::Correctness => replicated,
            Tier::Efficiency => EFFICIENCY_GROUPS | term,
        }
    }
}
