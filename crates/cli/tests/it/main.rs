//! The integration tests of the command line, in one program, because each program costs a link and a start.

mod bad_input;
mod bench;
mod completion;
mod demo;
mod fail_fast;
#[cfg(feature = "stores")]
mod fence;
mod first_hour;
mod harness;
mod job;
mod look;
mod members;
mod readme;
mod run;
mod serve;
mod tls;
