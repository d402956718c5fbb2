//! An access: the names that a caller shows to a guard, each with the token of the lock on it.
//!
//! The kind of an access (read, claim or write) is part of its type. So a guard that does the writing itself takes only a write,
//! and a token that may not write does not compile. Nothing is checked here: the guards do that.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use fencepost_core::{BadWord, FencingToken, Name, ReadToken, Token};

use crate::rules::{Shown, Use};

/// An access that reads.
#[derive(Clone, Copy, Debug)]
pub struct Reads;
/// An access that claims: it reads, and will write later.
#[derive(Clone, Copy, Debug)]
pub struct Claims;
/// An access that writes.
#[derive(Clone, Copy, Debug)]
pub struct Writes;

/// Everything that an access was decided from: each name, with the token of the lock on it.
///
/// ```
/// # use fencepost_core::{FencingToken, ReadToken};
/// use fencepost_fence::Access;
/// # let (order, price): (FencingToken, ReadToken) = ("7".parse().unwrap(), "5".parse().unwrap());
/// let access = Access::write("order:42", order).and_read("price:3", price);
/// assert_eq!(access.shown().unwrap().len(), 2);
/// ```
///
/// Only the token of an exclusive lock can write. A plain number does not compile,
///
/// ```compile_fail,E0308
/// # use fencepost_fence::Access;
/// let made_up: u64 = 42;
/// let _ = Access::write("wallet:7", made_up);
/// ```
///
/// nor does a reader's token,
///
/// ```compile_fail,E0308
/// # use fencepost_fence::{Access, ReadToken};
/// let reader: ReadToken = "42".parse().unwrap();
/// let _ = Access::write("wallet:7", reader);
/// ```
///
/// which cannot claim either:
///
/// ```compile_fail,E0308
/// # use fencepost_fence::{Access, ReadToken};
/// let reader: ReadToken = "42".parse().unwrap();
/// let _ = Access::claim("wallet:7", reader);
/// ```
///
/// A lock of the efficiency tier and the permits of a semaphore have the number of a grant, but no token:
///
/// ```compile_fail,E0308
/// # use fencepost_fence::{Access, Token};
/// struct EfficiencyGuard { grant: Token }
/// let lock = EfficiencyGuard { grant: Token(42) };
/// let _ = Access::write("wallet:7", lock.grant);
/// ```
#[derive(Clone, Debug)]
#[must_use = "an access does nothing until a guard admits it"]
pub struct Access<Kind> {
    /// `Err` if a name is not valid. The error is returned when the access is used.
    shown: Result<Vec<Shown>, BadWord>,
    kind: PhantomData<Kind>,
}

impl Access<Reads> {
    /// Reads under a shared or update lock.
    pub fn read(name: &str, token: ReadToken) -> Access<Reads> {
        Access::nothing().and(name, token.into(), Use::Read)
    }
}

impl Access<Claims> {
    /// The first access of a new holder that is going to write: from here on no older holder can write.
    pub fn claim(name: &str, token: FencingToken) -> Access<Claims> {
        Access::nothing().and(name, token.into(), Use::Claim)
    }

    /// Claims one more name.
    pub fn and_claim(self, name: &str, token: FencingToken) -> Access<Claims> {
        self.and(name, token.into(), Use::Claim)
    }
}

impl Access<Writes> {
    /// Writes under an exclusive lock.
    pub fn write(name: &str, token: FencingToken) -> Access<Writes> {
        Access::nothing().and(name, token.into(), Use::Write)
    }

    /// Writes under one more name.
    pub fn and_write(self, name: &str, token: FencingToken) -> Access<Writes> {
        self.and(name, token.into(), Use::Write)
    }
}

impl<Kind> Access<Kind> {
    /// Shows one more name that the decision was read from. If its token is stale, the whole access is refused.
    pub fn and_read(self, name: &str, token: ReadToken) -> Access<Kind> {
        self.and(name, token.into(), Use::Read)
    }

    /// What is shown.
    ///
    /// # Errors
    /// [`BadWord`] if one of the names is not valid.
    pub fn shown(&self) -> Result<&[Shown], BadWord> {
        self.shown.as_deref().map_err(|why| *why)
    }

    /// Every name whose marks the access is checked against, including the names above a path, in order.
    ///
    /// # Errors
    /// As [`Access::shown`].
    pub fn names(&self) -> Result<BTreeSet<Name>, BadWord> {
        let with_ancestors = |one: &Shown| one.name.ancestors().chain([one.name.clone()]).collect::<Vec<_>>();
        Ok(self.shown()?.iter().flat_map(with_ancestors).collect())
    }

    fn nothing() -> Access<Kind> {
        Access { shown: Ok(Vec::new()), kind: PhantomData }
    }

    fn and(mut self, name: &str, token: Token, used_to: Use) -> Access<Kind> {
        self.shown = self.shown.and_then(|mut shown| {
            shown.push(Shown { name: Name::new(name)?, token, used_to });
            Ok(shown)
        });
        self
    }
}
