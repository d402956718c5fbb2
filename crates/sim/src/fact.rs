//! What happened in a run, fact by fact, in the order of the world's own time. The checkers see nothing else.

use fencepost_core::{
    Action, Batch, Effects, GrantId, LogPosition, LogicalMs, Name, Outcome, PositionedEvent, Push, Repeat, Reply,
    RequestNumber, SessionId, Token,
};
use fencepost_replica::Hears;
use fencepost_session::Tier;
use fencepost_session::client::{Answer, RequestKey};
use fencepost_session::edge::StreamId;
use fencepost_wire::v1;

/// The true time of the world, in nanoseconds. No clock in the world shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorldTime(pub u64);

impl WorldTime {
    /// So many milliseconds later.
    pub fn after_ms(self, ms: u64) -> WorldTime {
        WorldTime(self.0 + ms * 1_000_000)
    }

    /// In whole milliseconds.
    pub fn ms(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// One entry of the log with what it caused: told once for each index, in order, when the first node applies it. No client can
/// have an answer from it before.
#[derive(Clone, Debug)]
pub struct LoggedEntry {
    /// Where it stands.
    pub position: LogPosition,
    /// Its logical time.
    pub stamp: LogicalMs,
    /// What it says.
    pub batch: Batch,
    /// What came of it.
    pub effects: Effects,
}

/// What a command asks of a lock state, as far as a door is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A new session.
    Open,
    /// A session goes on, on another stream.
    Attach,
    /// A sign of life.
    KeepAlive,
    /// Something that a session asks for, with its number.
    Request(RequestNumber),
}

/// A command that a stream asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCommand {
    /// On which stream.
    pub stream: StreamId,
    /// For which session.
    pub session: SessionId,
    /// What.
    pub kind: Kind,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Fact<'a> {
    /// The log has one more entry.
    Logged(&'a LoggedEntry),
    /// A node has applied the log up to here, and this is the hash of its state.
    Applied {
        /// Which node.
        node: u64,
        /// Up to where.
        position: LogPosition,
        /// The hash of its state.
        state_hash: u64,
    },
    /// A user asked for something, for the first time.
    Asked {
        /// Whose request, with its number.
        request: RequestKey,
        /// What for.
        action: &'a Action,
    },
    /// An answer or a push that ends a wait reached a client, from an entry at this position.
    Heard {
        /// The cluster that said it.
        cluster: u128,
        /// Whose.
        session: SessionId,
        /// To which request; none for an open, an attach or a keep-alive.
        number: Option<RequestNumber>,
        /// The entry that the node said it was from.
        position: LogPosition,
        /// The stamp that the node said the entry has.
        stamp: LogicalMs,
        /// What it said.
        outcome: &'a Outcome,
        /// If it said so before.
        repeat: Option<Repeat>,
    },
    /// A user was told how a request ended.
    Told {
        /// Which.
        request: RequestKey,
        /// How.
        answer: &'a Answer,
    },
    /// A user acts, right now, in the belief that it holds a grant: its guard said so at this very moment.
    Acts {
        /// Whose grant.
        session: SessionId,
        /// Which.
        grant: GrantId,
        /// The token it has.
        token: Token,
    },
    /// A user began to read the state, linearizably.
    ReadAsked {
        /// Which read.
        read: u64,
    },
    /// The read was answered with the state as of here.
    ReadAnswered {
        /// Which read.
        read: u64,
        /// Everything up to this entry was in it.
        position: LogPosition,
    },
    /// A watcher of this prefix was given an event. Each watcher resumes after the last one it was given, at whatever node.
    Watched {
        /// Which watcher.
        watcher: u64,
        /// What it watches.
        prefix: &'a str,
        /// What it was given.
        event: &'a PositionedEvent,
    },
    /// A watcher was told that the events before this one are compacted, and goes on after it.
    WatchCompacted {
        /// Which watcher.
        watcher: u64,
        /// Where it goes on after.
        oldest: fencepost_core::Position,
    },
    /// A watcher has now seen everything of its prefix up to and including this index.
    WatchedThrough {
        /// Which watcher.
        watcher: u64,
        /// What it watches.
        prefix: &'a str,
        /// The last index whose events it has seen.
        index: u64,
    },
    /// Somebody came to the guarded store.
    Store(&'a Access),
    /// From now on the world is disturbed: bounds on time do not hold.
    Disturbed,
    /// From now on every node is up, every link works and every clock runs, and nothing will be disturbed before the run ends.
    Healed,
    /// From now on this node leads, or none does. It runs, serves, takes entries and reaches a majority. Told only in runs in which
    /// nothing but the lead and the holders is disturbed.
    Leads {
        /// Which node, and in which term.
        leader: Option<(u64, u64)>,
        /// Whether the leader before it handed over to it.
        planned: bool,
    },
    /// From now on nodes that were healed must serve, and nobody may wait for what is free: what each live node says of itself.
    Serves {
        /// Which node.
        node: u64,
        /// Whether it leads and serves, or knows who leads.
        ready: bool,
    },
    /// What the leader shows of a member at that moment, and whether that member runs.
    Shown {
        /// Which member.
        node: u64,
        /// Whether its process runs.
        lives: bool,
        /// Whether the leader hears it, as it says.
        hears: Hears,
    },
    /// The cluster was restored from a backup: a new cluster with a new log, no session and raised tokens. Answers of the old one may
    /// still be under way.
    Restored {
        /// The new cluster.
        cluster: u128,
    },
    /// A node serves a stream from now on.
    Connected {
        /// Which stream.
        stream: StreamId,
        /// Whose.
        client: usize,
        /// Which node.
        node: u64,
        /// Which lock state of the node it is for.
        tier: Tier,
    },
    /// A node has read what a client said.
    Said {
        /// On which stream.
        stream: StreamId,
        /// What.
        message: &'a v1::ClientMessage,
    },
    /// A lock state took a command that a node submitted for a stream.
    Submitted(StreamCommand),
    /// A lock state decided a command. The node's edge has not heard it yet.
    Decided {
        /// The command.
        command: StreamCommand,
        /// The entry that decided it.
        position: LogPosition,
        /// What came of it.
        reply: &'a Reply,
    },
    /// A lock state tells a session something unasked. The node's edge has not heard it yet.
    Pushed {
        /// At which node.
        node: u64,
        /// Which lock state of the node.
        tier: Tier,
        /// The entry that caused it.
        position: LogPosition,
        /// What.
        push: &'a Push,
    },
    /// A message has left a node.
    Sent {
        /// On which stream.
        stream: StreamId,
        /// What it says.
        message: &'a v1::ServerMessage,
    },
    /// The node's end of a stream is gone.
    StreamOver {
        /// Which.
        stream: StreamId,
    },
    /// A node serves in another term from now on, or not any more. Streams belong to a term: those of the node end now.
    TermOver {
        /// Which node.
        node: u64,
    },
    /// Something happened to a user of the efficiency tier. Only `Asked`, `Told` and `Acts` are told so.
    InMemory {
        /// The cluster and the group that the user's process was greeted with last: each term has a group of its own.
        group: (u128, u64),
        /// What happened.
        fact: &'a Fact<'a>,
    },
    /// The run is over.
    Over,
}

/// What somebody did at the guarded store, and what the store said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The protected resource.
    pub name: Name,
    /// Whose grant.
    pub session: SessionId,
    /// The token that was presented.
    pub token: Token,
    /// What was done.
    pub what: AccessKind,
    /// Whether the guard let it through.
    pub accepted: bool,
}

/// What was done at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// A read with a shared grant's token.
    Read,
    /// An exclusive holder claimed before its first read.
    Claim,
    /// A write of a value that was decided from a read of this version.
    Write {
        /// The version of the value that the writer had read.
        based_on: u64,
        /// The version that is there after it, if it was accepted.
        makes: u64,
    },
}
