//! What a replica asks its driver to do.
//!
//! A replica never calls the operating system. Instants and a seed come in as arguments. Messages, writes and answers
//! go out as [`Output`]s. A server carries them out with sockets and files, a simulation with its own network and disk. Both
//! drive the same replica.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::snapshot::SnapshotInfo;
use fencepost_core::{LogPosition, LogicalMs, Name, Push, Reply, Ticket};
use fencepost_wire::{Cause, Transfer};
use raft::eraftpb::{ConfState, Entry, HardState, Message};

/// Something that a replica wants done.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this to the peer that it names. It may be lost.
    Send(Message),
    /// Send this with the bytes of the snapshot at this position, then call [`crate::Replica::handle_snapshot_sent`].
    SendSnapshot {
        /// The message, which names the peer.
        message: Message,
        /// Which snapshot.
        position: LogPosition,
    },
    /// Make a snapshot with [`crate::make_snapshot`], on any thread, make it durable, then call
    /// [`crate::Replica::handle_snapshot_made`].
    MakeSnapshot {
        /// The last entry in it.
        through: LogPosition,
        /// The voters that the group began with. Used by the first snapshot of the group.
        first_voters: Vec<u64>,
    },
    /// Entries up to this position are no longer needed on disk.
    Compact {
        /// The last entry that is no longer needed.
        before: LogPosition,
        /// Voters and learners as of the newest snapshot.
        members: ConfState,
        /// The entries themselves, to be freed on a thread that no request waits for.
        dropped: VecDeque<Entry>,
    },
    /// Make this durable, in order, then call [`crate::Replica::handle_persisted`] with its number.
    Write(LogWrite),
    /// The answer to a submitted command, at its position in the log.
    Reply {
        /// Which command.
        ticket: Ticket,
        /// Where it was decided.
        position: LogPosition,
        /// When, in logical time.
        stamp: LogicalMs,
        /// The answer.
        reply: Reply,
    },
    /// This node lost leadership before it learned the command's outcome. The command may still be carried out.
    Abandoned(Ticket),
    /// A message for a session, if it is connected here.
    Push {
        /// Where it was decided.
        position: LogPosition,
        /// When, in logical time.
        stamp: LogicalMs,
        /// The message.
        push: Push,
    },
    /// The state now shows everything that was acknowledged before the read was submitted: read it now.
    ReadReady {
        /// Which read.
        ticket: Ticket,
        /// The last entry that the state shows.
        position: LogPosition,
    },
    /// The members, their names or their addresses changed: [`crate::Replica::members`] lists them. Every node gives this
    /// out for every change, and after it installs a peer's snapshot.
    MembersChanged {
        /// The entry that changed them.
        position: LogPosition,
        /// The change that was submitted here and is now complete. A change in two steps is complete after the second.
        ticket: Option<Ticket>,
        /// Who ordered the change, and why. `None` for the second step of a change, and for a snapshot.
        cause: Option<Cause>,
    },
    /// The leader begins a planned leadership transfer. Every node gives this out, for people who read its log.
    TransferBegun {
        /// The entry that says so.
        position: LogPosition,
        /// Where leadership goes, and by whose order.
        transfer: Transfer,
    },
    /// The records of jobs take more than four fifths of a bound. Every node gives this out, for people who read its log.
    JobsFill {
        /// The name whose bound it is. `None` for the bound of the group.
        name: Option<Name>,
        /// The records that count for the bound.
        records: u64,
        /// The bytes that count for the bound.
        bytes: u64,
    },
    /// A peer that this node should hear has become silent. Given out once, until the peer is found again.
    PeerLost {
        /// Which.
        peer: u64,
        /// How long it has been silent.
        silent_ms: u64,
    },
    /// A lost peer has been heard again for [`crate::SILENT_AFTER_MS`].
    PeerFound {
        /// Which.
        peer: u64,
        /// How long it was silent.
        silent_ms: u64,
    },
}

/// A write that must be durable before consensus may count on it.
#[derive(Clone, Debug)]
pub struct LogWrite {
    /// Passed to [`crate::Replica::handle_persisted`] when the write is durable. Numbers rise, and a number covers all writes before it.
    pub number: u64,
    /// A peer's snapshot with its bytes. It replaces everything before it.
    pub snapshot: Option<(SnapshotInfo, Arc<[u8]>)>,
    /// Vote, term and commit, if they changed.
    pub hard_state: Option<HardState>,
    /// Entries to append. They replace older entries at their indexes and all entries after those.
    pub entries: Vec<Entry>,
    /// Whether the write must be synced before it counts. A commit index alone need not be.
    pub must_sync: bool,
}

impl LogWrite {
    /// Merges the next write into this one, so that one sync serves both. Returns the next write if that is impossible: one of
    /// them has a snapshot, or the next one's entries replace some of these.
    pub(crate) fn take_in(&mut self, next: LogWrite) -> Result<(), Box<LogWrite>> {
        let follows = match (self.entries.last(), next.entries.first()) {
            (Some(last), Some(first)) => first.index == last.index + 1,
            _ => true,
        };
        if self.snapshot.is_some() || next.snapshot.is_some() || !follows {
            return Err(Box::new(next));
        }
        self.number = next.number;
        self.entries.extend(next.entries);
        self.hard_state = next.hard_state.or(self.hard_state.take());
        self.must_sync |= next.must_sync;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(number: u64, indexes: std::ops::Range<u64>) -> LogWrite {
        let entries = indexes.map(|index| Entry { index, ..Entry::default() }).collect();
        LogWrite { number, snapshot: None, hard_state: None, entries, must_sync: true }
    }

    #[test]
    fn consecutive_writes_are_merged_and_others_stay_apart() {
        let mut first = write(1, 5..8);
        first.hard_state = Some(HardState { term: 3, ..HardState::default() });
        let mut commit_alone = write(2, 0..0);
        commit_alone.must_sync = false;
        first.take_in(commit_alone).expect("it has no entries");
        assert!(first.must_sync, "one of the two needs a sync");
        first.take_in(write(3, 8..10)).expect("it follows");
        assert_eq!((first.number, first.entries.len()), (3, 5));
        assert_eq!(first.hard_state.as_ref().map(|state| state.term), Some(3), "the newest hard state");

        let replaces = first.take_in(write(4, 9..11)).expect_err("entry 9 would be there twice");
        assert_eq!((replaces.number, replaces.entries.len()), (4, 2), "it comes back unchanged");
        let info = SnapshotInfo { position: LogPosition { index: 20, term: 3 }, members: Default::default() };
        let snapshot = LogWrite { snapshot: Some((info, Arc::from([]))), ..write(5, 0..0) };
        first.take_in(snapshot).expect_err("a snapshot replaces the writes before it");
        assert_eq!((first.number, first.entries.len()), (3, 5));
    }
}
