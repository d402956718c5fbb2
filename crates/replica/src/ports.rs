//! The world as a replica sees it: what it is told, and what it asks for.
//!
//! A replica asks the operating system for nothing. Instants and a seed come in as arguments; messages, writes and answers
//! go out as [`Output`]s. A server carries them out with sockets and files, a simulation with its own; both drive the
//! same replica.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::snapshot::SnapshotInfo;
use fencepost_core::{LogPosition, LogicalMs, Push, Reply, Ticket};
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
        /// The voters that the group began with, for the first snapshot of all.
        first_voters: Vec<u64>,
    },
    /// Entries up to here are no longer needed on disk.
    Compact {
        /// What the rest follows.
        before: LogPosition,
        /// Who voted and learned as of the newest snapshot.
        members: ConfState,
        /// The entries themselves, to be freed where nobody waits for it.
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
        /// What came of it.
        reply: Reply,
    },
    /// This node lost the lead before it could learn what became of the command. It may still be carried out.
    Abandoned(Ticket),
    /// Tell a session, if it is connected here.
    Push {
        /// Where it was decided.
        position: LogPosition,
        /// When, in logical time.
        stamp: LogicalMs,
        /// What to tell.
        push: Push,
    },
    /// The state now shows everything that was acknowledged before the read was asked for: read it now.
    ReadReady {
        /// Which read.
        ticket: Ticket,
        /// What the state shows: everything up to this entry.
        position: LogPosition,
    },
    /// The members, or their names or addresses, are now others: [`crate::Replica::members`] says who they are. Every node
    /// says so for every change, and after a snapshot that came from a peer.
    MembersChanged {
        /// The entry that changed them.
        position: LogPosition,
        /// The change that was asked for here and is now through. A change in two steps is through after the second.
        ticket: Option<Ticket>,
    },
    /// A peer that this node should hear has become silent. Said once, until it is found again.
    PeerLost {
        /// Which.
        peer: u64,
        /// For how long it is silent.
        silent_ms: u64,
    },
    /// A peer that was lost is heard again, and has been for [`crate::SILENT_AFTER_MS`].
    PeerFound {
        /// Which.
        peer: u64,
        /// For how long it was silent.
        silent_ms: u64,
    },
}

/// What must be durable before consensus may count on it.
#[derive(Clone, Debug)]
pub struct LogWrite {
    /// Comes back when the write is durable. Numbers rise; a later one implies all before it.
    pub number: u64,
    /// A snapshot from a peer that takes the place of everything before it, with its bytes.
    pub snapshot: Option<(SnapshotInfo, Arc<[u8]>)>,
    /// Vote, term and commit, if they changed.
    pub hard_state: Option<HardState>,
    /// Entries to append; what stood at their indexes and behind goes.
    pub entries: Vec<Entry>,
    /// Whether it must be on the disk before it counts. A commit index alone need not be.
    pub must_sync: bool,
}

impl LogWrite {
    /// Takes in the write that follows, so that one sync does for both. Gives it back if it cannot be: with a snapshot, or with
    /// entries that replace some of these.
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
    fn writes_that_follow_each_other_become_one_and_others_stay_apart() {
        let mut first = write(1, 5..8);
        first.hard_state = Some(HardState { term: 3, ..HardState::default() });
        let mut commit_alone = write(2, 0..0);
        commit_alone.must_sync = false;
        first.take_in(commit_alone).expect("it has no entries");
        assert!(first.must_sync, "what the first needs, both need");
        first.take_in(write(3, 8..10)).expect("it follows");
        assert_eq!((first.number, first.entries.len()), (3, 5));
        assert_eq!(first.hard_state.as_ref().map(|state| state.term), Some(3), "the newest that was said");

        let replaces = first.take_in(write(4, 9..11)).expect_err("entry 9 would be there twice");
        assert_eq!((replaces.number, replaces.entries.len()), (4, 2), "it comes back as it was");
        let info = SnapshotInfo { position: LogPosition { index: 20, term: 3 }, members: Default::default() };
        let snapshot = LogWrite { snapshot: Some((info, Arc::from([]))), ..write(5, 0..0) };
        first.take_in(snapshot).expect_err("nothing before it counts any more");
        assert_eq!((first.number, first.entries.len()), (3, 5));
    }
}
