//! Makes and reads snapshots, and restores backups. It works on a copy of the state and never touches the serving state.
//!
//! A snapshot is the previous snapshot plus the entries since, applied to a separate state on another thread. So making one never
//! holds up the serving state, however many locks it has. The serving state notes its hash at the same position, so every snapshot
//! also proves that applying the log twice gives the same state.

use fencepost_core::{KnownVersions, LockState, LogPosition, Position, Record};
use fencepost_wire::{Members, SnapshotHeader, SnapshotReader, SnapshotWriter, WallClock, WireError};
use raft::eraftpb::{ConfState, Entry};

use crate::apply::{apply_to, read_member_changes};
use crate::bounds::SNAPSHOT_PIECE_BYTES;
use crate::error::Stop;
use crate::log::GROUP_BEGINS;
use crate::members::{apply_changes, to_conf_state};

/// A snapshot that is known to be durable, as consensus must name it to a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotInfo {
    /// The last entry in it.
    pub position: LogPosition,
    /// Voters and learners as of that entry.
    pub members: ConfState,
}

/// The content of a snapshot.
#[derive(Debug)]
pub struct Restored {
    /// The last entry in it.
    pub position: LogPosition,
    /// The members as of that entry.
    pub members: Members,
    /// The lock state as of that entry.
    pub state: LockState,
    /// The wall-clock times of stamps up to that entry.
    pub wall_clock: WallClock,
}

impl Restored {
    pub(crate) fn info(&self) -> SnapshotInfo {
        SnapshotInfo { position: self.position, members: to_conf_state(&self.members) }
    }
}

/// Identifies a replicated state: a cluster, and a group in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupId {
    /// The cluster.
    pub cluster: u128,
    /// The group in it.
    pub group: u64,
}

/// Makes the bytes of a snapshot from the previous snapshot and every entry since. Without a previous snapshot, the group began
/// with `first_voters` (see [`crate::Output::MakeSnapshot`]). Returns the bytes and the hash of the state in them. The format is
/// the active version of that state.
///
/// # Errors
/// [`Stop`] if the snapshot or an entry cannot be read, or the entries do not reach `through`.
pub fn make_snapshot(
    group: GroupId,
    previous: Option<&[u8]>,
    first_voters: &[u64],
    entries: impl IntoIterator<Item = Entry>,
    through: LogPosition,
    known: KnownVersions,
) -> Result<(Vec<u8>, u64), Stop> {
    let mut made = match previous {
        Some(bytes) => read_snapshot(group, bytes, 0, known)?,
        None => first_snapshot(LockState::new(0), WallClock::NONE, first_voters),
    };
    for entry in entries {
        if entry.index > made.position.index && entry.index <= through.index {
            match read_member_changes(&entry)? {
                Some(changes) => apply_changes(&mut made.members, &changes),
                None => drop(apply_to(&mut made.state, &mut made.wall_clock, &entry, known)?),
            }
            made.position = LogPosition { index: entry.index, term: entry.term };
        }
    }
    if made.position != through {
        return Err(Stop::SnapshotIncomplete { reached: made.position, through });
    }
    Ok((write_snapshot(group, &made)?, made.state.state_hash()))
}

/// Makes the first snapshot of a new group from a backup, which is a snapshot of any group. It has no sessions. Its token counter is
/// raised, so that no token given since the backup is given again.
///
/// The new group begins at [`GROUP_BEGINS`], with the founder as its only member and in the version of the backup.
///
/// # Errors
/// [`Stop`] if the backup cannot be read, or the tokens would leave their range.
// Rule: token-order
pub fn restore_backup(
    backup: &[u8],
    new_group: GroupId,
    token_jump: u64,
    founder: u64,
    known: KnownVersions,
) -> Result<Vec<u8>, Stop> {
    let (header, records) = read_records(backup, known)?;
    let state = LockState::restore_backup(0, records, token_jump).map_err(Stop::BadRecords)?;
    write_snapshot(new_group, &first_snapshot(state, header.wall_clock, &[founder]))
}

fn first_snapshot(state: LockState, wall_clock: WallClock, voters: &[u64]) -> Restored {
    let members = Members { voters: voters.iter().copied().collect(), ..Members::NONE };
    Restored { position: GROUP_BEGINS, members, state, wall_clock }
}

fn write_snapshot(group: GroupId, made: &Restored) -> Result<Vec<u8>, Stop> {
    let Restored { position, members, state, wall_clock } = made;
    let mut writer = SnapshotWriter::new(&SnapshotHeader {
        version: state.version(),
        cluster_id: group.cluster,
        group_id: group.group,
        log_index: position.index,
        log_term: position.term,
        state_hash: state.state_hash(),
        members: members.clone(),
        wall_clock: wall_clock.clone(),
    });
    let mut bytes = Vec::new();
    for record in state.records() {
        writer.push(&record).map_err(|source| Stop::BadSnapshot { source })?;
        bytes.extend(writer.take().into_iter().flatten());
    }
    bytes.extend(writer.finish());
    Ok(bytes)
}

/// Reads a snapshot. The seed is for this node's hash tables.
///
/// # Errors
/// [`Stop`] if the bytes are damaged, belong to another cluster or group, have a version that is not in `known`, or hold a state with
/// another hash than their header says.
pub fn read_snapshot(group: GroupId, bytes: &[u8], hash_seed: u64, known: KnownVersions) -> Result<Restored, Stop> {
    let (header, records) = read_records(bytes, known)?;
    if (header.cluster_id, header.group_id) != (group.cluster, group.group) {
        return Err(Stop::ForeignSnapshot { cluster: header.cluster_id, group: header.group_id });
    }
    let state = LockState::restore(hash_seed, records).map_err(Stop::BadRecords)?;
    if state.state_hash() != header.state_hash {
        return Err(Stop::StateDiffers { index: header.log_index });
    }
    let position = LogPosition { index: header.log_index, term: header.log_term };
    Ok(Restored { position, members: header.members, state, wall_clock: header.wall_clock })
}

fn read_records(bytes: &[u8], known: KnownVersions) -> Result<(SnapshotHeader, Vec<Record>), Stop> {
    let bad = |source: WireError| Stop::BadSnapshot { source };
    let mut reader = SnapshotReader::new(known);
    let mut records = Vec::new();
    for piece in bytes.chunks(SNAPSHOT_PIECE_BYTES) {
        reader.feed(piece);
        while let Some(record) = reader.next_record().map_err(bad)? {
            records.push(record);
        }
    }
    let header = reader.finish().map_err(bad)?;
    Ok((header, records))
}

/// Where the events of a node begin after a snapshot: it has none up to the snapshot's position.
pub(crate) fn events_begin(position: LogPosition) -> Position {
    Position { index: position.index, ordinal: u32::MAX }
}
