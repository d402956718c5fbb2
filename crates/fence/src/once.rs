//! Work that is done once: the words that the guards with a `once` share, and what a key is.
//!
//! A lock gives the work to one holder at a time. It cannot tell the next holder that the work is done: a crash between the last
//! write and the lock service's record of it runs the work again. So the store keeps a row for each key, written in the
//! transaction of the work, and refuses the second. // Rule: once
//!
//! Only a store that commits the row together with the work can do this: Postgres, MySQL, MariaDB and SQLite. Files, objects and
//! Redis cannot.

use fencepost_core::{JobKey, Name, Token};

use crate::error::Error;

/// What `try_once` has found. In each case the transaction can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the work may have been done before"]
pub enum Once {
    /// The key was not recorded. Now it is, in this transaction: do the work, and commit.
    First,
    /// The key was recorded before: leave this work out.
    Before(Before),
}

/// The work of a key was done before. Nothing is left to do: roll back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the work with the key {key:?} under {name} was done before, {}: leave it out",
    if *own { format!("with this same token {}", token.0) } else { format!("with token {}", token.0) }
)]
pub struct Before {
    /// The name of the lock.
    pub name: Name,
    /// The key of the work.
    pub key: String,
    /// The token that the recorded work was done with.
    pub token: Token,
    /// The token is the caller's own. If the connection was lost at COMMIT, that commit took effect.
    pub own: bool,
}

/// Checks a key by the rule of the lock service's jobs, so that one key serves both.
///
/// # Errors
/// [`Error::BadKey`].
#[allow(dead_code, reason = "unused in a build without a store that has `once`")]
pub(crate) fn check_key(key: &str) -> Result<(), Error> {
    JobKey::new(key).map(drop).map_err(Error::BadKey)
}
