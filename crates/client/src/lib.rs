//! The Rust SDK of Fencepost: locks from a replicated service, with fencing tokens that keep out the late writes of a paused client.
//!
//! # The first minute
//!
//! ```no_run
//! use std::time::Duration;
//! use fencepost::Client;
//!
//! # async fn write(token: fencepost::FencingToken, balance: u64) {}
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fencepost::Error> {
//! let client = Client::connect("fencepost://127.0.0.1:7420").await?;
//!
//! let lock = client.lock("wallet:user_123").wait(Duration::from_secs(5)).acquire().await?;
//! write(lock.token(), 400).await;
//! lock.release().await?;
//!
//! // Or in one step: the work is stopped if the lock is lost.
//! client.lock("nightly").run(|lock| async move { write(lock.token(), 500).await }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What to rely on
//!
//! - A [`Guard`] says for how long its lock is certainly held ([`Hold::remaining`]), and warns before that time ends. A lost lock
//!   never comes back. But no client library can stop a program that is paused in the middle of a write. So pass
//!   [`Hold::token`](Hold) to the store, and let the store refuse older tokens.
//! - Dropping an acquire cancels it at the server. Dropping a guard gives the lock back in the background.
//! - [`Error`] has three kinds: the service refused, nothing was done, or the outcome is unknown.
//! - A broken connection does not lose a lock: the session continues on the next connection, and every request is carried out
//!   exactly once.
//! - The client warns through `tracing` when a lock or a session is lost, when locks are in jeopardy, and when the connection is lost
//!   and found again. [`ClientBuilder::on_event`] feeds the metrics of your program.
//!
//! # How it is built
//!
//! The crate `fencepost-session` makes all decisions, without sockets and clocks. A thin driver in this crate provides both.
//!
//! # Files
//!
//! For people who change this crate:
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | this page, and the public names |
//! | `client.rs` | [`Client`] and its builder: the address, the settings, and the session that all clones share |
//! | `address.rs` | [`Address`]: the nodes of a cluster as text |
//! | `duration.rs` | durations as people type them |
//! | `settings.rs` | settings as text: from flags, the environment or a file |
//! | `session.rs` | [`Session`]: separate sessions, and which session a lock belongs to |
//! | `lock.rs` | requests for locks, and the wait for a grant |
//! | `job.rs` | jobs that run once: attempts, checkpoints, completions |
//! | `semaphore.rs` | requests for permits of a semaphore |
//! | `election.rs` | leader elections, and observers of them |
//! | `guard.rs` | what a holder gets: the token, the remaining time, the loss signal, the release, changes of the mode |
//! | `events.rs` | what a client tells its program about itself: warnings, and events for metrics |
//! | `error.rs` | [`Error`]: refused, failed, or outcome unknown |
//! | `observe.rs` | read-only queries: locks, waiters, sessions, tokens, the cluster |
//! | `watch.rs` | watching events in log order |
//! | `admin.rs` | the operations of administrators |
//! | `calls.rs` | how a gRPC call finds the leader, and when it may be retried |
//! | `shared.rs` | the state that the driver and all handles share, and the slot for each answer |
//! | `driver.rs` | the one task of a client: it dials, sends, receives, and wakes callers |
//! | `stream.rs` | one framed connection to a node |
//! | `tls.rs` | TLS settings, the handshake, and hints when it fails |
//! | `clock.rs` | the clock of all deadlines |
//! | `process.rs` | what the system knows about this process, for people who ask who holds a lock |
//! | `blocking.rs` | the same API without `async` |

pub mod clock;
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod settings;

mod address;
mod admin;
mod calls;
mod client;
mod driver;
mod duration;
mod election;
mod error;
mod events;
mod guard;
mod job;
mod lock;
mod observe;
mod process;
mod semaphore;
mod session;
mod shared;
mod stream;
mod tls;
mod watch;

pub use address::{Address, CLIENT_PORT};
pub use admin::{Admin, Backup, Members, NewMember};
pub use client::{Client, ClientBuilder};
pub use clock::Nanos;
pub use election::{Election, Leader, Leadership, Observer};
pub use error::{Error, Failed, Obstacle, Refused, Unknown};
pub use events::{AcquireOutcome, ClientEvent};
pub use fencepost_session::Tier;
pub use fencepost_session::client::{GrantState, Lost};
pub use guard::{
    Efficiency, Exclusive, Guard, Hold, Mixed, Mode, NotConverted, Permit, PermitGuard, Released, Shared, Update,
};
pub use job::{Checkpoint, Completion, Job, JobHold, JobResult, Once, OnceError, OnceRequest, Turn};
pub use lock::LockRequest;
pub use observe::{AsOf, ClusterStatus, MemberLag, MemberRole, MemberState, MemberStatus, SessionView};
pub use semaphore::SemaphoreRequest;
pub use session::{Session, SessionBuilder};
pub use tls::Tls;
pub use watch::{Watch, WatchRequest};

// Types of the lock service itself.
pub use fencepost_core::{
    Arrival, AttemptEnd, AttemptRecord, BadToken, BadWord, BlockedBy, Blocker, Busy, BusyWhy, CheckpointRecord,
    CompletionRecord, Counts, Cycle, CycleLink, Event, Explanation, FencingToken, FreezeId, FreezeRecord, GrantEnd,
    GrantId, GrantView, Held, Holder, HolderView, JobBytes, JobFact, JobKey, JobRecord, JobTerms, JobView, LockMode,
    LogicalMs, Name, OwnerName, Page, Position, PositionedEvent, QueueView, ReadToken, Refusal, SessionEnd, SessionId,
    Token, TokenCheck, ToldReason, Value, WaiterRecord, shortened,
};
pub use fencepost_wire::api::observe::ReadAt;
pub use fencepost_wire::{ShownNode, WallClock};
