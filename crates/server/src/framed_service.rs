//! Sessions on framed connections: the same streams as gRPC's (`lock_service.rs`), for clients that speak frames.
//!
//! One task reads and writes a connection. It hands all messages that have come to the engine before the next turn, and sends what
//! the turn has put into the send buffer as one message. It decides nothing about sessions.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fencepost_session::bounds::CLIENT_MESSAGE_BYTES_MAX;
use fencepost_session::edge::Transmit;
use fencepost_session::{End, Tier};
use fencepost_wire::v1;
use futures_core::Stream;
use futures_util::{Sink, SinkExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_stream::StreamExt;
use tokio_util::codec::Framed;

use crate::bounds::HANDSHAKE_TIMEOUT;
use crate::caller::named;
use crate::connected::Connected;
use crate::door::Connection;
use crate::engine::Shared;
use crate::frames::{Codec, frames};

/// Serves a connection until it ends.
pub(crate) async fn serve(shared: Shared, connection: Connection) {
    let mut frames = frames::<v1::ClientMessage>(connection, CLIENT_MESSAGE_BYTES_MAX);
    let Ok(Some(first)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, frames.next()).await else { return };
    let begun = first.map_err(|error| invalid(&error)).and_then(|first| Ok((begin(&shared, &first)?, first)));
    let mut ended = match begun {
        Ok((connected, first)) => {
            connected.take_message(first);
            Exchange::new(&mut frames, connected).run().await
        }
        Err(why) => frames.feed(end(why)).await,
    };
    if ended.is_ok() {
        ended = SinkExt::<v1::ServerMessage>::close(&mut frames).await;
    }
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection was lost");
    }
}

fn begin(shared: &Shared, first: &v1::ClientMessage) -> Result<Connected, End> {
    let begin = first.begin.as_ref().ok_or_else(|| {
        End::invalid("the first message of a framed connection must have `begin`: the client and the tier")
    })?;
    let principal = named(Some(&begin.client).filter(|client| !client.is_empty()).map(String::as_str))?;
    Connected::new(shared, principal, if begin.efficiency { Tier::Efficiency } else { Tier::Correctness })
}

/// The end of a stream whose client sent an invalid frame.
fn invalid(error: &io::Error) -> End {
    End::invalid(error.to_string())
}

/// The end of a stream as a message in a frame.
fn end(why: End) -> v1::ServerMessage {
    let end = v1::StreamEnd { reason: why.reason.word().to_owned(), message: why.message, leader: why.leader };
    v1::ServerMessage { end: Some(end), ..v1::ServerMessage::default() }
}

/// One stream of the engine, as a connection sees it. The test below implements it, too.
trait Channel {
    /// Takes a message of the client.
    fn take_message(&mut self, message: v1::ClientMessage);
    /// Ends the stream.
    fn end(&mut self, why: End);
    /// What to send on the stream next.
    fn poll_transmit(&mut self, context: &Context<'_>) -> Poll<Transmit>;
}

impl Channel for Connected {
    fn take_message(&mut self, message: v1::ClientMessage) {
        Connected::take_message(self, message);
    }

    fn end(&mut self, why: End) {
        Connected::end(self, why);
    }

    fn poll_transmit(&mut self, context: &Context<'_>) -> Poll<Transmit> {
        Connected::poll_transmit(self, context)
    }
}

/// Both directions of a connection whose first message was valid.
struct Exchange<'a, Socket, Side> {
    frames: &'a mut Framed<Socket, Codec<v1::ClientMessage>>,
    channel: Side,
    /// The end was put into the send buffer. Nothing is read or added any more, only flushed.
    is_ending: bool,
    /// The client has closed its socket, so nothing can be sent. Its earlier messages are still read, because a program that ends
    /// releases its locks and does not wait for the answers.
    is_deaf: bool,
}

impl<'a, Socket, Side> Exchange<'a, Socket, Side>
where
    Socket: AsyncRead + AsyncWrite + Unpin,
    Side: Channel,
{
    fn new(frames: &'a mut Framed<Socket, Codec<v1::ClientMessage>>, channel: Side) -> Self {
        Exchange { frames, channel, is_ending: false, is_deaf: false }
    }

    async fn run(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Sends and receives as much as possible. The messages of a client that does not read are still taken, so neither side ever waits
    /// for the other to read first.
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
                Some(Ok(message)) => self.channel.take_message(message),
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    self.channel.end(invalid(&error));
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Sends what is in the send buffer.
    fn poll_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_ending {
            let mut frames = Pin::new(&mut *self.frames);
            let Poll::Ready(ready) = Sink::<v1::ServerMessage>::poll_ready(frames.as_mut(), context) else { break };
            ready?;
            match self.channel.poll_transmit(context) {
                Poll::Ready(Transmit::Message(message)) => frames.start_send(message)?,
                Poll::Ready(Transmit::End(why)) => {
                    frames.start_send(end(why))?;
                    self.is_ending = true;
                }
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

    /// Records the messages of the client, and has one message to send.
    struct Listener {
        heard: Vec<v1::ClientMessage>,
        says: Option<v1::ServerMessage>,
    }

    impl Channel for Listener {
        fn take_message(&mut self, message: v1::ClientMessage) {
            self.heard.push(message);
        }

        fn end(&mut self, _: End) {}

        fn poll_transmit(&mut self, _: &Context<'_>) -> Poll<Transmit> {
            self.says.take().map_or(Poll::Pending, |message| Poll::Ready(Transmit::Message(message)))
        }
    }

    #[tokio::test]
    async fn messages_sent_before_the_client_hung_up_are_read_though_answers_cannot_be_sent() {
        let (mut client, socket) = tokio::io::duplex(1024);
        let mut said = BytesMut::new();
        let keep_alives = vec![v1::KeepAlive { epoch: 7, ..v1::KeepAlive::default() }];
        let message = v1::ClientMessage { keep_alives, ..v1::ClientMessage::default() };
        put_frame(&message, &mut said);
        client.write_all(&said).await.expect("the pipe has room");
        drop(client);
        let greeting = v1::ServerMessage { hello: Some(v1::Hello::default()), ..v1::ServerMessage::default() };
        let mut frames = Framed::new(socket, Codec::new(1024));
        let mut exchange = Exchange::new(&mut frames, Listener { heard: Vec::new(), says: Some(greeting) });
        exchange.run().await.expect("the connection ends without an error");
        assert_eq!(exchange.channel.heard, [message]);
    }
}
