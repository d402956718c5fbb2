//! When a replica wants a snapshot, what it does with a finished one, and how it goes on from one that came from a peer. Making one is
//! `crate::snapshot`'s.

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
    /// [`Stop`] if consensus refuses to go on, or the snapshot is of a version that this node does not know. Any other snapshot that
    /// cannot be used is dropped; the leader sends another.
    pub fn handle_snapshot(&mut self, mut message: Message, bytes: Arc<[u8]>) -> Result<(), Stop> {
        self.ears.note(message.from);
        let named = position_of(message.get_snapshot());
        let Settings { group, seed, known, .. } = self.settings;
        let restored = match read_snapshot(group, &bytes, seed, known) {
            Ok(restored) => restored,
            // The next one would be the same.
            Err(stop) if stop.is_about_versions() => return Err(stop),
            Err(_) => return Ok(()),
        };
        if message.msg_type != MessageType::MsgSnapshot || restored.position != named {
            return Ok(());
        }
        // Who the members were is known from the snapshot itself.
        message.mut_snapshot().mut_metadata().set_conf_state(to_conf_state(&restored.members));
        self.step(message)?;
        // Consensus takes it or leaves it; one that it took before stays if it leaves this one.
        let taken = self.raft.raft.raft_log.unstable.snapshot.as_ref().map(position_of);
        if taken == Some(named) {
            self.incoming = Some((restored, bytes));
        }
        Ok(())
    }

    /// Asks for a snapshot of everything applied so far, for a backup: [`Output::MakeSnapshot`] follows, unless one is being
    /// made already.
    pub fn snapshot_now(&mut self) {
        if self.may_begin_snapshot() && self.applied >= GROUP_BEGINS {
            self.begin_snapshot();
        }
    }

    /// The snapshot that was asked for is durable, and has this state hash.
    ///
    /// # Errors
    /// [`Stop`] if its state is not the one that this node serves.
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

    /// The snapshot that was asked for could not be made, for want of room. It will be asked for again.
    pub fn handle_snapshot_put_off(&mut self, position: LogPosition) {
        self.making.take_if(|making| making.info.position == position);
    }

    /// The snapshot for this peer was sent, or could not be.
    pub fn handle_snapshot_sent(&mut self, peer: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raft.report_snapshot(peer, status);
    }

    /// Begins a snapshot when enough was applied since the last one; early, if a follower needs one.
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

    /// One at a time, and not while the one that it goes on from is on its way to the disk.
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

    /// Goes on from the snapshot of a peer.
    pub(super) fn install(&mut self, snapshot: &Snapshot) -> Result<(SnapshotInfo, Arc<[u8]>), Stop> {
        let position = position_of(snapshot);
        let (restored, bytes) = (self.incoming.take().filter(|(restored, _)| restored.position == position))
            .expect("consensus accepts only a snapshot whose bytes came with it");
        let info = restored.info();
        self.abandon_change();
        Restored { state: self.state, members: self.members, position: self.applied } = restored;
        self.events = EventRing::new(EVENTS_KEPT_MAX, events_begin(position));
        self.making = None;
        self.bytes_since_snapshot = 0;
        self.raft.mut_store().install(info.clone());
        self.outputs.push(Output::MembersChanged { position, ticket: None });
        Ok((info, bytes))
    }
}

/// Lets the log follow the snapshot, as far as it does not do so already.
pub(super) fn go_on_from(log: &mut Log, info: SnapshotInfo) -> Result<(), Stop> {
    let position = info.position;
    if position.index < log.before.index {
        return Err(Stop::SnapshotIncomplete { reached: position, through: log.before });
    }
    // The node crashed after a peer's snapshot was durable, and before its log was cut.
    if log.term(position.index).ok() != Some(position.term) {
        log.install(info.clone());
    }
    // What was changed since will be applied again.
    log.members = info.members.clone();
    log.name_snapshot(info);
    // A snapshot holds only what was committed, whether or not the commit index came to the disk before the crash.
    log.hard_state.commit = log.hard_state.commit.max(position.index);
    if log.hard_state.term < position.term {
        (log.hard_state.term, log.hard_state.vote) = (position.term, raft::INVALID_ID);
    }
    Ok(())
}

/// How much of the log's room is left to entries that a snapshot includes. With a quarter, and the next snapshot due when the
/// entries since the last fill a half, there is room while that one is made; and a log that is full always holds enough to
/// make it due, so that it cannot stay full.
pub(super) fn bytes_kept(log_bytes_max: u64) -> u64 {
    log_bytes_max / 4
}

pub(super) fn position_of(snapshot: &Snapshot) -> LogPosition {
    let metadata = snapshot.get_metadata();
    LogPosition { index: metadata.index, term: metadata.term }
}
