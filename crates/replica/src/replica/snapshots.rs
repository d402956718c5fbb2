//! When a replica wants a snapshot, what it does with a finished one, and how it installs a peer's snapshot.
//!
//! `crate::snapshot` makes and reads the bytes of a snapshot. `crate::store` keeps them in files.

use std::sync::Arc;

use fencepost_core::{EventRing, LogPosition};
use raft::eraftpb::{Message, MessageType, Snapshot};
use raft::{SnapshotStatus, Storage};

use super::{Making, Replica, Settings};
use crate::bounds::EVENTS_KEPT_MAX;
use crate::error::Stop;
use crate::log::{GROUP_BEGINS, Log};
use crate::members::to_conf_state;
use crate::ports::Output;
use crate::snapshot::{Restored, SnapshotInfo, events_begin, read_snapshot};

impl Replica {
    /// Takes a message that came with the bytes of a snapshot.
    ///
    /// # Errors
    /// [`Stop`] if consensus cannot continue, or this node does not know the snapshot's version. Any other unusable snapshot is
    /// dropped, and the leader sends another.
    pub fn handle_snapshot(&mut self, mut message: Message, bytes: Arc<[u8]>) -> Result<(), Stop> {
        self.ears.note(message.from);
        let named = position_of(message.get_snapshot());
        let Settings { group, seed, known, .. } = self.settings;
        let restored = match read_snapshot(group, &bytes, seed, known) {
            Ok(restored) => restored,
            // The leader's next snapshot would have the same version.
            Err(stop) if stop.is_about_versions() => return Err(stop),
            Err(_) => return Ok(()),
        };
        if message.msg_type != MessageType::MsgSnapshot || restored.position != named {
            return Ok(());
        }
        // The message does not carry the members. They are in the snapshot itself.
        message.mut_snapshot().mut_metadata().set_conf_state(to_conf_state(&restored.members));
        self.step(message)?;
        // Consensus may ignore this snapshot. Then one that it accepted before stays.
        let taken = self.raft.raft.raft_log.unstable.snapshot.as_ref().map(position_of);
        if taken == Some(named) {
            self.incoming = Some((restored, bytes));
        }
        Ok(())
    }

    /// Requests a snapshot of everything applied so far, for a backup. [`Output::MakeSnapshot`] follows, unless a snapshot is being
    /// made or installed.
    pub fn snapshot_now(&mut self) {
        if self.may_begin_snapshot() && self.applied >= GROUP_BEGINS {
            self.begin_snapshot();
        }
    }

    /// Notes that the requested snapshot is durable and has this state hash.
    ///
    /// # Errors
    /// [`Stop`] if this node's serving state had another hash at that position.
    pub fn handle_snapshot_made(&mut self, position: LogPosition, state_hash: u64) -> Result<(), Stop> {
        let made = self.making.take_if(|making| making.info.position == position);
        let Some(Making { info, state_hash: hash_here, bytes }) = made else { return Ok(()) };
        if hash_here != state_hash {
            return Err(Stop::StateDiffers { index: position.index });
        }
        self.bytes_since_snapshot -= bytes;
        let Settings { entries_kept, log_bytes_max, .. } = self.settings;
        let log = self.raft.mut_store();
        let through = log.compactable(position.index, entries_kept, bytes_kept(log_bytes_max));
        let members = info.members.clone();
        log.name_snapshot(info);
        let dropped = log.compact(through);
        self.outputs.push(Output::Compact { before: log.before, members, dropped });
        Ok(())
    }

    /// Notes that the requested snapshot was not made: the disk was full, or a peer's snapshot replaced the log. The replica requests it
    /// again later.
    pub fn handle_snapshot_put_off(&mut self, position: LogPosition) {
        self.making.take_if(|making| making.info.position == position);
    }

    /// Notes whether the snapshot for this peer arrived there.
    pub fn handle_snapshot_sent(&mut self, peer: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raft.report_snapshot(peer, status);
    }

