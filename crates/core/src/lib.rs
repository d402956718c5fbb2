//! The lock semantics of Fencepost as a pure, deterministic state machine.
//!
//! [`LockState::apply`] takes a stamp and a batch of commands and says everything that they cause; nothing else changes
//! the state. There is no I/O here, no clock, no randomness and no `async`: the same log gives the same state on every
//! machine. The files follow the order of `docs/semantics.md`, and `// Rule: name` marks where a rule is enforced.

pub mod bounds;

// The words of the specification.
mod command;
mod event;
mod format_version;
mod mode;
mod outcome;
mod ports;
mod record;
mod token;
mod words;

// The state and what it is made of.
mod deadlines;
mod digest;
mod footprint;
mod lease;
#[cfg(feature = "made-up-version")]
mod made_up;
mod resource;
mod state;
mod table;

// The rules, in the order of the specification.
mod session;
mod acquire;
mod waiter;
mod successors;
mod suspect;
mod grant;
mod once;
mod convert;
mod semaphore;
mod ending;
mod admin;
mod freeze;
mod deadlock;
mod announce;

// The state from outside.
mod planted;
mod read;
mod snapshot;
mod verify;

pub use bounds::Bound;
pub use command::{
    Acquire, Act, Action, Admin, Batch, Lock, Locks, Open, Operation, Renewal, Request, Scope, Seen, TakePermits,
    Terms, Wait,
};
pub use event::{ActFacts, Compacted, Event, EventRing, Names, Position, PositionedEvent, RequestFacts};
pub use format_version::{FormatVersion, KnownVersions};
pub use mode::{LockMode, Mode, ModeSet};
pub use outcome::{
    Attached, AttachedGrant, Busy, BusyWhy, Cycle, CycleLink, Effects, GrantEnd, Held, Holder, Late, Outcome, Push,
    Refusal, Repeat, Reply, ReplyTo, SessionEnd, Takes, UnseenAnswer,
};
#[cfg(feature = "planted-bugs")]
pub use planted::{Bug, plant};
pub use ports::{LogPosition, Nanos, Ticket};
pub use read::{
    BlockedBy, Blocker, Counts, Explanation, GrantView, HolderView, Page, QueueView, SessionView, TokenCheck,
};
#[cfg(feature = "made-up-version")]
pub use record::RemarkRecord;
pub use record::{
    AnswerRecord, FreezeRecord, GrantRecord, Header, Record, RestRecord, SemaphoreRecord, SessionRecord, WaiterRecord,
    Wants,
};
pub use snapshot::BadRecords;
pub use state::LockState;
pub use token::{BadToken, FencingToken, ReadToken};
pub use words::{
    Arrival, BadWord, Epoch, FreezeId, GrantId, LockDelay, LogicalMs, Metadata, Millis, Name, OwnerName, Permits,
    Principal, Reason, RequestNumber, SecretHash, SessionId, Token, Ttl, Value,
};
