//! The edge's error type: why a stream ends, a request is not taken, or a call is refused.
//!
//! Frames and gRPC each translate it in one file of the server. The reason is for programs and never changes. The message is for
//! people: it says what happened and what to do next.

use std::time::Duration;

/// Long enough for an election.
const ELECTION_RETRY: Duration = Duration::from_millis(500);
const OVERLOADED_RETRY: Duration = Duration::from_millis(100);
/// Space is freed by a snapshot, or by the operator.
const DISK_RETRY: Duration = Duration::from_secs(1);

/// A reason for programs. [`Reason::word`] is its text on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The client has closed its side of the stream. Not an error.
    Done,
    /// This node does not lead. Another node may lead.
    NotLeader,
    /// The node is no longer a member.
    Removed,
    /// The node is about to stop.
    ShuttingDown,
    /// The node lost leadership before the outcome was known.
    OutcomeUnknown,
    /// The message is not valid.
    Invalid,
    /// The node has too much to do.
    Overloaded,
    /// The disk is nearly full.
    DiskShort,
    /// The client does not read its answers.
    SlowReader,
    /// The node serves the largest allowed number of streams.
    TooManyStreams,
    /// The node serves the largest allowed number of watchers.
    TooManyWatchers,
    /// The node no longer has the events that a watcher asked for.
    Compacted,
    /// Another change of the members is under way.
    ChangeUnderWay,
    /// A learner is too far behind in the log to get a vote.
    NotCaughtUp,
    /// No member has this id.
    UnknownNode,
    /// The node is a member already.
    AlreadyMember,
    /// Another member has this name.
    NameTaken,
    /// The node does not know the format version that the cluster writes.
    FormatVersion,
    /// No other voting member could become leader.
    NoSuccessor,
    /// The leadership transfer did not finish in time.
    NotTransferred,
    /// The caller came to the wrong port, or without TLS.
    WrongDoor,
    /// Any other refusal. The message says why.
    Refused,
    /// The node itself failed. The operator should read its log.
    Internal,
}

impl Reason {
    /// The word that clients compare.
    pub const fn word(self) -> &'static str {
        match self {
            Reason::Done => "",
            Reason::NotLeader => "NOT_LEADER",
            Reason::Removed => "REMOVED",
            Reason::ShuttingDown => "SHUTTING_DOWN",
            Reason::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Reason::Invalid => "INVALID",
            Reason::Overloaded => "OVERLOADED",
            Reason::DiskShort => "DISK_SHORT",
            Reason::SlowReader => "SLOW_READER",
            Reason::TooManyStreams => "TOO_MANY_STREAMS",
            Reason::TooManyWatchers => "TOO_MANY_WATCHERS",
            Reason::Compacted => "COMPACTED",
            Reason::ChangeUnderWay => "CHANGE_UNDER_WAY",
            Reason::NotCaughtUp => "NOT_CAUGHT_UP",
            Reason::UnknownNode => "UNKNOWN_NODE",
            Reason::AlreadyMember => "ALREADY_MEMBER",
            Reason::NameTaken => "NAME_TAKEN",
            Reason::FormatVersion => "FORMAT_VERSION",
            Reason::NoSuccessor => "NO_SUCCESSOR",
            Reason::NotTransferred => "NOT_TRANSFERRED",
            Reason::WrongDoor => "WRONG_DOOR",
            Reason::Refused => "REFUSED",
            Reason::Internal => "INTERNAL",
        }
    }
}

/// Why a stream ends, or a call is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// For programs.
    pub reason: Reason,
    /// For people: what happened, and what to do next.
    pub message: String,
    /// The leader's address for clients, if another node is known to lead.
    pub leader: Option<String>,
    /// The pause after which a retry can succeed.
    pub retry_after: Option<Duration>,
}

impl End {
    /// An end without a leader's address and without a pause.
    pub fn new(reason: Reason, message: impl Into<String>) -> End {
        End { reason, message: message.into(), leader: None, retry_after: None }
    }

    /// The same end, with the pause after which a retry can succeed.
    pub fn retry_after(self, retry_after: Duration) -> End {
        End { retry_after: Some(retry_after), ..self }
    }

    /// Another node leads, at this address for clients.
    pub fn not_leader(leader: String) -> End {
        let message = format!("this node does not lead: ask {leader}");
        End { leader: Some(leader), ..End::new(Reason::NotLeader, message) }
    }

    /// This node knows no leader. The message says which nodes it hears.
    pub fn no_leader(message: impl Into<String>) -> End {
        End::new(Reason::NotLeader, message).retry_after(ELECTION_RETRY)
    }

    /// The node is no longer a member, and knows it.
    pub fn removed() -> End {
        let message =
            "this node was removed from the cluster: ask another one, and stop this one and delete its directory";
        End::new(Reason::Removed, message)
    }

    /// The node is about to stop.
    pub fn shutting_down() -> End {
        End::new(Reason::ShuttingDown, "this node is shutting down: ask another one").retry_after(ELECTION_RETRY)
    }

    /// The node lost leadership before the outcome was known.
    pub fn outcome_unknown() -> End {
        let message = "this node lost leadership before the outcome was known: the change may or may not have been made; \
                       check before you ask again";
        End::new(Reason::OutcomeUnknown, message)
    }

    /// The message is not valid.
    pub fn invalid(message: impl Into<String>) -> End {
        End::new(Reason::Invalid, message)
    }

    /// Another change of the members, or a leadership transfer, must finish first.
    pub fn wait_for_change(reason: Reason, message: impl Into<String>) -> End {
        End::new(reason, message).retry_after(ELECTION_RETRY)
    }

    /// The client does not read its answers.
    pub(crate) fn slow_reader() -> End {
        End::new(
            Reason::SlowReader,
            "this connection does not read its answers: attach its sessions again, and read faster",
        )
    }
}

/// Why a command was not taken. It was not carried out, and will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// The node does not lead. Every stream ends soon; its end says where to go.
    NotLeader,
    /// Too many commands wait for the log.
    Overloaded,
    /// The disk is nearly full, and the command would make the state larger.
    DiskShort,
}

impl NotTaken {
    /// The message to the client, for people.
    pub const fn message(self) -> &'static str {
        match self {
            NotTaken::NotLeader => "this node does not lead: ask again soon",
            NotTaken::Overloaded => "this node has too much to do: ask again in a moment",
            NotTaken::DiskShort => "the disk is nearly full: releases go on, new locks are refused; free space",
        }
    }

    /// The pause after which a retry can succeed.
    pub const fn retry_after(self) -> Duration {
        match self {
            NotTaken::NotLeader => ELECTION_RETRY,
            NotTaken::Overloaded => OVERLOADED_RETRY,
            NotTaken::DiskShort => DISK_RETRY,
        }
    }
}

impl From<NotTaken> for End {
    fn from(why: NotTaken) -> End {
        let reason = match why {
            NotTaken::NotLeader => Reason::NotLeader,
            NotTaken::Overloaded => Reason::Overloaded,
            NotTaken::DiskShort => Reason::DiskShort,
        };
        End::new(reason, why.message()).retry_after(why.retry_after())
    }
}
