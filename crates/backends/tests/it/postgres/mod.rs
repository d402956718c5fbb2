//! What is particular to Postgres: the traps of each way to lock in it. What all systems do is in `tests/conformance`.

mod advisory;
mod database;
mod row;
mod setup;
mod table;
mod tokens;
