//! Why an access did not take place, by who must act.

use fencepost_core::BadWord;

use crate::rules::Stale;

/// Why an access did not take place. Nothing of it was done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody newer has been there. The caller has lost its lock.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The caller named something that cannot be a name.
    #[error("that name cannot be one: {0}")]
    BadName(#[from] BadWord),
    /// The caller asks for what this kind of store cannot promise.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The operator has not prepared the store for this version of the guard.
    #[error("{0}")]
    NotInstalled(String),
    /// The store itself failed, or could not be reached. What it says about the transaction counts.
    #[error("the store failed: {0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// The stale token, if that is what it was.
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            Error::Stale(stale) => Some(stale),
            _ => None,
        }
    }

    /// What a store's own library says.
    #[allow(dead_code, reason = "every guard that talks to a store uses it, and none need be chosen")]
    pub(crate) fn store(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Store(error.into())
    }
}
