//! The integration tests of this crate, in one program: each program costs a link and a start.

mod checkers;
mod command_line;
mod planted;
mod random_log;
mod seeds;
mod stories;
mod upgrades;
