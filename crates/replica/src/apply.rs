//! Applies an entry of the log: to the lock state, or to the members.
//!
//! The serving state and the making of snapshots both go through here, so that both read the log the same way. What a command does
//! to the locks is decided in the core.

use fencepost_core::{Effects, KnownVersions, LockState, LogicalMs};
use fencepost_wire::{Entry as LockEntry, MemberChanges, StateProof, Transfer, WallClock};
use raft::eraftpb::{Entry, EntryType};

use crate::error::Stop;
use crate::planted::{enforces_one_proposer, under_the_active_version};

/// What an entry did to the lock state.
pub(crate) struct Applied {
    pub(crate) stamp: LogicalMs,
    pub(crate) wall_clock_ms: Option<u64>,
    pub(crate) effects: Effects,
    pub(crate) proof: Option<StateProof>,
    pub(crate) transfer: Option<Transfer>,
}

/// Applies an entry to the lock state, and notes its wall clock. `None` if the entry carries no commands, or was stamped in another
/// term. The node stops before it applies a raise to a version that is not in `known`.
pub(crate) fn apply_to(
    state: &mut LockState,
    wall_clock: &mut WallClock,
    entry: &Entry,
    known: KnownVersions,
) -> Result<Option<Applied>, Stop> {
    let Some(lock_entry) = read_entry(entry, known)? else { return Ok(None) };
    let LockEntry { term, stamp, wall_clock_ms, batch, proof, transfer, .. } = lock_entry;
    // Rule: one-proposer
    if term != entry.term && enforces_one_proposer() {
        return Ok(None);
    }
    if let Some(version) = batch.raise_to.filter(|version| !known.contains(*version)) {
        return Err(Stop::VersionUnknown { index: entry.index, version, known });
    }
    if let Some(ms) = wall_clock_ms {
        wall_clock.note(state.stamp(), stamp, ms);
    }
    let effects = state.apply(stamp, under_the_active_version(batch, known));
    Ok(Some(Applied { stamp, wall_clock_ms, effects, proof, transfer }))
}

/// The change of the members in an entry, if it carries one.
pub(crate) fn read_member_changes(entry: &Entry) -> Result<Option<MemberChanges>, Stop> {
    if entry.entry_type == EntryType::EntryNormal {
        return Ok(None);
    }
    let read = fencepost_wire::decode_member_changes(entry.data.as_ref());
    read.map(Some).map_err(|source| Stop::BadEntry { index: entry.index, source })
}

/// The lock entry in an entry of the log. `None` for the entries that consensus writes for itself.
///
/// # Errors
/// [`Stop`] if it is damaged, or written in a version that is not known.
pub fn read_entry(entry: &Entry, known: KnownVersions) -> Result<Option<LockEntry>, Stop> {
    if entry.entry_type != EntryType::EntryNormal || entry.data.is_empty() {
        return Ok(None);
    }
    let read = fencepost_wire::decode(entry.data.as_ref(), known);
    read.map(Some).map_err(|source| Stop::BadEntry { index: entry.index, source })
}
