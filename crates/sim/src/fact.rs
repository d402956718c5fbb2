//! The facts of a run: everything that the checkers see, in the order of the world's time.
//!
//! The world reports a fact at the moment when it happens. The checkers get no other input, so a fact carries all that they need.
//! Facts hold no judgement and no text: the checkers judge them, and `telling.rs` words them.

use fencepost_core::{
    Action, Batch, Effects, GrantId, JobKey, JobRecord, LogPosition, LogicalMs, Name, Outcome, PositionedEvent, Push,
    Repeat, Reply, RequestNumber, SessionId, Token,
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
    /// The time this many milliseconds later.
    pub fn after_ms(self, ms: u64) -> WorldTime {
        WorldTime(self.0 + ms * 1_000_000)
    }

    /// In whole milliseconds.
    pub fn ms(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// One entry of the log with its effects. Reported once for each index, in order, when the first node applies it. No client can
/// have an answer from it earlier.
#[derive(Clone, Debug)]
pub struct LoggedEntry {
    /// Its position in the log.
    pub position: LogPosition,
    /// Its logical time.
    pub stamp: LogicalMs,
    /// The leader's wall clock when it wrote the entry.
    pub wall_clock_ms: Option<u64>,
    /// Its commands.
    pub batch: Batch,
    /// What applying it caused.
    pub effects: Effects,
}

/// The kind of a command, as far as the edge of a node distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Opens a session.
    Open,
    /// Binds an existing session to another stream.
    Attach,
    /// Keeps a session alive.
    KeepAlive,
    /// A request of a session, with its number.
    Request(RequestNumber),
}

/// A command that a node submitted to a lock state for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamCommand {
    /// The stream that asked for it.
    pub stream: StreamId,
    /// The session that it is for.
    pub session: SessionId,
    /// Its kind.
    pub kind: Kind,
}

