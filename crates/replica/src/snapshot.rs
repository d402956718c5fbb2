//! Snapshots: made beside the serving state, never out of it.
//!
//! A snapshot is the one before it plus the entries since, applied to a state of its own on whatever thread the driver
//! likes. So taking one never makes the serving state wait, however many locks it has; and because the serving state
//! notes its hash at the same position, every snapshot also proves that applying the log twice gives the same state.

use fencepost_core::{LockState, Position, Record};
use fencepost_wire::{SnapshotHeader, SnapshotReader, SnapshotWriter, WireError};
use raft::eraftpb::{ConfState, Entry};

use crate::apply::apply_to;
use crate::error::Stop;
use crate::log::{GROUP_BEGINS, LogPosition};

/// A snapshot that is known to be durable: what it holds, and who the members were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotInfo {
    /// The last entry in it.
    pub position: LogPosition,
    /// The members as of that entry.
    pub members: ConfState,
}

/// Which state it is: of which cluster, and which group in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupId {
    /// The cluster.
    pub cluster: u128,
    /// The group in it.
    pub group: u64,
}

/// Makes the bytes of a snapshot from those of the one before it, if there was one, and every entry since.
///
/// # Errors
/// [`Stop`] if the snapshot or an entry cannot be read, or the entries do not reach the position.
pub fn make_snapshot(
    group: GroupId,
    previous: Option<&[u8]>,
    entries: impl IntoIterator<Item = Entry>,
    through: LogPosition,
) -> Result<Vec<u8>, Stop> {
    let (mut reached, mut state) = match previous {
        Some(bytes) => read_snapshot(group, bytes, 0)?,
        None => (GROUP_BEGINS, LockState::new(0)),
    };
    for entry in entries {
        if entry.index > reached.index && entry.index <= through.index {
            apply_to(&mut state, &entry)?;
            reached = LogPosition { index: entry.index, term: entry.term };
        }
    }
    if reached != through {
        return Err(Stop::SnapshotIncomplete { reached, through });
    }
    write_snapshot(group, &state, through)
}

/// Makes the first snapshot of a new group from a backup, which is a snapshot of any group: no sessions, and the tokens
/// raised, so that none given since the backup can come again.
///
/// The new group begins at [`GROUP_BEGINS`] with whatever members its first node says.
///
/// # Errors
/// [`Stop`] if the backup cannot be read, or the tokens would leave their range.
// Rule: token-order
pub fn restore_backup(backup: &[u8], new_group: GroupId, token_jump: u64) -> Result<Vec<u8>, Stop> {
    let (_, records) = read_records(backup)?;
    let state = LockState::restore_backup(0, records, token_jump).map_err(Stop::BadRecords)?;
    write_snapshot(new_group, &state, GROUP_BEGINS)
}

fn write_snapshot(group: GroupId, state: &LockState, position: LogPosition) -> Result<Vec<u8>, Stop> {
    let mut writer = SnapshotWriter::new(SnapshotHeader {
        cluster_id: group.cluster,
        group_id: group.group,
        log_index: position.index,
        log_term: position.term,
        state_hash: state.state_hash(),
    });
    let mut bytes = Vec::new();
    for record in state.records() {
        writer.push(&record).map_err(|source| Stop::BadSnapshot { source })?;
        bytes.extend(writer.take().into_iter().flatten());
    }
    bytes.extend(writer.finish());
    Ok(bytes)
}

/// The state in a snapshot, and the last entry in it. The seed is for this node's hash tables.
///
/// # Errors
/// [`Stop`] if the bytes are damaged, of another cluster or group, or of a state whose hash is not what they say.
pub fn read_snapshot(group: GroupId, bytes: &[u8], hash_seed: u64) -> Result<(LogPosition, LockState), Stop> {
    let (header, records) = read_records(bytes)?;
    if (header.cluster_id, header.group_id) != (group.cluster, group.group) {
        return Err(Stop::ForeignSnapshot { cluster: header.cluster_id, group: header.group_id });
    }
    let state = LockState::restore(hash_seed, records).map_err(Stop::BadRecords)?;
    if state.state_hash() != header.state_hash {
        return Err(Stop::StateDiffers { index: header.log_index });
    }
    Ok((LogPosition { index: header.log_index, term: header.log_term }, state))
}

fn read_records(bytes: &[u8]) -> Result<(SnapshotHeader, Vec<Record>), Stop> {
    let bad = |source: WireError| Stop::BadSnapshot { source };
    let mut reader = SnapshotReader::new();
    let mut records = Vec::new();
    // In pieces, so that what is unpacked at a time stays small.
    for piece in bytes.chunks(256 * 1024) {
        reader.feed(piece);
        while let Some(record) = reader.next_record().map_err(bad)? {
            records.push(record);
        }
    }
    let header = reader.finish().map_err(bad)?;
    Ok((header, records))
}

/// Where events begin after a snapshot: everything up to it is unknown here.
pub(crate) fn events_begin(position: LogPosition) -> Position {
    Position { index: position.index, ordinal: u32::MAX }
}
