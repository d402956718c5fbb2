//! The footprint of a request: every name that it needs, with the mode that it needs there.
//!
//! These are the names that it asks for, and for a path also its ancestors, on which it takes intentions. This file also
//! refuses requests that are malformed. It knows nothing of who holds these names.

use smallvec::SmallVec;

use crate::bounds::{self, Bound};
use crate::command::{Lock, Locks};
use crate::mode::Mode;
use crate::outcome::Refusal;
use crate::words::Name;

/// Every name that a request needs, once each, with the mode needed there, in name order. One plain name needs no
/// allocation.
pub(crate) type Footprint = SmallVec<[(Name, Mode); 1]>;

/// The footprint of some locks.
// Rule: hierarchy
pub(crate) fn footprint(locks: &[Lock]) -> Footprint {
    // A shortcut for one plain name: most requests are of this kind, and each computes its footprint several times.
    if let [lock] = locks
        && !lock.name.is_path()
    {
        return Footprint::from_buf([(lock.name.clone(), lock.mode.mode())]);
    }
    let mut needs = Footprint::new();
    for lock in locks {
        needs.extend(lock.name.ancestors().map(|ancestor| (ancestor, lock.mode.intention())));
        needs.push((lock.name.clone(), lock.mode.mode()));
    }
    needs.sort_by(|(a, _), (b, _)| a.cmp(b));
    needs.dedup_by(|(name, mode), (kept_name, kept_mode)| {
        let same = name == kept_name;
        if same {
            *kept_mode = kept_mode.merge(*mode);
        }
        same
    });
    needs
}

/// The footprint of a request, or the refusal if the request is malformed.
// Rule: multi-lock
pub(crate) fn checked_footprint(locks: &Locks) -> Result<Footprint, Refusal> {
    if locks.is_empty() || locks.len() > bounds::MULTI_LOCK_MAX {
        return Err(Refusal::Bound(Bound::MultiLock));
    }
    if locks.len() > 1 {
        let mut names: Vec<&Name> = locks.iter().map(|lock| &lock.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Refusal::NamedTwice(twice[0].clone()));
        }
    }
    let needs = footprint(locks);
    if needs.len() > bounds::FOOTPRINT_NAMES_MAX {
        return Err(Refusal::Bound(Bound::FootprintNames));
    }
    Ok(needs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::LockMode;

    #[test]
    fn needs_on_one_name_merge() {
        let lock = |name, mode| Lock { name: Name::new(name).unwrap(), mode };
        let needs = footprint(&[
            lock("/a/b/c", LockMode::Exclusive),
            lock("/a", LockMode::Shared),
            lock("plain", LockMode::Update),
            lock("/a/b", LockMode::Update),
        ]);
        let readable: Vec<String> = needs.iter().map(|(name, mode)| format!("{name} {mode:?}")).collect();
        assert_eq!(readable, ["/a SIX", "/a/b SIX", "/a/b/c X", "plain U"]);
    }
}
