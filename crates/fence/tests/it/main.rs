//! The integration tests of this crate, in one program: each program costs a link and a start.

mod cases;
mod file;
mod guide;
mod histories;
mod history;
mod http;
mod mysql;
mod object_store;
mod postgres;
mod redis;
mod sqlite;
mod suite;
