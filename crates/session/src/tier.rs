//! Which lock state a stream is about.

/// Which lock state a stream is about. A session belongs to one tier; the same id in the other tier is another session.
// Rule: tier-efficiency
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The replicated lock state, with fencing tokens.
    Correctness,
    /// The lock state in the leader's memory, for one term, without tokens.
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
