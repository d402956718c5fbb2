//! The Rust SDK of Fencepost: locks from a replicated service, with fencing tokens that keep a paused client from doing harm.
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
//! // Or in one step: the work is stopped when the lock is lost.
//! client.lock("nightly").run(|lock| async move { write(lock.token(), 500).await }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What to rely on
//!
//! - A [`Guard`] says how long it is certainly held ([`Hold::remaining`]), warns before that ends, and when it is lost it never
//!   comes back. But nobody can stop a program that was paused in the middle of a write. So hand [`Hold::token`](Hold) to the
//!   store, and let the store refuse older ones.
//! - Dropping an acquire cancels it at the server. Dropping a guard gives the lock back in the background.
//! - [`Error`] has three answers: the service said no, nothing was done, nobody knows.
//! - A broken connection is no lost lock: the session goes on with the next one, and every request is carried out once.
//!
//! # How it is built
//!
//! `fencepost-session` decides and knows neither sockets nor clocks; a thin driver gives it both.

pub mod clock;
#[cfg(feature = "blocking")]
pub mod blocking;

mod admin;
mod calls;
mod client;
mod driver;
mod election;
mod error;
mod guard;
mod lock;
mod observe;
mod semaphore;
mod session;
mod shared;
mod stream;
mod tls;
mod watch;

pub use admin::{Admin, Backup, Members, NewMember};
pub use client::{Client, ClientBuilder};
pub use clock::Nanos;
pub use election::{Election, Leader, Leadership, Observer};
pub use error::{Error, Failed, Refused, Unknown};
pub use fencepost_session::Tier;
pub use fencepost_session::client::{GrantState, Lost};
pub use guard::{
    Efficiency, Exclusive, Guard, Hold, Mixed, Mode, NotConverted, Permit, PermitGuard, Released, Shared, Update,
};
pub use lock::LockRequest;
pub use observe::{AsOf, ClusterStatus, MemberLag, MemberRole, MemberState, MemberStatus, SessionView};
pub use semaphore::SemaphoreRequest;
pub use session::{Session, SessionBuilder};
pub use tls::Tls;
pub use watch::{Watch, WatchRequest};

// The words of the service, as its own types.
pub use fencepost_core::{
    Arrival, BadToken, BadWord, BlockedBy, Blocker, Busy, BusyWhy, Counts, Cycle, CycleLink, Event, Explanation,
    FencingToken, FreezeId, FreezeRecord, GrantEnd, GrantId, GrantView, Held, Holder, HolderView, LockMode, LogicalMs,
    Name, OwnerName, Page, Position, PositionedEvent, QueueView, ReadToken, Refusal, SessionEnd, SessionId, Token,
    TokenCheck, Value, WaiterRecord,
};
pub use fencepost_wire::api::observe::ReadAt;
