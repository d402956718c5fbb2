//! The door of a port: accepts connections, does the TLS handshake if the port has TLS, and tells frames from HTTP.
//!
//! The HTTP servers (gRPC and plain HTTP) take their connections from here as a stream. A connection that speaks frames
//! (`fencepost_wire::FRAME_GREETING`) goes to the port's frame service. A caller that is wrong at this port is told so by
//! `wrong_door.rs`. Each handshake runs in its own task, so a slow connection does not delay the others. No message is read here.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fencepost_wire::{FRAME_PROTOCOL, PEER_PROTOCOL};
use futures_core::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::{TlsAcceptor, TlsStream};
use tonic::transport::server::Connected;

use crate::bounds::{FIRST_BYTES, HANDSHAKE_TIMEOUT, HANDSHAKES_MAX};
use crate::caller::OtherSide;
use crate::tls::{Greeting, HTTP1_PROTOCOL, names_of};
use crate::wrong_door::{Purpose, Sign, Speaks, turn_away};

/// How long the other side may be silent: see [`Connection::notice_silence`].
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A connection with or without TLS, incoming or outgoing.
pub(crate) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    pub(crate) fn other_side(&self) -> OtherSide {
        let (stream, chain) = match self {
            Connection::Plain(stream) => (stream, None),
            Connection::Tls(stream) => (stream.get_ref().0, stream.get_ref().1.peer_certificates()),
        };
        let names = chain.and_then(<[_]>::first).map(names_of).unwrap_or_default().into();
        OtherSide { names, address: stream.peer_addr().ok() }
    }

    /// Makes the system notice that the other side is gone without closing the connection (gRPC has its own keep-alive for that). After
    /// `silence_max` without traffic the system sends TCP keep-alives. After the same time without an answer, or without an
    /// acknowledgement of sent data, it ends the connection.
    pub(crate) fn notice_silence(&self, silence_max: Duration) {
        use rustix::net::sockopt;
        let stream = match self {
            Connection::Plain(stream) => stream,
            Connection::Tls(stream) => stream.get_ref().0,
        };
        // If this fails, a dead connection only stays open for longer.
        let _ = sockopt::set_socket_keepalive(stream, true)
            .and_then(|()| sockopt::set_tcp_keepidle(stream, silence_max))
            .and_then(|()| sockopt::set_tcp_keepintvl(stream, silence_max / 2))
            .and_then(|()| sockopt::set_tcp_keepcnt(stream, 2));
        #[cfg(target_os = "linux")]
        let _ = sockopt::set_tcp_user_timeout(stream, silence_max.as_millis() as u32);
    }
}

impl Connected for Connection {
    type ConnectInfo = OtherSide;

    fn connect_info(&self) -> OtherSide {
        self.other_side()
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

/// The connections of a port that speak HTTP, version 1 or 2.
pub(crate) struct Door {
    address: SocketAddr,
    connections: mpsc::Receiver<(Connection, SocketAddr)>,
}

/// Where the connections of a door go.
#[derive(Clone)]
struct Room {
    sign: Arc<Sign>,
    speaks_frames: Option<ServeFrames>,
    http: mpsc::Sender<(Connection, SocketAddr)>,
}

impl Door {
    /// Opens the door. `speaks_frames` serves the connections that speak frames, if the port has them. The caller must run the future: it
    /// accepts connections, and ends when the port is closed and all framed connections are over.
    pub(crate) fn open(
        listener: TcpListener,
        sign: Sign,
        greeting: Option<Greeting>,
        speaks_frames: Option<ServeFrames>,
        closed: impl Future<Output = ()>,
    ) -> (Door, impl Future<Output = ()>) {
        let address = listener.local_addr().expect("a listener has an address");
        let (http, connections) = mpsc::channel(1);
        let keep = keep(listener, greeting, Room { sign: Arc::new(sign), speaks_frames, http }, closed);
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
                // For example, no file descriptor is left. New connections wait in the backlog meanwhile.
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

/// Does the handshake of a new connection. Hands it to HTTP, or returns the future that serves its frames.
async fn arrive(
    config: Option<Arc<ServerConfig>>,
    stream: TcpStream,
    from: SocketAddr,
    room: Room,
) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
    // If this fails, the connection is only a little slower.
    let _ = stream.set_nodelay(true);
    let greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, greet(&room.sign, config, stream)).await;
    let (connection, speaks_frames) = match greeted {
        Ok(Ok(Some(greeted))) => greeted,
        Ok(Ok(None)) => {
            tracing::debug!(%from, "a connection was told that it is wrong here");
            return None;
        }
        // Any host can cause these, so they are logged at debug level only.
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "a connection was refused");
            return None;
        }
        Err(_) => {
            tracing::debug!(%from, "a connection did not finish its handshake in time");
            return None;
        }
    };
    match room.speaks_frames {
        Some(serve) if speaks_frames => {
            connection.notice_silence(SILENCE_MAX);
            Some(serve(connection))
        }
        _ => {
            // This fails only if the port is being closed.
            let _ = room.http.send((connection, from)).await;
            None
        }
    }
}

/// The connection, and whether it speaks frames. `None` if the caller was wrong here, and was told so.
async fn greet(
    sign: &Sign,
    config: Option<Arc<ServerConfig>>,
    mut stream: TcpStream,
) -> io::Result<Option<(Connection, bool)>> {
    let speaks = Speaks::hear(&stream).await?;
    if let Some(answer) = sign.answer(speaks) {
        turn_away(stream, &answer).await?;
        return Ok(None);
    }
    let Some(config) = config else {
        let speaks_frames = matches!(speaks, Speaks::ClientFrames | Speaks::PeerFrames);
        if speaks_frames {
            stream.read_exact(&mut [0; FIRST_BYTES]).await?;
        }
        return Ok(Some((Connection::Plain(stream), speaks_frames)));
    };
    let stream = TlsAcceptor::from(config).accept(stream).await?;
    let protocol = stream.get_ref().1.alpn_protocol();
    if protocol == Some(HTTP1_PROTOCOL) && sign.purpose != Purpose::Http {
        turn_away(stream, &sign.answer_http1()).await?;
        return Ok(None);
    }
    let speaks_frames = [Some(FRAME_PROTOCOL), Some(PEER_PROTOCOL)].contains(&protocol);
    Ok(Some((Connection::Tls(Box::new(stream.into())), speaks_frames)))
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
            // The door is closed. The HTTP server is told to close, too.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
