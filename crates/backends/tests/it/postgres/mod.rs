//! Tests that are specific to Postgres: the traps of each of the three ways to lock.
//!
//! The conformance suite (`tests/conformance`) covers what all systems have in common.

mod advisory;
mod database;
mod row;
mod setup;
mod table;
mod tokens;
