//! Guards that make a store check fencing tokens, in one line of code.
//!
//! A lock alone does not give mutual exclusion: a paused holder can outlive its lease and write while the next holder works.
//! Every grant carries a token, and tokens only rise. So the store can recognise a late write, if it checks the token. A guard is
//! that check: it compares the token with the marks that it keeps, and commits together with the write. // Rule: same-transaction
//!
//! Every guard takes an [`Access`]: a claim before the first read, a write with every write.
//!
//! | feature | store | how |
//! |---|---|---|
//! | `postgres` | Postgres | a function in the transaction; triggers that refuse a write without a token |
//! | `mysql` | MySQL, MariaDB | a procedure in the transaction |
//! | `sqlite` | SQLite | marks in the transaction |
//! | `redis` | Redis | marks and write in one script. A fail-over can lose both: for efficiency only |
//! | `object-store` | S3 and similar | marks in the object, conditional put |
//! | `file` | files on one host | marks in a directory, one file lock |
//! | `http` | HTTP and gRPC services | a tower layer that reads `Fencing-Token`; the service's own store keeps the marks |
//!
//! All guards follow the same rules, written down in one module: [`rules`].

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
