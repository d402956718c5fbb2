//! What `run` can ask for: locks of either tier, permits of a semaphore, or a job.

use fencepost::{
    Busy, Efficiency, Error, Exclusive, Guard, Hold, LockRequest, OnceRequest, Permit, Refused, SemaphoreRequest,
    Shared, Turn,
};

/// A request that `run` can make.
pub(super) trait Request: Clone {
    /// What is granted.
    type Got;
    async fn try_once(self) -> Result<Result<Self::Got, Box<Busy>>, Error>;
    async fn wait(self) -> Result<Self::Got, Error>;
}

impl<M: Clone> Request for LockRequest<M> {
    type Got = Guard<M>;

    async fn try_once(self) -> Result<Result<Guard<M>, Box<Busy>>, Error> {
        self.try_acquire_or_busy().await
    }

    async fn wait(self) -> Result<Guard<M>, Error> {
        self.acquire().await
    }
}

impl Request for SemaphoreRequest {
    type Got = Guard<Permit>;

    async fn try_once(self) -> Result<Result<Guard<Permit>, Box<Busy>>, Error> {
        self.try_acquire_or_busy().await
    }

    async fn wait(self) -> Result<Guard<Permit>, Error> {
        self.acquire().await
    }
}

/// A completed job is an answer, not an error.
impl Request for OnceRequest {
    type Got = Turn;

    async fn try_once(self) -> Result<Result<Turn, Box<Busy>>, Error> {
        match self.no_wait().acquire().await {
            Ok(turn) => Ok(Ok(turn)),
            Err(Error::Refused(Refused::Busy(busy))) => Ok(Err(busy)),
            Err(error) => Err(error),
        }
    }

    async fn wait(self) -> Result<Turn, Error> {
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
