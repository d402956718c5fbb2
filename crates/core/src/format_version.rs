//! The format version: one number for log entries, snapshot records and the rules of `apply`.
//!
//! The whole cluster uses one version at a time, the active one. The state's header holds it, and only an entry of the
//! leader raises it. Every rule that differs between versions is one function here, so that replicas of different builds
//! decide the same. Which versions the members know is not decided here but in the replica. The reasons are in
//! `docs/decisions/0021-format-versions.md`.

use std::fmt::{self, Display, Formatter};
use std::num::NonZeroU32;

use crate::bounds;
use crate::command::Operation;

/// A version of log entries, snapshot records and rules. Versions count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FormatVersion(NonZeroU32);

impl FormatVersion {
    /// The first version. A new group begins with it; its first leader raises it to the newest version that all members know.
    pub const FIRST: FormatVersion = FormatVersion(NonZeroU32::MIN);

    /// A version that no release has: it adds a record and an operation and changes a rule. Tests upgrade nodes to it.
    #[cfg(feature = "made-up-version")]
    pub const MADE_UP: FormatVersion = FormatVersion(NonZeroU32::new(2).expect("two is not zero"));

    /// The version with this number. `None` for zero.
    pub const fn new(number: u32) -> Option<FormatVersion> {
        match NonZeroU32::new(number) {
            Some(number) => Some(FormatVersion(number)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }

    /// How many holders a busy answer names at most. The made-up version names one.
    pub(crate) fn busy_holders_shown_max(self) -> usize {
        #[cfg(feature = "made-up-version")]
        if self >= FormatVersion::MADE_UP {
            return 1;
        }
        bounds::BUSY_HOLDERS_SHOWN_MAX
    }
}

impl Default for FormatVersion {
    fn default() -> FormatVersion {
        FormatVersion::FIRST
    }
}

impl Display for FormatVersion {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// The versions that a node knows: it can read and write each of them, and has the rules of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KnownVersions {
    oldest: FormatVersion,
    newest: FormatVersion,
}

impl KnownVersions {
    /// The versions that this build knows.
    pub const THIS_BUILD: KnownVersions = KnownVersions { oldest: FormatVersion::FIRST, newest: FormatVersion::FIRST };

    /// The versions of a build that also has the made-up version.
    #[cfg(feature = "made-up-version")]
    pub const WITH_MADE_UP: KnownVersions =
        KnownVersions { oldest: FormatVersion::FIRST, newest: FormatVersion::MADE_UP };

    /// All versions from the oldest to the newest, both included. `None` if the oldest is newer than the newest.
    pub fn new(oldest: FormatVersion, newest: FormatVersion) -> Option<KnownVersions> {
        (oldest <= newest).then_some(KnownVersions { oldest, newest })
    }

    /// The oldest known version.
    pub fn oldest(self) -> FormatVersion {
        self.oldest
    }

    /// The newest known version.
    pub fn newest(self) -> FormatVersion {
        self.newest
    }

    /// Whether this version is known.
    pub fn contains(self, version: FormatVersion) -> bool {
        self.oldest <= version && version <= self.newest
    }
}

/// `1`, or `1 to 3`.
impl Display for KnownVersions {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let KnownVersions { oldest, newest } = self;
        if oldest == newest { write!(out, "{oldest}") } else { write!(out, "{oldest} to {newest}") }
    }
}

impl Operation {
    /// The oldest version that has this operation. While an older version is active, the operation is refused, and no log
    /// entry holds it.
    pub fn needs(&self) -> FormatVersion {
        match self {
            #[cfg(feature = "made-up-version")]
            Operation::MadeUp(_) => FormatVersion::MADE_UP,
            Operation::Open(_) | Operation::Request(_) | Operation::Admin(_) => FormatVersion::FIRST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_versions_are_a_range_with_both_ends() {
        let version = |number| FormatVersion::new(number).expect("not zero");
        let known = KnownVersions::new(version(2), version(4)).expect("the newest is not older");
        let contained: Vec<u32> = (1..=5).filter(|number| known.contains(version(*number))).collect();
        assert_eq!(contained, [2, 3, 4]);
        assert_eq!(known.to_string(), "2 to 4");
        assert_eq!(KnownVersions::new(version(3), version(3)).map(|known| known.to_string()).as_deref(), Some("3"));
        assert_eq!(KnownVersions::new(version(3), version(2)), None);
        assert_eq!(FormatVersion::new(0), None);
    }
}
