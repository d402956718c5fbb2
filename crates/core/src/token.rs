//! Tokens as protected stores see them: one type that writes and one that only reads.
//!
//! The state machine knows one [`Token`]; which of the two it becomes is decided by the mode of the grant. What these types
//! refuse is the mistake: a reader's number cannot be used to write, and a plain number is neither.

use std::fmt;
use std::str::FromStr;

use crate::bounds;
use crate::words::Token;

/// The token of an exclusive lock: a store may accept a write with it, and refuses every older one.
///
/// Only an exclusive lock gives one, so that a reader's number cannot be used to write by mistake. Where a token has come a long
/// way, in a header or an environment variable, parse it: `"42".parse::<FencingToken>()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(Token);

/// The token of a shared or update lock: good for reading, never for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadToken(Token);

/// Text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a whole number from 1 to 2^53 - 1, in digits: pass on what the lock service gave")]
pub struct BadToken;

impl FencingToken {
    /// The token of a grant that is known to be exclusive. For lock clients; whoever has a lock asks it for its token.
    pub fn of_exclusive(token: Token) -> FencingToken {
        FencingToken(token)
    }

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
    /// The token of a grant in whatever mode. For lock clients; whoever has a lock asks it for its token.
    pub fn of_grant(token: Token) -> ReadToken {
        ReadToken(token)
    }

    /// The number. It is below 2^53.
    pub fn get(self) -> u64 {
        self.0.0
    }
}

/// Who receives the text believes the sender that the grant was exclusive.
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
    // `u64::from_str` also takes a plus sign.
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
    fn text_becomes_a_token_only_if_it_is_one() {
        assert_eq!("42".parse(), Ok(FencingToken(Token(42))));
        assert_eq!(bounds::TOKEN_MAX.to_string().parse(), Ok(ReadToken(Token(bounds::TOKEN_MAX))));
        let beyond = (bounds::TOKEN_MAX + 1).to_string();
        for text in ["", "0", "-1", "+1", " 1", "1.0", "0x1", "99999999999999999999", &beyond] {
            assert_eq!(text.parse::<FencingToken>(), Err(BadToken), "{text:?}");
        }
    }
}
