//! The integration tests of this crate, in one program: each program costs a link and a start.

mod bounds;
mod differential;
mod exhaustive;
mod format_versions;
mod golden;
mod model;
mod picture;
mod planted;
mod scenario;
mod scenarios;
mod tidy;