/// Something that happened in a run.
#[derive(Clone, Debug)]
pub enum Fact<'a> {
    /// The log has one more entry.
    Logged(&'a LoggedEntry),
    /// A node has applied the log up to this position.
    Applied {
        /// The node.
        node: u64,
        /// The last entry that it has applied.
        position: LogPosition,
        /// The hash of its state at that position.
        state_hash: u64,
    },
    /// A user made a request. Retries are not reported.
    Asked {
        /// The session, and the number of the request.
        request: RequestKey,
        /// What the user asked for.
        action: &'a Action,
    },
    /// An answer, or a push that ends a wait, reached a client.
    Heard {
        /// The cluster that sent it.
        cluster: u128,
        /// The session that it is for.
        session: SessionId,
        /// The request that it answers; `None` for an open, an attach or a keep-alive.
        number: Option<RequestNumber>,
        /// The position of the deciding entry, according to the node.
        position: LogPosition,
        /// The stamp of that entry, according to the node.
        stamp: LogicalMs,
        /// The outcome.
        outcome: &'a Outcome,
        /// Set if the node says that it repeats an earlier answer.
        repeat: Option<Repeat>,
    },
    /// The client library told a user how a request ended.
    Told {
        /// The request.
        request: RequestKey,
        /// How it ended.
        answer: &'a Answer,
    },
    /// A user acts because it believes that it holds a grant: its guard said so at this moment.
    Acts {
        /// The session of the grant.
        session: SessionId,
        /// The grant.
        grant: GrantId,
        /// Its token, as the user knows it.
        token: Token,
    },
    /// A user began a linearizable read of the state.
    ReadAsked {
        /// The read.
        read: u64,
    },
    /// A read was answered.
    ReadAnswered {
        /// The read.
        read: u64,
        /// The last entry whose effects the answer includes.
        position: LogPosition,
    },
    /// A read of a job was answered.
    JobRead {
        /// The last entry whose effects the answer includes.
        position: LogPosition,
        /// The stamp of that entry.
        stamp: LogicalMs,
        /// The job's name.
        name: &'a Name,
        /// The job's key.
        key: &'a JobKey,
        /// What is remembered of it.
        record: Option<&'a JobRecord>,
    },
    /// A user did not hear whether it completed a job, and read the job. It came to this conclusion.
    JobConcluded {
        /// The job's name.
        name: &'a Name,
        /// The job's key.
        key: &'a JobKey,
        /// The token of the user's grant.
        token: Token,
        /// Whether that grant completed the job.
        completed: bool,
    },
    /// A watcher received an event. Each watcher resumes after the last event that it received, at any node.
    Watched {
        /// The watcher.
        watcher: u64,
        /// The prefix that it watches.
        prefix: &'a str,
        /// The event.
        event: &'a PositionedEvent,
    },
    /// A watcher was told that earlier events are compacted. It continues after this position.
    WatchCompacted {
        /// The watcher.
        watcher: u64,
        /// The position after which it continues.
        oldest: fencepost_core::Position,
    },
    /// A watcher has seen all events of its prefix up to and including this index.
    WatchedThrough {
        /// The watcher.
        watcher: u64,
        /// The prefix that it watches.
        prefix: &'a str,
        /// The last index whose events it has seen.
        index: u64,
    },
    /// A call reached the guarded store.
    Store(&'a Access),
    /// Faults begin: bounds on time do not hold from now on.
    Disturbed,
    /// Faults end: from now on every node is up, every link works and every clock runs, until the run ends.
    Healed,
    /// The leader changed. A leader in this sense runs, serves, accepts entries and reaches a majority. Reported only in lease runs, in
    /// which nothing but the leadership and the holders is disturbed.
    Leads {
        /// The node that leads now and its term; `None` while no node leads.
        leader: Option<(u64, u64)>,
        /// Whether the previous leader handed over to it.
        planned: bool,
    },
    /// The state of a healed node at the time by which it must serve. From now on no request may wait for a free resource.
    Serves {
        /// The node.
        node: u64,
        /// Whether it leads and serves, or knows the leader.
        ready: bool,
    },
    /// How the leader shows a member, and whether that member really runs.
    Shown {
        /// The member.
        node: u64,
        /// Whether its process runs.
        lives: bool,
        /// Whether the leader hears it, according to the leader.
        hears: Hears,
    },
    /// The cluster was restored from a backup: a new cluster with a new log, no sessions and raised tokens. Answers of the old cluster
    /// may still be in flight.
    Restored {
        /// The new cluster.
        cluster: u128,
    },
    /// A node begins to serve a stream.
    Connected {
        /// The stream.
        stream: StreamId,
        /// The client at its other end.
        client: usize,
        /// The node.
        node: u64,
        /// Which of the two lock states of the node the stream uses.
        tier: Tier,
    },
    /// A node read a message of a client.
    Said {
        /// The stream.
        stream: StreamId,
        /// The message.
        message: &'a v1::ClientMessage,
    },
    /// A lock state accepted a command that a node submitted for a stream.
    Submitted(StreamCommand),
    /// A lock state decided a command. Reported before the node's edge hears of it.
    Decided {
        /// The command.
        command: StreamCommand,
        /// The entry that decided it.
        position: LogPosition,
        /// The decision.
        reply: &'a Reply,
    },
    /// A lock state pushes a message to a session. Reported before the node's edge hears of it.
    Pushed {
        /// The node.
        node: u64,
        /// The lock state of the node.
        tier: Tier,
        /// The entry that caused it.
        position: LogPosition,
        /// The push.
        push: &'a Push,
    },
    /// A message left a node.
    Sent {
        /// The stream.
        stream: StreamId,
        /// The message.
        message: &'a v1::ServerMessage,
    },
    /// The node's end of a stream is closed.
    StreamOver {
        /// The stream.
        stream: StreamId,
    },
    /// A node stopped serving, or serves in another term. Streams belong to a term: those of the node end now.
    TermOver {
        /// The node.
        node: u64,
    },
    /// A fact about a user of the efficiency tier. Wraps only `Asked`, `Told` and `Acts`.
    InMemory {
        /// The cluster and the group of the last greeting that the user's process received. Each term has its own group.
        group: (u128, u64),
        /// The fact.
        fact: &'a Fact<'a>,
    },
    /// The run is over.
    Over,
}

/// One access to the guarded store, with the store's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The protected resource.
    pub name: Name,
    /// The session of the grant.
    pub session: SessionId,
    /// The token that was presented.
    pub token: Token,
    /// The key of the job whose work this is.
    pub key: Option<JobKey>,
    /// The kind of access.
    pub what: AccessKind,
    /// Whether the guard accepted it.
    pub accepted: bool,
}

/// The kind of an access to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// A read with a shared grant's token.
    Read,
    /// A claim of an exclusive holder, before its first read.
    Claim,
    /// A write of a value that is based on an earlier read.
    Write {
        /// The version that the writer had read.
        based_on: u64,
        /// The version after the write, if it was accepted.
        makes: u64,
    },
    /// The row of a job, which is written once: with the work, by the token of the job's grant.
    Once {
        /// Whether the row was written now. `false` if it stood already, or was refused.
        is_new: bool,
    },
}
