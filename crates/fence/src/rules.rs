//! The rules of fencing at the store, and nothing else: which access is admitted, and which marks it lifts.
//!
//! A lock service decides who holds a lock. It cannot stop a holder that was paused past its lease and still tries to write.
//! The store can: it remembers, for each name, the highest tokens that it has seen, and refuses older ones.
//!
//! [`MarkTable`] is that memory as a value. Every guard of this crate is this table made durable in its store. Some guards load
//! a part of the table, call [`MarkTable::admit`] and write it back in one transaction. Others implement the same rules in the
//! store's own language, and tests compare them with this file over random histories.
//!
//! Each name has four marks. Two are about the name itself, two about the names below it, if it is a path:
//!
//! | | highest token that was seen (read, claimed or wrote) | highest token that wrote |
//! |---|---|---|
//! | here | `write_floor` | `read_floor` |
//! | below | `write_floor_below` | `read_floor_below` |
//!
//! A write must not be older than any token that was *seen*: its holder may have decided something from what it read. A read
//! must not be older than any token that *wrote*.

use std::collections::BTreeMap;

use fencepost_core::{Name, Token};

/// What an access does under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Use {
    /// Reads, as one reader among others. A write shows the names that it was decided from with this use, too.
    Read,
    /// Reads, and will write later: from here on no older holder may write.
    Claim,
    /// Writes.
    Write,
}

/// One name that an access shows, with the token of the lock on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The name. A path also stands for everything below it.
    pub name: Name,
    /// The token of the grant that covers it.
    pub token: Token,
    /// What the access does under the name.
    pub used_to: Use,
}

/// What a store remembers about one name. If a name has no marks, the store's base floor stands for all four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The highest token seen here. Writes with an older token are refused.
    pub write_floor: Token,
    /// The highest token that wrote here. Reads with an older token are refused.
    pub read_floor: Token,
    /// The highest token seen anywhere below.
    pub write_floor_below: Token,
    /// The highest token that wrote anywhere below.
    pub read_floor_below: Token,
}

/// A token that is too old: the store has seen a newer one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "stale fencing token {} for {name}: token {} has been seen{}. The lock is lost: acquire it again, and decide again from \
     what you then read",
    token.0,
    highest.0,
    if name == at { String::new() } else { format!(" at {at}") }
)]
pub struct Stale {
    /// The name that was shown.
    pub name: Name,
    /// The token that was shown.
    pub token: Token,
    /// The name whose mark is higher than the token: `name` itself, or a name above it.
    pub at: Name,
    /// That mark.
    pub highest: Token,
}

/// The marks of a store. This is the specification of every guard, and itself a guard for data in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkTable {
    /// No token below this one is admitted anywhere.
    base: Token,
    marks: BTreeMap<Name, Marks>,
}

impl MarkTable {
    /// A table with this base floor and no marks.
    pub fn with_base(base: Token) -> MarkTable {
        MarkTable { base, marks: BTreeMap::new() }
    }

    /// Loads the marks that a store has kept for a name.
    pub fn restore(&mut self, name: Name, marks: Marks) {
        self.marks.insert(name, marks);
    }

    /// The base floor.
    pub fn base(&self) -> Token {
        self.base
    }

