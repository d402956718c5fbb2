//! What observers read, as JSON: one shape for `-o json` of the command line, for HTTP and for events.
//!
//! Ids are text in hex, times are RFC 3339 in UTC beside milliseconds, tokens are numbers. A field without a value is `null`.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | this page |
//! | `words.rs` | ids and kinds as words |
//! | `time.rs` | wall-clock times |
//! | `client.rs` | what a session's client says about itself |
//! | `lock.rs` | grants, waiting requests and sessions |
//! | `explanation.rs` | everything about one name |
//! | `job.rs` | jobs that run once |
//! | `member.rs` | the cluster and its members |
//! | `event.rs` | events |

pub mod event;
pub mod job;

mod client;
mod explanation;
mod lock;
mod member;
mod time;
mod words;

pub use client::{Facts, client, metadata};
pub use explanation::{explanation, freeze};
pub use lock::{grant, job_of, session, waiter};
pub use member::{cluster, member_role, silent_ms};
pub use time::{civil, rfc_3339, with_since};
pub use words::{freeze_id, lock_mode, node_id, scope, session_id, takes};
