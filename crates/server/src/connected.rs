//! One client's stream, as a connection holds it: what came goes to the engine, what the edge has for it comes out.

use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::Principal;
use fencepost_session::edge::{StreamId, Transmit};
use fencepost_session::{End, Tier};
use fencepost_wire::v1;

use crate::engine::Shared;

/// A stream that is served. It is over when the last copy of this is dropped, however that comes.
#[derive(Clone)]
pub(crate) struct Connected(Arc<Inner>);

struct Inner {
    shared: Shared,
    stream: StreamId,
}

impl Connected {
    /// # Errors
    /// [`End`] says where to ask instead.
    pub(crate) fn new(shared: &Shared, principal: Principal, tier: Tier) -> Result<Connected, End> {
        let stream = shared.engine().connect(principal, tier)?;
        Ok(Connected(Arc::new(Inner { shared: shared.clone(), stream })))
    }

    /// Takes what the client said, for the next turn.
    pub(crate) fn take_message(&self, message: v1::ClientMessage) {
        self.0.shared.engine().take_message(self.0.stream, message);
        self.0.shared.ring();
    }

    /// Ends the stream, for a fault of the connection. What was to be sent before still goes out.
    pub(crate) fn end(&self, why: End) {
        self.0.shared.engine().end_stream(self.0.stream, why);
    }

    /// What goes down the stream next.
    pub(crate) fn poll_transmit(&self, context: &Context<'_>) -> Poll<Transmit> {
        self.0.shared.engine().poll_transmit(self.0.stream, context)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.engine().disconnect(self.stream);
    }
}
