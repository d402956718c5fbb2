//! One client's stream, as its connection holds it: passes messages to the engine, and takes what the edge sends.
//!
//! Frames and gRPC share it. It ends the stream in the engine when it is dropped, so no path can forget that.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::Principal;
use fencepost_session::edge::{StreamId, Transmit};
use fencepost_session::{End, Tier};
use fencepost_wire::v1;

use crate::engine::Shared;

/// A stream that is served. It ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Connected(Arc<Inner>);

struct Inner {
    shared: Shared,
    stream: StreamId,
}

impl Connected {
    /// Begins to serve a stream.
    ///
    /// # Errors
    /// [`End`] says where to ask instead.
    pub(crate) fn new(shared: &Shared, principal: Principal, tier: Tier) -> Result<Connected, End> {
        let stream = shared.engine().connect(principal, tier)?;
        Ok(Connected(Arc::new(Inner { shared: shared.clone(), stream })))
    }

    /// Takes a message of the client. The next turn handles it.
    pub(crate) fn take_message(&self, message: v1::ClientMessage) {
        self.0.shared.engine().take_message(self.0.stream, message);
        self.0.shared.ring();
    }

    /// Ends the stream because of a fault on the connection. Messages in the send buffer still go out.
    pub(crate) fn end(&self, why: End) {
        self.0.shared.engine().end_stream(self.0.stream, why);
    }

    /// What to send on the stream next.
    pub(crate) fn poll_transmit(&self, context: &Context<'_>) -> Poll<Transmit> {
        self.0.shared.engine().poll_transmit(self.0.stream, context)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.engine().disconnect(self.stream);
    }
}
