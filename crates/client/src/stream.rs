//! One framed connection to a node: dialled, greeted, and handed its first message. What goes over it is the machine's.

use std::io;

use fencepost_wire::{FRAME_GREETING, put_frame, take_frame, v1};
use prost::bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::codec::{Decoder, Encoder, Framed};

use crate::tls::Tls;

/// An attach may list all that a session holds.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Messages one way and the other.
pub(crate) type Stream = Framed<Box<dyn Socket>, Codec>;

/// What carries the bytes: in TLS, or not.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// Connects to a node and says who talks. The answer is the first message.
///
/// # Errors
/// Of the network, or of TLS.
pub(crate) async fn dial(address: &str, tls: Option<&Tls>, begin: v1::StreamBegin) -> io::Result<Stream> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let socket: Box<dyn Socket> = match tls {
        // There the protocol is agreed upon while greeting.
        Some(tls) => Box::new(tls.greet(socket, address).await?),
        None => {
            socket.write_all(&FRAME_GREETING).await?;
            Box::new(socket)
        }
    };
    let mut stream = Framed::new(socket, Codec);
    let begin = v1::ClientMessage { begin: Some(begin), ..v1::ClientMessage::default() };
    futures_util::SinkExt::send(&mut stream, begin).await?;
    Ok(stream)
}

pub(crate) struct Codec;

impl Decoder for Codec {
    type Item = v1::ServerMessage;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<v1::ServerMessage>> {
        take_frame(buffer, ANSWER_BYTES_MAX)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.for_caller()))
    }
}

impl Encoder<v1::ClientMessage> for Codec {
    type Error = io::Error;

    fn encode(&mut self, message: v1::ClientMessage, buffer: &mut BytesMut) -> io::Result<()> {
        put_frame(&message, buffer);
        Ok(())
    }
}
