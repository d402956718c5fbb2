//! The lock semantics of Fencepost as a pure, deterministic state machine.
//!
//! [`LockState::apply`] takes a stamp and a batch of commands and returns everything that they cause. Nothing else changes
//! the state. There is no I/O here, no clock, no randomness and no `async`: the same log gives the same state on every
//! machine. `docs/semantics.md` states the rules, and `// Rule: name` marks the code that enforces one.
//!
//! A grant *stands* from the entry that gives it until the entry that ends it. The word is used for nothing else.
//!
//! # Files
//!
//! Start with `command.rs` and `outcome.rs`: together they name everything that the service can do.
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the public API |
//! | `command.rs` | what a log entry can hold: renewals, requests, administrative acts |
//! | `outcome.rs` | what `apply` returns: replies, pushes, refusals |
//! | `event.rs` | events for watchers, and the ring of recent events |
//! | `record.rs` | the state as plain records: what a snapshot holds |
//! | `words.rs` | names, ids, numbers and durations as types, valid from the moment they exist |
//! | `mode.rs` | the six lock modes and the table of their conflicts |
//! | `token.rs` | the two token types of protected stores: one may write, the other may only read |
//! | `bounds.rs` | every bound, with its reason |
//! | `format_version.rs` | the version of formats and rules, and each rule that differs between versions |
//! | `ports.rs` | types that the crates around the core share: instants, tickets, log positions |
//! | `state.rs` | `LockState`: the order within an entry, and which function handles which request |
//! | `table.rs` | the look-up of resources by name and of sessions by id |
//! | `resource.rs` | one name in use: its holders and its queue |
//! | `footprint.rs` | the names that a request needs, each with its mode |
//! | `lease.rs` | when the lease of a session or of a lock ends |
//! | `deadlines.rs` | what is due when |
//! | `digest.rs` | the state hash, updated with every change |
//! | `session.rs` | sessions: opened, renewed, attached, ended |
//! | `once.rs` | each request is carried out once: repeats and remembered answers |
//! | `acquire.rs` | requests for locks, and re-entry |
//! | `waiter.rs` | how a request waits: its queues, and where it is parked |
//! | `successors.rs` | who is granted after something was freed |
//! | `grant.rs` | how a grant begins, changes its mode, ends and rests |
//! | `convert.rs` | requests to change the mode of a held lock |
//! | `semaphore.rs` | semaphores: permits and limits |
//! | `ending.rs` | what a holder does to its own grants and requests: release, cancel, extend, set a value |
//! | `job.rs` | jobs that run once: keyed acquires, attempts, checkpoints, completions |
//! | `job_table.rs` | the records of jobs, their room, and who holds or waits for each |
//! | `admin.rs` | what an administrator does: break, evict, waive a rest, freeze, thaw, set a limit, act on jobs |
//! | `freeze.rs` | which names are frozen |
//! | `deadlock.rs` | the request that would close a cycle of waiting owners is refused |
//! | `suspect.rs` | sessions that seem to wait for each other: shown to people, never refused |
//! | `announce.rs` | what others are told: busy answers, pushes to sessions, events |
//! | `read.rs` | queries: explain, check, listings, counts |
//! | `snapshot.rs` | the state to records and back, and from a backup |
//! | `verify.rs` | whether everything derived agrees with the records |
//! | `planted.rs` | deliberate faults behind a feature, to test the tests |
//! | `made_up.rs` | a made-up version 2 behind a feature, to test upgrades |

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
mod job_table;
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
mod job;
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
    Acquire, Act, Action, Admin, Batch, JobReport, JobTerms, Lock, Locks, Open, Operation, Renewal, Request, Scope,
    Seen, TakePermits, Terms, Verdict, Wait,
};
pub use event::{ActFacts, Compacted, Event, EventRing, JobFact, Names, Position, PositionedEvent, RequestFacts};
pub use format_version::{FormatVersion, KnownVersions};
pub use mode::{LockMode, Mode, ModeSet};
pub use outcome::{
    Attached, AttachedGrant, AttachedJob, AttachedWait, Busy, BusyWhy, Cycle, CycleLink, Effects, GrantEnd, Held,
    Holder, Late, Outcome, Push, Refusal, Repeat, Reply, ReplyTo, SessionEnd, Takes, UnseenAnswer,
};
#[cfg(feature = "planted-bugs")]
pub use planted::{Bug, plant};
pub use ports::{LogPosition, Nanos, Ticket};
pub use read::{
    BlockedBy, Blocker, Counts, Explanation, GrantView, HolderView, JobView, Page, QueueView, SessionView, TokenCheck,
};
#[cfg(feature = "made-up-version")]
pub use record::RemarkRecord;
pub use record::{
    AnswerRecord, AttemptEnd, AttemptRecord, CheckpointRecord, CompletionRecord, FreezeRecord, GrantRecord, Header,
    JobRecord, Record, RestRecord, SemaphoreRecord, SessionRecord, WaiterRecord, Wants,
};
pub use snapshot::BadRecords;
pub use state::LockState;
pub use token::{BadToken, FencingToken, ReadToken};
pub use words::{
    Arrival, BadWord, Epoch, FreezeId, GrantId, JobBytes, JobKey, Keep, LockDelay, LogicalMs, Metadata, Millis, Name,
    OwnerName, Permits, Principal, Reason, RequestNumber, SecretHash, SessionId, Token, ToldReason, Ttl, Value,
    shortened,
};
