//! A log entry as a follower receives it or a disk returns it, and what the lock state makes of it.
//!
//! Input: the bytes of one entry.

use fencepost_core::{KnownVersions, LockState, LogicalMs};
use fencepost_wire::{decode, encode};

/// The latest stamp that is applied. A stamp counts milliseconds from the founding of the cluster; this is about nine thousand years.
const STAMP_MAX: u64 = 1 << 48;
/// Long enough that every lease, wait and rest is over.
const LONG_MS: u64 = 1 << 48;

/// An entry that can be read is the same after it was written again. Applied to an empty state it leaves a sound one, twice the same, and
/// so does the time that passes after it.
pub fn check(input: &[u8]) {
    let Ok(entry) = decode(input, KnownVersions::THIS_BUILD) else { return };
    let again = decode(&encode(&entry), KnownVersions::THIS_BUILD);
    assert_eq!(again.as_ref(), Ok(&entry), "written again, the entry is the same");

    let mut batch = entry.batch;
    // A node stops before it applies a raise to a version that it does not know: `apply_to` in crates/replica/src/apply.rs.
    batch.raise_to = batch.raise_to.filter(|version| KnownVersions::THIS_BUILD.contains(*version));
    let stamp = LogicalMs(entry.stamp.0.min(STAMP_MAX));
    let (mut one, mut other) = (LockState::new(1), LockState::new(2));
    assert_eq!(one.apply(stamp, batch.clone()), other.apply(stamp, batch), "two replicas do the same");
    assert_eq!(one.state_hash(), other.state_hash(), "two replicas have the same state");
    assert_eq!(one.verify(), Ok(()), "the state is sound");

    let mut stamp = stamp;
    while let Some(deadline) = one.next_deadline().filter(|deadline| deadline.0 <= STAMP_MAX + LONG_MS) {
        assert!(deadline > stamp, "what is due does not stand: {deadline:?} at {stamp:?}");
        stamp = deadline;
        one.apply(stamp, Default::default());
    }
    assert_eq!(one.verify(), Ok(()), "the state is sound after its leases");
}
