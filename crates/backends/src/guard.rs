//! The guards that a holder gets.
//!
//! They have the methods of the guards in the Fencepost client, under the same names, so that a team can move to Fencepost by
//! changing an address. They only pass calls on to the lock behind them ([`Grip`]).

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fencepost::{Error, Exclusive, FencingToken, GrantState, Lost, Name, ReadToken, Released, Shared, Token};
use futures_util::future::select_all;

use crate::grip::Grip;

/// A held lock. Dropping it releases the lock in the background and never blocks.
///
/// A guard of the efficiency tier has no token, so code that needs one does not compile:
///
/// ```compile_fail,E0599
/// fn token_of(lock: &fencepost_backends::Guard<fencepost::Efficiency>) {
///     lock.token();
/// }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<M> {
    hold: Hold<M>,
    /// Whether the drop must release the lock.
    open: bool,
}

/// A view of a guard: cheap to clone. It does not keep the lock.
pub struct Hold<M> {
    grip: Arc<dyn Grip>,
    /// Meaningless in the efficiency tier.
    token: Token,
    names: Arc<[Name]>,
    mode: PhantomData<fn() -> M>,
}

impl<M> Guard<M> {
    pub(crate) fn new(grip: Arc<dyn Grip>, token: Token, names: Arc<[Name]>) -> Guard<M> {
        Guard { hold: Hold { grip, token, names, mode: PhantomData }, open: true }
    }

    /// A view of the guard, for code that works under the lock.
    pub fn hold(&self) -> Hold<M> {
        self.hold.clone()
    }

    /// Releases the lock and waits for the answer.
    ///
    /// # Errors
    /// [`fencepost::Refused::Lost`] if it had expired, [`fencepost::Refused::NotOwner`] if another holder has it now.
    /// [`Error::Unknown`] if no answer came; the lock ends at its deadline at the latest.
    ///
    /// # Cancellation
    /// The release goes on in the background.
    pub async fn release(mut self) -> Result<Released, Error> {
        self.open = false;
        self.hold.grip.clone().release().await
    }
}

impl Hold<Exclusive> {
    /// The fencing token. Give it to the store with every write.
    pub fn token(&self) -> FencingToken {
        FencingToken::of_exclusive(self.token)
    }
}

impl Hold<Shared> {
    /// The token for reads.
    pub fn token(&self) -> ReadToken {
        ReadToken::of_grant(self.token)
    }
}

impl<M> Hold<M> {
    /// How long the lock is certainly held. Every confirmed renewal extends it.
    pub fn remaining(&self) -> Duration {
        self.grip.remaining()
    }

    /// Whether the lock is certainly held now. Once false, it stays false.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), GrantState::Lost(_))
    }

    /// Held, in jeopardy, or lost and why.
    pub fn state(&self) -> GrantState {
        self.grip.state()
    }

    /// Waits until the lock is lost or released, and returns the reason.
    ///
    /// # Cancellation
    /// Safe: it only reads.
    pub async fn lost(&self) -> Lost {
        let mut state = self.state();
        loop {
            match state {
                GrantState::Lost(why) => return why,
                other => state = self.state_other_than(other).await,
            }
        }
    }

    /// Waits until the state differs from `known`, and returns the new state.
    ///
    /// # Cancellation
    /// Safe: it only reads.
    pub async fn state_other_than(&self, known: GrantState) -> GrantState {
        self.grip.state_other_than(known).await
    }

    /// The resources.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.names.iter()
    }
}

/// Several locks, held together. Dropping it releases all of them.
#[derive(Debug)]
#[must_use = "the locks are released when the guard is dropped"]
pub struct GuardAll<M> {
    /// In the order of acquisition: one guard for all names, or one for each name.
    pub(crate) guards: Vec<Guard<M>>,
}

impl GuardAll<Exclusive> {
    /// The fencing token for a name, if it is held. Where the locks were acquired one by one, each has its own token.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        let guard = self.guards.iter().find(|guard| guard.names().any(|held| held.as_str() == name))?;
        Some(guard.token())
    }
}

impl<M> GuardAll<M> {
    /// A view of each guard, in the order of acquisition.
    pub fn holds(&self) -> impl Iterator<Item = Hold<M>> {
        self.guards.iter().map(|guard| guard.hold())
    }

    /// How long all of them are certainly held.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(|guard| guard.remaining()).min().unwrap_or_default()
    }

    /// Whether all of them are certainly held.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_held())
    }

    /// Waits until one of them is lost.
    ///
    /// # Cancellation
    /// Safe: it only reads.
    pub async fn lost(&self) -> Lost {
        select_all(self.guards.iter().map(|guard| Box::pin(guard.lost()))).await.0
    }

    /// The resources, in the order of acquisition.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.guards.iter().flat_map(|guard| guard.names())
    }

    /// Releases all of them, the last one first.
    ///
    /// # Errors
    /// The first error. The other locks are still released.
    pub async fn release(mut self) -> Result<(), Error> {
        let mut result = Ok(());
        while let Some(guard) = self.guards.pop() {
            result = result.and(guard.release().await.map(drop));
        }
        result
    }
}

impl<M> Drop for GuardAll<M> {
    fn drop(&mut self) {
        while let Some(guard) = self.guards.pop() {
            drop(guard);
        }
    }
}

impl<M> Deref for Guard<M> {
    type Target = Hold<M>;

    fn deref(&self) -> &Hold<M> {
        &self.hold
    }
}

impl<M> Drop for Guard<M> {
    fn drop(&mut self) {
        if self.open {
            self.hold.grip.clone().let_go();
        }
    }
}

impl<M> Clone for Hold<M> {
    fn clone(&self) -> Hold<M> {
        let Hold { grip, token, names, .. } = self;
        Hold { grip: grip.clone(), token: *token, names: names.clone(), mode: PhantomData }
    }
}

impl<M> fmt::Debug for Hold<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("names", &self.names).field("token", &self.token).finish_non_exhaustive()
    }
}

impl<M> fmt::Debug for Guard<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.hold).finish()
    }
}
