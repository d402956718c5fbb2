//! Guards that make a store check fencing tokens, in one line.
//!
//! A lock by itself does not give mutual exclusion: a holder that pauses outlives its lease and writes beside the next one. The
//! token that every grant carries only rises, so the store can tell the late one, if it is asked to look. A guard is that look:
//! it compares the token with the marks it keeps, and commits together with the write. // Rule: same-transaction
//!
//! Every guard takes an [`Access`]: claim before the first read, write with every write.
//!
//! | feature | store | how |
//! |---|---|---|
//! | `postgres` | Postgres | a function in the transaction; triggers that refuse a write without a token |
//! | `mysql` | MySQL, MariaDB | a procedure in the transaction |
//! | `sqlite` | SQLite | marks in the transaction |
//! | `redis` | Redis | marks and write in one script. A fail-over can lose both: for efficiency only |
//! | `object-store` | S3 and its like | marks in the object, conditional put |
//! | `file` | files on one host | marks in a directory, one file lock |
//! | `http` | HTTP and gRPC services | a tower layer that reads `Fencing-Token`; the service's own store keeps the marks |
//!
//! The rules themselves are one file: [`rules`].

pub mod rules;

mod access;
mod error;
mod upkeep;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "object-store")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use access::{Access, Claims, Reads, Writes};
pub use error::Error;
pub use fencepost_core::{BadToken, BadWord, FencingToken, Name, ReadToken, Token};
pub use rules::Stale;
pub use upkeep::{Forgotten, Installed, SCHEMA_VERSION, Status};
