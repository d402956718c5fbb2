//! One framed connection to a node: dialling, the greeting, the first message, and the last writes when the runtime is gone.
//!
//! It knows nothing about sessions: the machine in `fencepost-session` decides what is sent.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::net::Shutdown;

use fencepost_session::bounds::SERVER_MESSAGE_BYTES_MAX;
use fencepost_wire::{FRAME_GREETING, put_frame, take_frame, v1};
use prost::bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::codec::{Decoder, Encoder, Framed};

use crate::tls::Tls;

/// A connection that carries messages in both directions.
pub(crate) type Stream = Framed<Box<dyn Socket>, Codec>;

/// How many unread bytes are thrown away before the connection is closed: more than the buffer of a socket holds by default.
const DRAINED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What carries the bytes: plain TCP or TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Debug + Send + Unpin {
    /// Writes at once, without waiting. It calls the system directly, so it works while the runtime shuts down.
    ///
    /// # Errors
    /// Errors of the network; `WouldBlock` if the socket did not accept all bytes.
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Closes the connection after what was written.
    ///
    /// # Errors
    /// Errors of the network.
    fn hang_up(&mut self) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<()> {
        without_runtime(self)?.write_all(bytes)
    }

    fn hang_up(&mut self) -> io::Result<()> {
        close(&without_runtime(self)?)
    }
}

impl Socket for TlsStream<TcpStream> {
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (socket, tls) = self.get_mut();
        let mut socket = without_runtime(socket)?;
        // At most one TLS record at a time: the buffer of the TLS library is small.
        for part in bytes.chunks(16 * 1024) {
            tls.writer().write_all(part)?;
            while tls.wants_write() {
                tls.write_tls(&mut socket)?;
            }
        }
        Ok(())
    }

    fn hang_up(&mut self) -> io::Result<()> {
        let (socket, tls) = self.get_mut();
        let mut socket = without_runtime(socket)?;
        tls.send_close_notify();
        while tls.wants_write() {
            tls.write_tls(&mut socket)?;
        }
        close(&socket)
    }
}

/// The stream of a driver that is gone because its runtime was shut down. It is kept while guards are alive, so that the last
/// guard of each session can still give its locks back.
#[derive(Debug)]
pub(crate) struct LastWords(Stream);

impl LastWords {
    pub(crate) fn new(stream: Stream) -> LastWords {
        LastWords(stream)
    }

    /// Writes these messages now, if the socket accepts them. If it does not, their locks end with their TTL.
    pub(crate) fn say(&mut self, messages: impl Iterator<Item = v1::ClientMessage>) {
        for message in messages {
            put_frame(&message, self.0.write_buffer_mut());
        }
        let bytes = self.0.write_buffer_mut().split();
        if let Err(error) = self.0.get_mut().write_now(&bytes) {
            tracing::debug!(%error, "the last releases were not sent: the locks end with their TTL");
        }
    }
}

impl Drop for LastWords {
    fn drop(&mut self) {
        // An error does not matter: the node notices anyway that the connection is gone.
        let _ = self.0.get_mut().hang_up();
    }
}

/// The same socket without the runtime. It stays non-blocking.
fn without_runtime(socket: &TcpStream) -> io::Result<std::net::TcpStream> {
    #[cfg(unix)]
    let twin = std::os::fd::AsFd::as_fd(socket).try_clone_to_owned()?;
    #[cfg(windows)]
    let twin = std::os::windows::io::AsSocket::as_socket(socket).try_clone_to_owned()?;
    Ok(twin.into())
}

/// Closes a socket after its unread bytes are read. A socket that is closed with unread bytes is reset, and a reset can overtake
/// what was written.
fn close(mut socket: &std::net::TcpStream) -> io::Result<()> {
    socket.shutdown(Shutdown::Write)?;
    let (mut scratch, mut drained) = ([0; 16 * 1024], 0);
    while drained < DRAINED_BYTES_MAX {
        match socket.read(&mut scratch) {
            Ok(0) => break,
            Ok(bytes) => drained += bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Connects to a node and sends the first message, which names the client. The node answers with its own first message.
///
/// # Errors
/// Errors of the network or of TLS.
pub(crate) async fn dial(address: &str, tls: Option<&Tls>, begin: v1::StreamBegin) -> io::Result<Stream> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let socket: Box<dyn Socket> = match tls {
        // With TLS, the protocol is negotiated in the handshake (ALPN).
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

#[derive(Debug)]
pub(crate) struct Codec;

impl Decoder for Codec {
    type Item = v1::ServerMessage;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<v1::ServerMessage>> {
        let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        // As lengths these would be above the bound, so no node begins a frame with them.
        let foreign = FOREIGN.iter().find(|(first, _)| buffer.starts_with(first));
        if let Some((_, why)) = foreign {
            return Err(refused((*why).to_owned()));
        }
        take_frame(buffer, SERVER_MESSAGE_BYTES_MAX).map_err(|error| refused(error.problem()))
    }
}

/// What each text in [`FOREIGN`] contains.
pub(crate) const SPOKEN_THERE: &str = " is spoken there";

/// The first bytes of answers of programs that are not a node, and what to do.
const FOREIGN: [(&[u8], &str); 2] = [
    (
        b"HTTP",
        "HTTP is spoken there, and not by a node of Fencepost: check the address; the port for clients is 7420 by default",
    ),
    (
        &[0x15, 0x03],
        "TLS is spoken there: connect with https:// and the authority of the nodes (on the command line: --ca FILE), or \
         check the address",
    ),
];

impl Encoder<v1::ClientMessage> for Codec {
    type Error = io::Error;

    fn encode(&mut self, message: v1::ClientMessage, buffer: &mut BytesMut) -> io::Result<()> {
        put_frame(&message, buffer);
        Ok(())
    }
}
