//! The locks of Fencepost over the system that you run already.
//!
//! A team begins with the Redis or the Postgres that it has, and moves to consensus by changing an address:
//!
//! ```no_run
//! use fencepost_backends::Client;
//!
//! # async fn write(token: fencepost::FencingToken, balance: u64) {}
//! # async fn example() -> Result<(), fencepost_backends::Error> {
//! let client = Client::connect("etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379").await?;
//! let lock = client.lock("wallet:user_123").acquire().await?;
//! write(lock.token(), 400).await;
//! lock.release().await?;
//!
//! // A lock that only saves work may come from anywhere, and has no token.
//! let client = Client::connect("redis://127.0.0.1/").await?;
//! let lock = client.lock("thumbnails/42").efficiency().acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Honest about each
//!
//! Systems promise different things. [`System::keeps`] says what each promises, on which condition, or why not. Asking for more
//! than that is an error before anything is sent: a lock with a token cannot be had from Redis, whatever the code says.
//!
//! # How it is built
//!
//! [`Backend`] is all that a system has to do. Renewal and the loss signal ([`validity`]), time-outs, re-entrance, order, and the
//! circuit breaker are written once, above it. Fencepost itself is not below that trait: its own client keeps its locks.

pub mod table;
pub mod validity;

mod address;
mod backend;
mod backoff;
mod breaker;
mod client;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod grip;
mod guard;
mod keeper;
#[cfg(feature = "postgres")]
pub mod postgres;
mod promises;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
mod request;
mod rules;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use address::{backend, system};
pub use backend::{Ask, Backend, Lease, Mode, Proof, Undo};
pub use client::{Client, ClientBuilder};
pub use error::Error;
pub use fencepost::Tier;
pub use guard::{Guard, GuardAll, Hold};
pub use promises::{Kept, NotPromised, Promise, System};
pub use request::{LockAllRequest, LockRequest, Plan};
pub use rules::{Rule, Rules};
