//! The error type of all guards. Each variant says who must act: the caller, or the operator of the store.
//!
//! An error of a store's own library is passed on as [`Error::Store`], not interpreted.

use fencepost_core::BadWord;

use crate::once::Before;
use crate::rules::Stale;

/// Why an access did not take place. Nothing was done, except perhaps after [`Error::Store`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store has seen a newer token. The caller has lost its lock.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The caller used a name that is not valid.
    #[error("the name is not valid: {0}")]
    BadName(#[from] BadWord),
    /// The work of this key was done before. The caller has nothing to do.
    #[error(transparent)]
    Before(#[from] Before),
    /// The caller used a key that is not valid.
    #[error("the key is not valid: {0}")]
    BadKey(#[source] BadWord),
    /// The caller asks for something that this kind of store cannot promise.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The operator has not prepared the store for this version of the guard.
    #[error("{0}")]
    NotInstalled(String),
    /// The store failed, or could not be reached. Its own error says what became of the transaction.
    #[error("the store failed: {0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// The stale token, if that is the reason.
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            Error::Stale(stale) => Some(stale),
            _ => None,
        }
    }

    /// The work that was done before, if that is the reason.
    pub fn before(&self) -> Option<&Before> {
        match self {
            Error::Before(before) => Some(before),
            _ => None,
        }
    }

    /// Wraps an error of a store's own library.
    #[allow(dead_code, reason = "unused in a build without the Cargo feature of any store")]
    pub(crate) fn store(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Store(error.into())
    }
}
