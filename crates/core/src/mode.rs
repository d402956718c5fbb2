//! The six lock modes: which pairs are compatible, and which mode two of them merge to.
//!
//! This file is the table of the rule `exclusion`. It decides every conflict in the core, and nothing else.

use std::fmt;

/// A mode that a user may ask for. The order is by strength: a stronger mode allows everything that a weaker one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockMode {
    /// S: reads beside other readers.
    Shared,
    /// U: reads beside other readers and may become exclusive. Only one owner can have it.
    Update,
    /// X: no other owner holds anything.
    Exclusive,
}

impl LockMode {
    /// The mode on the resource itself.
    pub fn mode(self) -> Mode {
        match self {
            LockMode::Shared => Mode::S,
            LockMode::Update => Mode::U,
            LockMode::Exclusive => Mode::X,
        }
    }

    /// The intention on every ancestor of a path.
    pub fn intention(self) -> Mode {
        match self {
            LockMode::Shared => Mode::IS,
            LockMode::Update | LockMode::Exclusive => Mode::IX,
        }
    }
}

/// A mode on a resource: one that a user asked for, or an intention that a lock below it needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mode {
    /// Intention: its owner reads below.
    IS,
    /// Intention: its owner writes below.
    IX,
    /// Shared.
    S,
    /// Update: reads, and is the next to write.
    U,
    /// Shared, with the intention to write below.
    SIX,
    /// Exclusive.
    X,
}

impl Mode {
    /// All modes, in the order of the table of the rule `exclusion`.
    pub const ALL: [Mode; 6] = [Mode::IS, Mode::IX, Mode::S, Mode::U, Mode::SIX, Mode::X];

    /// The modes that no other owner may hold beside this one.
    // Rule: exclusion
    pub const fn conflicts(self) -> ModeSet {
        use Mode::*;
        let compatible = match self {
            IS => ModeSet::of(&[IS, IX, S, U, SIX]),
            IX => ModeSet::of(&[IS, IX]),
            S => ModeSet::of(&[IS, S, U]),
            U => ModeSet::of(&[IS, S]),
            SIX => ModeSet::of(&[IS]),
            X => ModeSet::of(&[]),
        };
        compatible.complement()
    }

    /// Whether another owner may hold `other` beside this one.
    pub const fn compatible(self, other: Mode) -> bool {
        !self.conflicts().contains(other)
    }

    /// The weakest mode that allows everything that either of the two does.
    // Rule: hierarchy
    pub fn merge(self, other: Mode) -> Mode {
        use Mode::*;
        match (self.min(other), self.max(other)) {
            (a, b) if a == b => a,
            (IS, b) => b,
            (_, X) => X,
            (S, U) => U,
            // IX with S or U, and SIX with anything but X.
            _ => SIX,
        }
    }

    /// Whether this mode allows everything that `need` does.
    pub fn covers(self, need: Mode) -> bool {
        self.merge(need) == self
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::IS => "IS",
            Mode::IX => "IX",
            Mode::S => "S",
            Mode::U => "U",
            Mode::SIX => "SIX",
            Mode::X => "X",
        })
    }
}

/// A set of modes, one bit each, so that one comparison covers a whole column of the table of the rule `exclusion`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ModeSet(u8);

impl ModeSet {
    /// Every mode.
    pub const ALL: ModeSet = ModeSet::of(&Mode::ALL);

    /// No mode.
    pub const EMPTY: ModeSet = ModeSet(0);

    /// The set of these modes.
    pub const fn of(modes: &[Mode]) -> ModeSet {
        let mut bits = 0;
        let mut i = 0;
        while i < modes.len() {
            bits |= 1 << modes[i] as u8;
            i += 1;
        }
        ModeSet(bits)
    }

    /// Whether the mode is in the set.
    pub const fn contains(self, mode: Mode) -> bool {
        self.0 & (1 << mode as u8) != 0
    }

    /// Whether the two sets share a mode.
    pub const fn intersects(self, other: ModeSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds a mode.
    pub fn insert(&mut self, mode: Mode) {
        self.0 |= 1 << mode as u8;
    }

    /// The modes of the set, in the order of [`Mode::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Mode> {
        Mode::ALL.into_iter().filter(move |mode| self.contains(*mode))
    }

    const fn complement(self) -> ModeSet {
        ModeSet(!self.0 & 0b11_1111)
    }
}

impl fmt::Debug for ModeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_is_symmetric() {
        for a in Mode::ALL {
            for b in Mode::ALL {
                assert_eq!(a.compatible(b), b.compatible(a), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn a_merge_conflicts_with_exactly_what_its_parts_conflict_with() {
        // Because of this, the holders of a resource can be counted by grant, without merging the grants of one owner.
        for a in Mode::ALL {
            for b in Mode::ALL {
                for other in Mode::ALL {
                    let parts = a.compatible(other) && b.compatible(other);
                    assert_eq!(a.merge(b).compatible(other), parts, "{a:?}+{b:?} beside {other:?}");
                }
            }
        }
    }

    #[test]
    fn merges_named_by_the_specification() {
        assert_eq!(Mode::S.merge(Mode::IX), Mode::SIX);
        assert_eq!(Mode::U.merge(Mode::IX), Mode::SIX);
        assert_eq!(Mode::S.merge(Mode::U), Mode::U);
        assert!(Mode::X.covers(Mode::SIX));
        assert!(!Mode::S.covers(Mode::IX));
    }
}