    /// The names that have marks, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Marks)> {
        self.marks.iter()
    }

    /// The effective marks of a name: the kept ones, but at least the base floor.
    // Rule: fence-gc
    pub fn marks(&self, name: &Name) -> Marks {
        let kept = self.marks.get(name).copied().unwrap_or_default();
        Marks {
            write_floor: kept.write_floor.max(self.base),
            read_floor: kept.read_floor.max(self.base),
            write_floor_below: kept.write_floor_below.max(self.base),
            read_floor_below: kept.read_floor_below.max(self.base),
        }
    }

    /// Admits an access and lifts the marks; or refuses it as a whole, and changes nothing.
    ///
    /// The caller commits the lifted marks together with what the access does. // Rule: same-transaction
    ///
    /// # Errors
    /// [`Stale`] names the first token that is too old.
    pub fn admit(&mut self, shown: &[Shown]) -> Result<(), Stale> {
        // Everything is checked before any mark moves, so the order of `shown` does not matter.
        shown.iter().try_for_each(|one| self.check(one))?;
        shown.iter().for_each(|one| self.lift(one));
        Ok(())
    }

    // Rule: fence, fence-hierarchy
    fn check(&self, shown: &Shown) -> Result<(), Stale> {
        let Shown { name, token, used_to } = shown;
        let floor = |at: &Name, highest: Token| {
            let stale = || Stale { name: name.clone(), token: *token, at: at.clone(), highest };
            if *token >= highest { Ok(()) } else { Err(stale()) }
        };
        let here = self.marks(name);
        match used_to {
            Use::Read => {
                floor(name, here.read_floor.max(here.read_floor_below))?;
                name.ancestors().try_for_each(|above| floor(&above, self.marks(&above).read_floor))
            }
            Use::Claim | Use::Write => {
                floor(name, here.write_floor.max(here.write_floor_below))?;
                name.ancestors().try_for_each(|above| floor(&above, self.marks(&above).write_floor))
            }
        }
    }

    // Rule: fence, fence-hierarchy, claim-before-read
    fn lift(&mut self, shown: &Shown) {
        let Shown { name, token, used_to } = shown;
        let here = self.marks.entry(name.clone()).or_default();
        here.write_floor = here.write_floor.max(*token);
        if *used_to == Use::Write {
            here.read_floor = here.read_floor.max(*token);
        }
        for above in name.ancestors() {
            let above = self.marks.entry(above).or_default();
            above.write_floor_below = above.write_floor_below.max(*token);
            if *used_to == Use::Write {
                above.read_floor_below = above.read_floor_below.max(*token);
            }
        }
    }

    /// Raises the base floor to this token, and forgets the marks that are not above it. Returns how many were forgotten.
    ///
    /// The token must be the oldest that is still alive in the lock service. Then the base floor refuses only dead holders.
    // Rule: fence-gc
    pub fn forget_below(&mut self, oldest_live: Token) -> usize {
        self.base = self.base.max(oldest_live);
        let before = self.marks.len();
        // The floors for reads need no look: every write lifts the floors for writes at least as far.
        self.marks.retain(|_, marks| marks.write_floor.max(marks.write_floor_below) > self.base);
        before - self.marks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, token: u64, used_to: Use) -> Shown {
        Shown { name: Name::new(name).expect("a valid name"), token: Token(token), used_to }
    }

    /// Plays one access per line, such as `write /a/b 5`. `+` joins several names to one access. `!` means that it is refused.
    fn play(story: &str) -> MarkTable {
        let mut table = MarkTable::default();
        for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(floor) = line.strip_prefix("forget below ") {
                table.forget_below(Token(floor.parse().expect("a number")));
                continue;
            }
            let (refused, accesses) = line.strip_prefix('!').map_or((false, line), |rest| (true, rest));
            let access: Vec<Shown> = accesses
                .split('+')
                .map(|one| match one.split_whitespace().collect::<Vec<_>>()[..] {
                    ["read", name, token] => shown(name, token.parse().expect("a number"), Use::Read),
                    ["claim", name, token] => shown(name, token.parse().expect("a number"), Use::Claim),
                    ["write", name, token] => shown(name, token.parse().expect("a number"), Use::Write),
                    _ => panic!("cannot play {one:?}"),
                })
                .collect();
            let before = table.clone();
            assert_eq!(table.admit(&access).is_err(), refused, "{line}");
            assert!(!refused || table == before, "{line}: a refused access changes nothing");
        }
        table
    }

    #[test]
    fn equal_passes_and_older_is_stale() {
        play(
            "write w 5
             write w 5
             write w 7
             !write w 5
             !claim w 6
             write v 5",
        );
    }

    #[test]
    fn a_claim_shuts_out_older_holders_before_anything_is_written() {
        play(
            "claim w 5
             claim w 7
             !write w 5
             write w 7",
        );
    }

    #[test]
    fn readers_shut_out_older_writers_but_not_each_other() {
        play(
            "read w 8
             read w 7
             !write w 7
             write w 9
             !read w 8
             read w 9",
        );
    }

    #[test]
    fn a_write_is_refused_if_anything_it_was_decided_from_is_stale() {
        play(
            "read price 4
             claim order 5
             write price 6
             !write order 5 + read price 4
             write order 5 + read price 6",
        );
    }

    #[test]
    fn everything_shown_together_is_checked_before_any_mark_moves() {
        play("write /a/b 6 + read /a 5");
        play("read /a 5 + write /a/b 6");
    }

    #[test]
    fn a_holder_of_a_path_shuts_out_older_holders_below_it_but_not_its_neighbours() {
        play(
            "claim /a/b 5
             claim /a 7
             !write /a/b 5
             write /c/b 5
             write /a/b 7
             write /a/c 8
             write /a/b 7",
        );
    }

    #[test]
    fn a_token_seen_below_a_path_shuts_out_an_older_holder_of_the_path() {
        play(
            "claim /a 5
             claim /a/b 7
             !write /a 5",
        );
        play(
            "claim /a 5
             read /a/b 7
             !write /a 5
             !write /a/b 5
             write /a/c 5",
        );
    }

    #[test]
    fn a_reader_of_a_path_is_refused_after_a_newer_write_below_or_above() {
        play(
            "read /a/b 5
             write /a/b/c 6
             !read /a/b 5
             read /a/b 6
             write /a 7
             !read /a/b 6",
        );
    }

    #[test]
    fn forgotten_marks_leave_the_base_floor_behind() {
        let table = play(
            "write old 5
             write young 9
             forget below 8
             !write old 7
             !write never-seen 7
             write never-seen 8
             !write young 8
             write young 9",
        );
        assert_eq!(table.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["never-seen", "young"]);
        assert_eq!(play("forget below 8 \n forget below 3").base(), Token(8), "the base floor only rises");
    }

    #[test]
    fn the_refusal_says_what_was_seen_and_where() {
        let mut table = play("claim /a 7");
        let stale = table.admit(&[shown("/a/b", 5, Use::Write)]).expect_err("it is older");
        assert_eq!(
            stale.to_string(),
            "stale fencing token 5 for /a/b: token 7 has been seen at /a. The lock is lost: acquire it again, and decide again \
             from what you then read"
        );
    }
}
