//! The lock behind a guard, without its type: a lock of Fencepost, a lock of another system, or nothing in a dry run.
//!
//! Guards use only the trait [`Grip`], so they are the same for all systems. Locks of other systems are renewed in `keeper.rs`,
//! not here.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost::{Error, GrantState, Lost, Refused, Released, Token};

/// A held lock, without its type.
#[async_trait]
pub(crate) trait Grip: Debug + Send + Sync + 'static {
    /// Its fencing token, if it has one.
    fn token(&self) -> Option<Token>;
    /// Held, in jeopardy, or lost and why.
    fn state(&self) -> GrantState;
    /// How long it is certainly held.
    fn remaining(&self) -> Duration;
    /// Waits until the state differs from `known`.
    async fn state_other_than(&self, known: GrantState) -> GrantState;
    /// Releases it and waits for the answer. Dropping the future does not stop the release.
    async fn release(self: Arc<Self>) -> Result<Released, Error>;
    /// Releases it in the background.
    fn let_go(self: Arc<Self>);
}

/// A lock of Fencepost, which the Fencepost client renews.
#[derive(Debug)]
pub(crate) struct Native<M> {
    hold: fencepost::Hold<M>,
    token: Option<Token>,
    /// `None` after the release.
    guard: Mutex<Option<fencepost::Guard<M>>>,
}

impl<M> Native<M> {
    pub(crate) fn new(guard: fencepost::Guard<M>, token: Option<Token>) -> Native<M> {
        Native { hold: guard.hold(), token, guard: Mutex::new(Some(guard)) }
    }

    fn take(&self) -> Option<fencepost::Guard<M>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The Fencepost client forgets a released lock and then reports it as gone. This puts the real reason back.
    fn with_reason(&self, state: GrantState) -> GrantState {
        match (state, &*self.guard.lock().unwrap_or_else(PoisonError::into_inner)) {
            (GrantState::Lost(Lost::Gone), None) => GrantState::Lost(Lost::Released),
            (state, _) => state,
        }
    }
}

#[async_trait]
impl<M: Debug + Send + Sync + 'static> Grip for Native<M> {
    fn token(&self) -> Option<Token> {
        self.token
    }

    fn state(&self) -> GrantState {
        self.with_reason(self.hold.state())
    }

    fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    async fn state_other_than(&self, known: GrantState) -> GrantState {
        self.with_reason(self.hold.state_other_than(known).await)
    }

    async fn release(self: Arc<Self>) -> Result<Released, Error> {
        match self.take() {
            Some(guard) => guard.release().await,
            None => Err(Refused::NotHeld.into()),
        }
    }

    fn let_go(self: Arc<Self>) {
        drop(self.take());
    }
}

/// The lock of a dry run: always held, and not a real lock.
#[derive(Debug)]
pub(crate) struct Nothing;

#[async_trait]
impl Grip for Nothing {
    fn token(&self) -> Option<Token> {
        None
    }

    fn state(&self) -> GrantState {
        GrantState::Held
    }

    fn remaining(&self) -> Duration {
        Duration::MAX
    }

    async fn state_other_than(&self, known: GrantState) -> GrantState {
        match known {
            GrantState::Held => std::future::pending().await,
            _ => GrantState::Held,
        }
    }

    async fn release(self: Arc<Self>) -> Result<Released, Error> {
        Ok(Released { count_left: 0 })
    }

    fn let_go(self: Arc<Self>) {}
}
