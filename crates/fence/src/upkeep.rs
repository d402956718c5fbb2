//! What operators do with a guarded store, whichever it is: install, look, tidy up.

use fencepost_core::Token;

/// The form of the marks in SQLite, Redis, files and objects. A store with a newer one is refused. Guards that are programs
/// inside their store count their own versions: `postgres::VERSION`, `mysql::VERSION`.
pub const SCHEMA_VERSION: u32 = 1;

/// What installing came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// There was nothing, and now there is.
    New,
    /// It was there in an older version. The marks stay as they were.
    Upgraded {
        /// The version that was there.
        from: u32,
        /// The version that is there now.
        to: u32,
    },
    /// It was there already. Nothing was changed.
    AlreadyThere,
}

/// A guarded store, seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The form of its marks.
    pub version: u32,
    /// No token below this one is admitted anywhere.
    pub base: Token,
    /// How many names have marks.
    pub names: u64,
    /// How many writes were admitted under names that have marks.
    pub writes: u64,
    /// The highest token seen under any name.
    pub highest: Token,
}

/// What tidying up came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// How many names lost their marks.
    pub names: u64,
    /// The base floor that stands for them from now on.
    pub base: Token,
}
