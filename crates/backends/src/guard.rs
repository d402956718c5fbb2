//! What a holder has in hand: as in the client of Fencepost, and by the same names, so that moving is changing an address.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use fencepost::{Error, Exclusive, FencingToken, GrantState, Lost, Name, ReadToken, Released, Shared, Token};
use futures_util::future::select_all;

use crate::grip::Grip;

/// A held lock. Dropping it gives the lock back in the background and never blocks.
///
/// One of the efficiency tier has no token, so it cannot stand where one is needed:
///
/// ```compile_fail,E0599
/// fn token_of(lock: &fencepost_backends::Guard<fencepost::Efficiency>) {
///     lock.token();
/// }
/// ```
#[must_use = "the lock is given back when the guard is dropped"]
pub struct Guard<M> {
    hold: Hold<M>,
    /// There is something to give back.
    open: bool,
}

/// What a guard shows: cheap to clone, and no claim.
pub struct Hold<M> {
    grip: Arc<dyn Grip>,
    /// Nothing in the efficiency tier.
    token: Token,
    names: Arc<[Name]>,
    mode: PhantomData<fn() -> M>,
}

impl<M> Guard<M> {
    pub(crate) fn new(grip: Arc<dyn Grip>, token: Token, names: Arc<[Name]>) -> Guard<M> {
        Guard { hold: Hold { grip, token, names, mode: PhantomData }, open: true }
    }

    /// What the guard shows, for those who work under the lock.
    pub fn hold(&self) -> Hold<M> {
        self.hold.clone()
    }

    /// Gives the lock back and waits until that is done.
    ///
    /// # Errors
    /// [`fencepost::Refused::Lost`] if it had expired, [`fencepost::Refused::NotOwner`] if somebody else has it by now.
    /// [`Error::Unknown`] if no answer came; the lock ends with its deadline at the latest.
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
    /// How long the lock is certainly held. It grows again with every renewal that is confirmed.
    pub fn remaining(&self) -> Duration {
        self.grip.remaining()
    }

    /// Whether the lock is certainly held at this moment. After a false there is never a true again.
    pub fn is_held(&self) -> bool {
        !matches!(self.state(), GrantState::Lost(_))
    }

    /// Held, in jeopardy, or lost and why.
    pub fn state(&self) -> GrantState {
        self.grip.state()
    }

    /// Waits until the lock is lost, and says why. Also when it was given back.
    ///
    /// # Cancellation
    /// Safe: it only looks.
    pub async fn lost(&self) -> Lost {
        let mut state = self.state();
        loop {
            match state {
                GrantState::Lost(why) => return why,
                other => state = self.state_other_than(other).await,
            }
        }
    }

    /// Waits until the state is another than this one, and says which.
    ///
    /// # Cancellation
    /// Safe: it only looks.
    pub async fn state_other_than(&self, known: GrantState) -> GrantState {
        self.grip.state_other_than(known).await
    }

    /// The resources.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.names.iter()
    }
}

/// Several locks, held together. Dropping it gives all of them back.
#[derive(Debug)]
#[must_use = "the locks are given back when the guard is dropped"]
pub struct GuardAll<M> {
    /// In the order in which they were taken: one for all names, or one for each.
    pub(crate) guards: Vec<Guard<M>>,
}

impl GuardAll<Exclusive> {
    /// The fencing token for a name, if it is held. Where the locks were taken one by one, each has a token of its own.
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        let guard = self.guards.iter().find(|guard| guard.names().any(|held| held.as_str() == name))?;
        Some(guard.token())
    }
}

impl<M> GuardAll<M> {
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
    /// Safe: it only looks.
    pub async fn lost(&self) -> Lost {
        select_all(self.guards.iter().map(|guard| Box::pin(guard.lost()))).await.0
    }

    /// The resources, in the order in which they were taken.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.guards.iter().flat_map(|guard| guard.names())
    }

    /// Gives all of them back, the last one first.
    ///
    /// # Errors
    /// The first that came up. The others are given back all the same.
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
