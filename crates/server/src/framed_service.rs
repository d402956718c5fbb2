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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::StreamExt;
use tokio_util::codec::Framed;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::bounds::{CLIENT_MESSAGE_BYTES_MAX, HANDSHAKE_TIMEOUT};
use crate::door::Connection;
use crate::engine::{Shared, Tier};
use crate::frames::{Codec, frames};
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
            Exchange::new(&mut frames, outbox, |message| connected.take_message(message)).run().await
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

/// Both directions of a connection whose first message was good.
struct Exchange<'a, Socket, Take> {
    frames: &'a mut Framed<Socket, Codec<v1::ClientMessage>>,
    outbox: Outbox,
    /// Hands a message of the client to the engine.
    take: Take,
    /// Nothing more comes or goes but what is on its way out.
    is_ending: bool,
    /// The client takes nothing any more: it has closed its socket. What it said before that is still read, since a program that
    /// ends gives its locks back and does not wait for the answers.
    is_deaf: bool,
}

impl<'a, Socket, Take> Exchange<'a, Socket, Take>
where
    Socket: AsyncRead + AsyncWrite + Unpin,
    Take: FnMut(v1::ClientMessage),
{
    fn new(frames: &'a mut Framed<Socket, Codec<v1::ClientMessage>>, outbox: Outbox, take: Take) -> Self {
        Exchange { frames, outbox, take, is_ending: false, is_deaf: false }
    }

    async fn run(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Moves what can be moved, both ways. A client that does not read is still heard: neither side ever waits for the other
    /// to read first.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let flushed = match self.is_deaf {
                true => Poll::Pending,
                false => self.poll_out(context),
            };
            match flushed {
                Poll::Ready(Err(error)) if self.is_ending => return Poll::Ready(Err(error)),
                Poll::Ready(Err(_)) => self.is_deaf = true,
                flushed if self.is_ending => return flushed,
                _ => {}
            }
            match ready!(Pin::new(&mut *self.frames).poll_next(context)) {
                Some(Ok(message)) => (self.take)(message),
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    self.outbox.end(invalid(&error));
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Sends what waits to go out.
    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        Sink::<v1::ServerMessage>::poll_flush(Pin::new(&mut *self.frames), context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost_wire::put_frame;
    use prost::bytes::BytesMut;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn what_a_client_said_before_it_hung_up_is_heard_though_its_answers_are_not_taken() {
        let (mut client, socket) = tokio::io::duplex(1024);
        let mut said = BytesMut::new();
        let keep_alives = vec![v1::KeepAlive { epoch: 7, ..v1::KeepAlive::default() }];
        let message = v1::ClientMessage { keep_alives, ..v1::ClientMessage::default() };
        put_frame(&message, &mut said);
        client.write_all(&said).await.expect("the pipe has room");
        drop(client);
        let outbox = Outbox::default();
        outbox.hello(v1::Hello::default());
        let mut frames = Framed::new(socket, Codec::new(1024));
        let mut heard = Vec::new();
        Exchange::new(&mut frames, outbox, |message| heard.push(message)).run().await.expect("it ends in good order");
        assert_eq!(heard, [message]);
    }
}
