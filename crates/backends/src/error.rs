//! The error of this crate: what can go wrong before a request is sent, and what the lock system answers.
//!
//! [`Error::Lock`] holds the three answers of the Fencepost client: refused, failed, and outcome unknown. The other variants mean
//! that nothing was sent and that the caller or the rules must change.

use crate::promises::NotPromised;

/// Why a lock was not acquired.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system does not promise what was asked for. Nothing was sent.
    #[error(transparent)]
    NotPromised(#[from] NotPromised),
    /// The address names no system that this program can speak to.
    #[error("{address:?} is not the address of a lock system: {why}. `fencepost backends` lists the addresses")]
    BadAddress {
        /// The address, without a password.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The rules of this client forbid the request. Nothing was sent.
    #[error("the rule for {prefix:?} says {rule}: {advice}")]
    AgainstTheRule {
        /// The prefix of the rule.
        prefix: String,
        /// What the rule says.
        rule: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The system refused, nothing was done, or the outcome is unknown: as in the Fencepost client.
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
    /// Whether the wait timed out.
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
