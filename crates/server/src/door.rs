//! The door of a port: connections are accepted, greeted in TLS where the port has it, and told apart by what they speak.
//!
//! gRPC and HTTP get theirs from here as a stream. Those that speak frames (`fencepost_wire::FRAME_GREETING`) go to whoever serves
//! them on this port. Whoever is slow to say anything holds up nobody else.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_wire::{FRAME_GREETING, FRAME_PROTOCOL};
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{TlsAcceptor, TlsStream};
use tonic::transport::server::Connected;

use crate::bounds::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX};
use crate::tls::{Greeting, names_of};

/// How long the other side may be silent: see [`Connection::notice_silence`].
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A connection, in TLS or not, whoever began it.
pub(crate) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The names of the certificate that the other side has shown; none if it has not, or has no need to.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShownNames(pub(crate) Arc<[String]>);

impl Connection {
    pub(crate) fn shown_names(&self) -> ShownNames {
        let Connection::Tls(stream) = self else { return ShownNames::default() };
        let chain = stream.get_ref().1.peer_certificates();
        ShownNames(chain.and_then(<[_]>::first).map(names_of).unwrap_or_default().into())
    }

    /// Lets the system find out when the other side is gone without a word, as gRPC does by itself: after so long it asks whether
    /// anybody is there, and after so long without an answer, or without anybody taking what is sent, the connection is over.
    pub(crate) fn notice_silence(&self, silence_max: Duration) {
        use rustix::net::sockopt;
        let stream = match self {
            Connection::Plain(stream) => stream,
            Connection::Tls(stream) => stream.get_ref().0,
        };
        // Without it the connection is there for longer, and nothing else.
        let _ = sockopt::set_socket_keepalive(stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(stream, silence_max))
            .and_then(|()| sockopt::set_tcp_keepintvl(stream, silence_max / 2))
            .and_then(|()| sockopt::set_tcp_keepcnt(stream, 2));
        #[cfg(target_os = "linux")]
        let _ = sockopt::set_tcp_user_timeout(stream, silence_max.as_millis() as u32);
    }
}

impl Connected for Connection {
    type ConnectInfo = ShownNames;

    fn connect_info(&self) -> ShownNames {
        self.shown_names()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Connection::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Connection::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Connection::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Connection::Plain(stream) => stream.is_write_vectored(),
            Connection::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_flush(context),
            Connection::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Connection::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Serves a connection that speaks frames, until it is over.
pub(crate) type ServeFrames = Arc<dyn Fn(Connection) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Connections that speak HTTP, version 1 or 2.
pub(crate) struct Door {
    address: SocketAddr,
    connections: mpsc::Receiver<(Connection, SocketAddr)>,
}

/// What stands behind a door.
#[derive(Clone)]
struct Room {
    speaks_frames: Option<ServeFrames>,
    http: mpsc::Sender<(Connection, SocketAddr)>,
}

impl Door {
    /// Opens the door, with who serves frames behind it, if anybody does. The future keeps it: it ends when the port is closed and
    /// all that speak frames are gone.
    pub(crate) fn open(
        listener: TcpListener,
        greeting: Option<Greeting>,
        speaks_frames: Option<ServeFrames>,
        closed: impl Future<Output = ()>,
    ) -> (Door, impl Future<Output = ()>) {
        let address = listener.local_addr().expect("a listener has an address");
        let (http, connections) = mpsc::channel(1);
        let keep = keep(listener, greeting, Room { speaks_frames, http }, closed);
        (Door { address, connections }, keep)
    }
}

async fn keep(listener: TcpListener, greeting: Option<Greeting>, room: Room, closed: impl Future<Output = ()>) {
    let mut closed = pin!(closed);
    let (mut arriving, mut served) = (JoinSet::new(), JoinSet::new());
    loop {
        tokio::select! {
            accepted = listener.accept(), if arriving.len() < HANDSHAKES_MAX => match accepted {
                Ok((stream, from)) => {
                    let config = greeting.as_ref().map(Greeting::config);
                    arriving.spawn(arrive(config, stream, from, room.clone()));
                }
                // Out of file descriptors, for example: whoever waits, waits on.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(arrived) = arriving.join_next() => if let Ok(Some(serving)) = arrived {
                served.spawn(serving);
            },
            Some(_) = served.join_next() => {}
            () = &mut closed => break,
        }
    }
    drop((listener, arriving));
    while served.join_next().await.is_some() {}
}

/// Finds out what a new connection speaks. What serves it, if that is frames.
async fn arrive(
    config: Option<Arc<ServerConfig>>,
    stream: TcpStream,
    from: SocketAddr,
    room: Room,
) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
    // Only a little slower without.
    let _ = stream.set_nodelay(true);
    let (connection, speaks_frames) = match tokio::time::timeout(HANDSHAKE_TIMEOUT, greet(config, stream)).await {
        Ok(Ok(greeted)) => greeted,
        // Anybody can make these happen, so they are no news unless somebody looks for them.
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "a connection was refused");
            return None;
        }
        Err(_) => {
            tracing::debug!(%from, "a connection took too long to say who it is");
            return None;
        }
    };
    match room.speaks_frames {
        Some(serve) if speaks_frames => {
            connection.notice_silence(SILENCE_MAX);
            Some(serve(connection))
        }
        _ => {
            // If nobody takes it, the port is being closed.
            let _ = room.http.send((connection, from)).await;
            None
        }
    }
}

/// The connection, and whether it speaks frames.
async fn greet(config: Option<Arc<ServerConfig>>, mut stream: TcpStream) -> io::Result<(Connection, bool)> {
    if let Some(config) = config {
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let speaks_frames = stream.get_ref().1.alpn_protocol() == Some(FRAME_PROTOCOL);
        return Ok((Connection::Tls(Box::new(stream.into())), speaks_frames));
    }
    let mut first = [0];
    // Whatever it is stays there for who reads it.
    stream.peek(&mut first).await?;
    let speaks_frames = first[0] == FRAME_GREETING[0];
    if speaks_frames {
        let mut said = [0; FRAME_GREETING.len()];
        stream.read_exact(&mut said).await?;
        if said != FRAME_GREETING {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it speaks another version of our frames"));
        }
    }
    Ok((Connection::Plain(stream), speaks_frames))
}

impl Stream for Door {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(context).map(|next| next.map(|(connection, _)| Ok(connection)))
    }
}

impl axum::serve::Listener for Door {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        match self.connections.recv().await {
            Some(connection) => connection,
            // The door is closed, and so will be who waits at it.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
