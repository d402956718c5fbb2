//! The API of Fencepost's locks over the lock system that you already run.
//!
//! A team starts with its own Redis or Postgres, and moves to consensus by changing an address:
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
//! // A lock that only saves work may come from any system, and has no token.
//! let client = Client::connect("redis://127.0.0.1/").await?;
//! let lock = client.lock("thumbnails/42").efficiency().acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What each system promises
//!
//! Systems promise different things. [`System::keeps`] tells whether a system keeps a promise, on which condition, or why not. A
//! request for an unkept promise fails before anything is sent. For example, Redis never grants a lock with a token.
//!
//! # How it is built
//!
//! A system implements [`Backend`]. Renewal and the loss signal ([`validity`]), timeouts, re-entry, the order of several locks,
//! and the circuit breaker are written once, above that trait. Fencepost itself does not implement it: its own client renews its
//! locks.

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
