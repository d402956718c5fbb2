//! The numbers that protected stores check.

use std::fmt;

use fencepost_core::Token;

/// The token of an exclusive lock: a store may accept a write with it, and refuses every older one.
///
/// Only an exclusive lock gives one, so that a reader's number cannot be used to write by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(pub(crate) Token);

/// The token of a shared or update lock: good for reading, never for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadToken(pub(crate) Token);

impl FencingToken {
    /// The number. It is below 2^53.
    pub fn get(self) -> u64 {
        self.0.0
    }

    /// As a token that reads: whoever may write may read.
    pub fn to_read(self) -> ReadToken {
        ReadToken(self.0)
    }
}

impl ReadToken {
    /// The number. It is below 2^53.
    pub fn get(self) -> u64 {
        self.0.0
    }
}

impl From<FencingToken> for Token {
    fn from(token: FencingToken) -> Token {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}

impl fmt::Display for ReadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.fmt(f)
    }
}
