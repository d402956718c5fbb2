//! Tokens as protected stores see them: one type that may write, and one that may only read.
//!
//! The state machine knows one [`Token`]. The mode of the grant decides which of the two types a client gets. The types
//! prevent a mistake: a reader's token cannot be used to write, and a plain number is not a token.

use std::fmt;
use std::str::FromStr;

use crate::bounds;
use crate::words::Token;

/// The token of an exclusive lock. A store accepts a write with it and refuses writes with an older one.
///
/// Only an exclusive lock has one, so that a reader's token cannot be used to write by mistake. A token that comes as text,
/// in a header or an environment variable, is parsed: `"42".parse::<FencingToken>()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(Token);

/// The token of a shared or update lock. It allows reads and never a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadToken(Token);

/// The text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a whole number from 1 to 2^53 - 1, in digits: pass on what the lock service gave")]
pub struct BadToken;

impl FencingToken {
    /// The token of a grant that is known to be exclusive. For lock clients: an application gets its token from the lock.
    pub fn of_exclusive(token: Token) -> FencingToken {
        FencingToken(token)
    }

    /// The number, below 2^53.
    pub fn get(self) -> u64 {
        self.0.0
    }

    /// The same token for reading: a holder that may write may also read.
    pub fn to_read(self) -> ReadToken {
        ReadToken(self.0)
    }
}

impl ReadToken {
    /// The token of a grant in any mode. For lock clients: an application gets its token from the lock.
    pub fn of_grant(token: Token) -> ReadToken {
        ReadToken(token)
    }

    /// The number, below 2^53.
    pub fn get(self) -> u64 {
        self.0.0
    }
}

/// The text does not say the mode: the receiver trusts the sender that the grant was exclusive.
impl FromStr for FencingToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<FencingToken, BadToken> {
        parse(text).map(FencingToken)
    }
}

impl FromStr for ReadToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<ReadToken, BadToken> {
        parse(text).map(ReadToken)
    }
}

fn parse(text: &str) -> Result<Token, BadToken> {
    // Digits only: `u64::from_str` would also accept a plus sign.
    let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten().ok_or(BadToken)?;
    if (1..=bounds::TOKEN_MAX).contains(&number) { Ok(Token(number)) } else { Err(BadToken) }
}

impl From<FencingToken> for Token {
    fn from(token: FencingToken) -> Token {
        token.0
    }
}

impl From<ReadToken> for Token {
    fn from(token: ReadToken) -> Token {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_in_range_are_parsed_as_a_token() {
        assert_eq!("42".parse(), Ok(FencingToken(Token(42))));
        assert_eq!(bounds::TOKEN_MAX.to_string().parse(), Ok(ReadToken(Token(bounds::TOKEN_MAX))));
        let beyond = (bounds::TOKEN_MAX + 1).to_string();
        for text in ["", "0", "-1", "+1", " 1", "1.0", "0x1", "99999999999999999999", &beyond] {
            assert_eq!(text.parse::<FencingToken>(), Err(BadToken), "{text:?}");
        }
    }
}
