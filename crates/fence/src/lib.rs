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
//! Postgres, MySQL, MariaDB and SQLite also have `once`: it records the key of a piece of work in the transaction of the work,
//! and refuses the second. Such a record needs a store that commits row and work together, so the others have none.
//!
//! All guards follow the same rules, written down in one module: [`rules`].
//!
//! # Files
//!
//! For people who change this crate:
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | this page, and the public names |
//! | `rules.rs` | the specification of every guard: which access is admitted, and which marks it lifts. No I/O |
//! | `access.rs` | [`Access`]: names with their tokens, with the kind of access as a type. Its doc tests show what does not compile |
//! | `once.rs` | [`Once`] and [`Before`]: whether work was done before; and which texts are keys |
//! | `error.rs` | [`Error`]: why an access did not take place, and who must act |
//! | `upkeep.rs` | the results of operators' work: install, status, forget old marks; and the version of the marks |
//! | `postgres.rs` | installs and calls the SQL of Postgres, and parses its refusals |
//! | `postgres.sql` | the guard inside Postgres: functions and triggers. Three functions run with the installer's rights |
//! | `mysql.rs` | installs and calls the procedures of MySQL and MariaDB, and parses their refusals |
//! | `mysql.sql` | the guard inside MySQL and MariaDB: procedures. Three of them run with the installer's rights |
//! | `redis.rs` | calls the script of Redis, and parses its refusals |
//! | `redis.lua` | the guard inside Redis: checks the tokens and runs the commands, in one script |
//! | `sqlite.rs` | the guard for SQLite: the rules run in this process, inside the transaction |
//! | `file.rs` | the guard for files on one host: the rules run in this process, under a lock of the kernel |
//! | `object.rs` | the guard for object stores: the rules run in this process, before a conditional put |
//! | `http.rs` | the module for HTTP and gRPC services: its documentation and public names |
//! | `http/` | the header `Fencing-Token`, the layer that parses it, and refusals as answers |

pub mod rules;

mod access;
mod error;
mod once;
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
pub use once::{Before, Once};
pub use rules::Stale;
pub use upkeep::{Forgotten, Installed, SCHEMA_VERSION, Status};
