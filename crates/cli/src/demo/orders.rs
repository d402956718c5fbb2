//! The protocol between the demo and its workers: orders on a worker's standard input, answers on its standard output, one line
//! of JSON each.
//!
//! A worker does nothing without an order. So the sender of the orders decides at which step a worker is paused.

use serde::{Deserialize, Serialize};

/// What a worker must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Create an account with this balance, and also the table and the guard's marks if they are missing.
    Open { account: String, balance: i64 },
    /// Acquire the lock on an account and read its balance. If `guarded`, first claim the account with the lock's token.
    Decide { account: String, ttl_ms: u64, guarded: bool },
    /// Check whether the lock is still held, as a careful program does before it writes.
    Look,
    /// Write the balance that was read, less this amount. Without another check: this is the write that was on its way.
    Write { amount: i64 },
    /// Release the lock.
    Release,
    /// Read the balance of an account.
    Peek { account: String },
}

/// The answer to an order.
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
    /// The order failed, for example because a node or the store cannot be reached.
    Failed {
        why: String,
    },
}
