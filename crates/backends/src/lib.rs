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
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the public API |
//! | `promises.rs` | what each system promises, on which condition, or why not; the error for a request that needs an unkept promise |
//! | `table.rs` | the promises as rows for `fencepost backends` and as the page `docs/backends.md` |
//! | `backend.rs` | the trait of a lock system: try once, wait, renew, release; cleanup after a dropped request |
//! | `validity.rs` | how long a lock is certainly held, when to renew it, when it is lost; no I/O |
//! | `keeper.rs` | the task that renews a granted lock as `validity.rs` says, and reports its loss |
//! | `client.rs` | the client and its builder: connections, rules, circuit breakers, re-entry of owners |
//! | `request.rs` | lock requests: the checks before anything is sent, timeouts, the order of several locks, dry runs |
//! | `rules.rs` | rules by prefix: which system and which tier a name uses |
//! | `breaker.rs` | the circuit breaker: requests to a dead server fail at once |
//! | `backoff.rs` | the pauses between retries |
//! | `guard.rs` | the guards that a holder gets, the same for all systems |
//! | `grip.rs` | the lock behind a guard: of Fencepost, of another system, or of a dry run |
//! | `address.rs` | from an address to a connected system; removes passwords from addresses in errors |
//! | `error.rs` | the error of this crate |
//! | `redis.rs` | locks in one Redis |
//! | `redlock.rs` | locks on a majority of independent Redis masters |
//! | `etcd.rs` | locks in etcd |
//! | `etcd/` | the queue of keys, and the calls to the members of etcd |
//! | `zookeeper.rs` | locks in ZooKeeper |
//! | `zookeeper/` | the queue of nodes, a contender in it, and the session with its proofs |
//! | `postgres/` | locks in Postgres: lock table, advisory locks, row locks, and their SQL |

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
