//! What `run` can ask for: locks of either tier, or permits of a semaphore.

use fencepost::{Busy, Efficiency, Error, Exclusive, Guard, Hold, LockRequest, Permit, SemaphoreRequest, Shared};

/// A request that `run` can make: for locks of either tier, or for permits.
pub(super) trait Request: Clone {
    type Mode;
    async fn try_once(self) -> std::result::Result<std::result::Result<Guard<Self::Mode>, Box<Busy>>, Error>;
    async fn wait(self) -> std::result::Result<Guard<Self::Mode>, Error>;
}

impl<M: Clone> Request for LockRequest<M> {
    type Mode = M;

    async fn try_once(self) -> std::result::Result<std::result::Result<Guard<M>, Box<Busy>>, Error> {
        self.try_acquire_or_busy().await
    }

    async fn wait(self) -> std::result::Result<Guard<M>, Error> {
        self.acquire().await
    }
}

impl Request for SemaphoreRequest {
    type Mode = Permit;

    async fn try_once(self) -> std::result::Result<std::result::Result<Guard<Permit>, Box<Busy>>, Error> {
        self.try_acquire_or_busy().await
    }

    async fn wait(self) -> std::result::Result<Guard<Permit>, Error> {
        self.acquire().await
    }
}

/// The token that the command gets, if such a lock has one.
pub(super) trait ShowsToken {
    fn shown_token(&self) -> Option<u64>;
}

impl ShowsToken for Hold<Exclusive> {
    fn shown_token(&self) -> Option<u64> {
        Some(self.token().get())
    }
}

impl ShowsToken for Hold<Shared> {
    fn shown_token(&self) -> Option<u64> {
        Some(self.token().get())
    }
}

impl ShowsToken for Hold<Efficiency> {
    fn shown_token(&self) -> Option<u64> {
        None
    }
}

impl ShowsToken for Hold<Permit> {
    fn shown_token(&self) -> Option<u64> {
        None
    }
}
