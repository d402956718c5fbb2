//! The results of what operators do with a guarded store: install the guard, look at its marks, forget old marks.
//!
//! The work itself is in the module of each store. These types are the same for all stores, so that one command can serve them.

use fencepost_core::Token;

/// The version of the marks in Redis, files and objects. A guard refuses marks of any other version. Guards that keep tables have
/// versions of their own: `postgres::VERSION`, `mysql::VERSION`, `sqlite::VERSION`.
pub const SCHEMA_VERSION: u32 = 1;

/// The result of installing a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The guard was not there. Now it is.
    New,
    /// An older version was there and was upgraded. The marks stay as they were.
    Upgraded {
        /// The version that was there.
        from: u32,
        /// The version that is there now.
        to: u32,
    },
    /// This version was there already. Nothing was changed.
    AlreadyThere,
}

/// The state of a guarded store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version of its marks.
    pub version: u32,
    /// No token below this one is admitted anywhere.
    pub base: Token,
    /// How many names have marks.
    pub names: u64,
    /// How many writes were admitted under names that have marks.
    pub writes: u64,
    /// The highest token seen under any name.
    pub highest: Token,
    /// How many keys of finished work are recorded. `None` in a store without `once`.
    pub keys: Option<u64>,
}

/// The result of forgetting old marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// How many names lost their marks.
    pub names: u64,
    /// The base floor that now stands for the forgotten marks.
    pub base: Token,
}
