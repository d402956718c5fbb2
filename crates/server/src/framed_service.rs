//! Sessions on framed connections: the same streams as gRPC's (`lock_service.rs`), for clients that speak frames.
//!
//! One task reads and writes a connection. What has come is handed to the engine all at once, before the next turn; what the
//! turn has put into the outbox goes out as one message.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fencepost_wire::v1;
use futures_core::Stream;
use futures_util::{Sink, SinkExt};
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::bounds::{CLIENT_MESSAGE_BYTES_MAX, HANDSHAKE_TIMEOUT};
use crate::door::Connection;
use crate::engine::{Shared, Tier};
use crate::frames::{Frames, frames};
use crate::lock_service::{Connected, named};
use crate::outbox::Outbox;
use crate::status;

/// Serves a connection until it ends.
pub(crate) async fn serve(shared: Shared, connection: Connection) {
    let mut frames = frames::<v1::ClientMessage>(connection, CLIENT_MESSAGE_BYTES_MAX);
    let Ok(Some(first)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, frames.next()).await else { return };
    let begun = first.map_err(|error| invalid(&error)).and_then(|first| Ok((begin(&shared, &first)?, first)));
    let mut ended = match begun {
        Ok(((connected, outbox), first)) => {
            connected.take_message(first);
            let mut exchange = Exchange { frames: &mut frames, outbox, connected, is_ending: false };
            std::future::poll_fn(|context| exchange.poll(context)).await
        }
        Err(status) => frames.feed(end(&status)).await,
    };
    if ended.is_ok() {
        ended = SinkExt::<v1::ServerMessage>::close(&mut frames).await;
    }
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection was lost");
    }
}

fn begin(shared: &Shared, first: &v1::ClientMessage) -> Result<(Connected, Outbox), Status> {
    let begin = first.begin.as_ref().ok_or_else(|| {
        status::reason(Code::InvalidArgument, "INVALID", "a framed connection begins with who talks, and about what")
    })?;
    let principal = named(Some(&begin.client).filter(|client| !client.is_empty()).map(String::as_str))?;
    Connected::new(shared, principal, if begin.efficiency { Tier::Efficiency } else { Tier::Correctness })
}

/// What came was no good frame.
fn invalid(error: &io::Error) -> Status {
    status::reason(Code::InvalidArgument, "INVALID", error.to_string())
}

/// What gRPC would say in its status.
fn end(status: &Status) -> v1::ServerMessage {
    let info = status.get_details_error_info();
    let leader = info.as_ref().and_then(|info| info.metadata.get("leader").cloned());
    let reason = info.map(|info| info.reason).unwrap_or_default();
    let end = v1::StreamEnd { reason, message: status.message().to_owned(), leader };
    v1::ServerMessage { end: Some(end), ..v1::ServerMessage::default() }
}

struct Exchange<'a> {
    frames: &'a mut Frames<v1::ClientMessage>,
    outbox: Outbox,
    connected: Connected,
    /// Nothing more comes or goes but what is on its way out.
    is_ending: bool,
}

impl Exchange<'_> {
    /// Moves what can be moved, both ways. A client that does not read is still heard: neither side ever waits for the other
    /// to read first.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.poll_out(context)?;
            let mut frames = Pin::new(&mut *self.frames);
            let flushed = Sink::<v1::ServerMessage>::poll_flush(frames.as_mut(), context)?;
            if self.is_ending {
                return flushed.map(Ok);
            }
            match ready!(frames.poll_next(context)) {
                Some(Ok(message)) => self.connected.take_message(message),
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    self.outbox.end(invalid(&error));
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_out(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while !self.is_ending {
            let mut frames = Pin::new(&mut *self.frames);
            let Poll::Ready(ready) = Sink::<v1::ServerMessage>::poll_ready(frames.as_mut(), context) else { break };
            ready?;
            match Pin::new(&mut self.outbox).poll_next(context) {
                Poll::Ready(Some(Ok(message))) => frames.start_send(message)?,
                Poll::Ready(Some(Err(status))) => {
                    frames.start_send(end(&status))?;
                    self.is_ending = true;
                }
                Poll::Ready(None) => self.is_ending = true,
                Poll::Pending => break,
            }
        }
        Ok(())
    }
}