    /// Begins a snapshot when enough was applied since the last one, or earlier if a follower needs one.
    pub(super) fn snapshot_if_due(&mut self) {
        let Settings { snapshot_every_entries, snapshot_every_bytes, log_bytes_max, .. } = self.settings;
        let log = self.raft.store();
        let last = log.snapshot.as_ref().map_or(GROUP_BEGINS.index, |info| info.position.index);
        let entries = self.applied.index.saturating_sub(last);
        let is_due = entries >= snapshot_every_entries
            || self.bytes_since_snapshot >= snapshot_every_bytes.min(log_bytes_max / 2)
            || (self.applied >= GROUP_BEGINS && log.take_snapshot_wanted());
        if is_due && self.may_begin_snapshot() {
            self.begin_snapshot();
        }
    }

    /// Only one snapshot is made at a time, and none while a peer's snapshot is being written: the new one would build on it.
    pub(super) fn may_begin_snapshot(&self) -> bool {
        self.making.is_none() && self.installing.is_none()
    }

    pub(super) fn begin_snapshot(&mut self) {
        let info = SnapshotInfo { position: self.applied, members: to_conf_state(&self.members) };
        let (state_hash, bytes) = (self.state.state_hash(), self.bytes_since_snapshot);
        self.making = Some(Making { info, state_hash, bytes });
        let first_voters = self.first_voters.clone();
        self.outputs.push(Output::MakeSnapshot { through: self.applied, first_voters });
    }

    /// Replaces the state by a peer's snapshot, and returns what the disk must write.
    pub(super) fn install(&mut self, snapshot: &Snapshot) -> Result<(SnapshotInfo, Arc<[u8]>), Stop> {
        let position = position_of(snapshot);
        let (restored, bytes) = (self.incoming.take().filter(|(restored, _)| restored.position == position))
            .expect("consensus gets a snapshot only through handle_snapshot, which keeps its bytes");
        let info = restored.info();
        self.abandon_change();
        Restored { state: self.state, members: self.members, position: self.applied, wall_clock: self.wall_clock } =
            restored;
        self.events = EventRing::new(EVENTS_KEPT_MAX, events_begin(position));
        self.making = None;
        self.bytes_since_snapshot = 0;
        self.raft.mut_store().install(info.clone());
        self.outputs.push(Output::MembersChanged { position, ticket: None, cause: None });
        Ok((info, bytes))
    }
}

/// Makes the log consistent with the snapshot that a node starts from.
pub(super) fn go_on_from(log: &mut Log, info: SnapshotInfo) -> Result<(), Stop> {
    let position = info.position;
    if position.index < log.before.index {
        return Err(Stop::SnapshotIncomplete { reached: position, through: log.before });
    }
    // The node crashed when a peer's snapshot was durable and the old log was not yet replaced.
    if log.term(position.index).ok() != Some(position.term) {
        log.install(info.clone());
    }
    // Changes of the members after the snapshot are applied again.
    log.members = info.members.clone();
    log.name_snapshot(info);
    // A snapshot holds only committed entries, even if the commit index was not on disk before the crash.
    log.hard_state.commit = log.hard_state.commit.max(position.index);
    if log.hard_state.term < position.term {
        (log.hard_state.term, log.hard_state.vote) = (position.term, raft::INVALID_ID);
    }
    Ok(())
}

/// How many bytes of entries stay in the log after a snapshot includes them: a quarter of its room. The next snapshot is due when the
/// entries since the last one fill a half. So there is room while that one is made, and a full log always holds enough new entries
/// to make a snapshot due: it cannot stay full.
pub(super) fn bytes_kept(log_bytes_max: u64) -> u64 {
    log_bytes_max / 4
}

pub(super) fn position_of(snapshot: &Snapshot) -> LogPosition {
    let metadata = snapshot.get_metadata();
    LogPosition { index: metadata.index, term: metadata.term }
}
