//! What can go wrong before a lock is asked for, and the three answers of the client after that.

use crate::promises::NotPromised;

/// Why there is no lock.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system does not promise what was asked for. Nothing was sent.
    #[error(transparent)]
    NotPromised(#[from] NotPromised),
    /// The address names no system that this program can speak to.
    #[error("{address:?} is no address of a lock system: {why}. `fencepost backends` lists them")]
    BadAddress {
        /// What was said, without a password.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The rules of this client forbid it. Nothing was sent.
    #[error("the rule for {prefix:?} says {rule}: {advice}")]
    AgainstTheRule {
        /// The prefix of the rule.
        prefix: String,
        /// What it says.
        rule: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The system said no, nothing was done, or nobody knows: as in the client of Fencepost.
    #[error(transparent)]
    Lock(#[from] fencepost::Error),
}

impl From<fencepost::Refused> for Error {
    fn from(refused: fencepost::Refused) -> Error {
        Error::Lock(refused.into())
    }
}

impl From<fencepost::Failed> for Error {
    fn from(failed: fencepost::Failed) -> Error {
        Error::Lock(failed.into())
    }
}

impl Error {
    /// Whether the wait was too short.
    pub fn is_timed_out(&self) -> bool {
        matches!(self, Error::Lock(error) if error.is_timed_out())
    }

    /// Why the lock is lost, if it is.
    pub fn lost(&self) -> Option<fencepost::Lost> {
        match self {
            Error::Lock(error) => error.lost(),
            _ => None,
        }
    }
}
