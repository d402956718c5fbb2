//! What the stage and its workers say to each other: an order a line on a worker's standard input, an answer a line on its
//! standard output, both as JSON.
//!
//! A worker does nothing unless it is told to. So whoever tells it decides where it stands when it is paused.

use serde::{Deserialize, Serialize};

/// What a worker is told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Make an account with this balance; the table and the marks of the guard as well, if they are not there.
    Open { account: String, balance: i64 },
    /// Acquire the lock on an account and read its balance. With the guard: claim first.
    Decide { account: String, ttl_ms: u64, guarded: bool },
    /// Look whether the lock is still held, as a careful program does before it writes.
    Look,
    /// Write the balance that was read, less this amount. It does not look again: this is the write that was on its way.
    Write { amount: i64 },
    /// Give the lock back.
    Release,
    /// Say what an account holds.
    Peek { account: String },
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Opened,
    Decided {
        token: u64,
        balance: i64,
    },
    Held,
    Lost,
    Written {
        balance: i64,
    },
    /// The guard refused the write.
    Stale {
        token: u64,
        highest: u64,
    },
    Released,
    Holds {
        balance: i64,
    },
    /// Something around it does not work.
    Failed {
        why: String,
    },
}
