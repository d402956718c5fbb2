//! Tells a caller that it came to the wrong port, or speaks the wrong protocol, in the caller's own protocol.
//!
//! A caller that only sees a closed connection has to guess. So a client that speaks frames gets a frame, a browser gets an HTTP
//! response, gRPC gets an HTTP/2 GOAWAY, and TLS gets an alert. Nothing of the caller's request is parsed: its first bytes tell the
//! protocol, and the rest is read and dropped, up to a bound.

use std::io;

use fencepost_session::Reason;
use fencepost_wire::{FRAME_GREETING, PEER_GREETING, put_frame, v1};
use prost::bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bounds::{FIRST_BYTES, WRONG_DOOR_BYTES_MAX, WRONG_DOOR_LINGER};

/// The first bytes of every HTTP/2 connection.
const HTTP2_PREFACE: &[u8; FIRST_BYTES] = b"PRI ";
/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// A fatal alert `protocol_version` in TLS: the node's own TLS never sends it to a client that knows TLS 1.3.
const TLS_ALERT: [u8; 7] = [0x15, 3, 1, 0, 2, 2, 70];
/// An empty SETTINGS frame, which must come first on an HTTP/2 connection.
const HTTP2_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const HTTP2_GOAWAY: u8 = 7;
/// The request was not processed, and may be sent elsewhere.
const HTTP2_REFUSED_STREAM: u32 = 7;

/// The protocol of the other side, told by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Tls,
    ClientFrames,
    PeerFrames,
    Http1,
    Http2,
    /// None of these.
    Unknown,
}

impl Speaks {
    /// Waits for the first bytes. They stay in the socket, because the server behind the door reads them again.
    pub(crate) async fn hear(stream: &TcpStream) -> io::Result<Speaks> {
        let mut first = [0; FIRST_BYTES];
        loop {
            let count = stream.peek(&mut first).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(speaks) = Speaks::told_by(&first[..count]) {
                return Ok(speaks);
            }
            // The first bytes came in pieces. The socket stays readable, so there is nothing to wait for but time.
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// `None` if more bytes are needed.
    fn told_by(first: &[u8]) -> Option<Speaks> {
        let greetings = [
            (&FRAME_GREETING, Speaks::ClientFrames),
            (&PEER_GREETING, Speaks::PeerFrames),
            (HTTP2_PREFACE, Speaks::Http2),
        ];
        let begins = |greeting: &[u8]| greeting.starts_with(first);
        match greetings.iter().find(|(greeting, _)| begins(&greeting[..])) {
            Some((_, speaks)) if first.len() == FIRST_BYTES => Some(*speaks),
            Some(_) => None,
            None if first[0] == TLS_HANDSHAKE => Some(Speaks::Tls),
            // Every method of HTTP is in upper case. No method contains a slash, but greetings of other versions do.
            None if first.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b' ') => Some(Speaks::Http1),
            None => Some(Speaks::Unknown),
        }
    }
}

/// What a port is for, and where a caller that is wrong there should go.
#[derive(Clone, Debug)]
pub(crate) struct Sign {
    pub(crate) purpose: Purpose,
    /// The port has TLS.
    pub(crate) has_tls: bool,
    /// The address for clients, as they should use it.
    pub(crate) clients: String,
    /// The address for HTTP, with `http://` or `https://`.
    pub(crate) http: String,
    /// The address for other nodes, as they should use it.
    pub(crate) peers: String,
}

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Clients,
    Http,
    Peers,
}

impl Sign {
    /// The answer to a caller that came in plain text. `None` if it may come in.
    pub(crate) fn answer(&self, speaks: Speaks) -> Option<Vec<u8>> {
        let belongs = match (self.purpose, speaks) {
            (_, Speaks::Unknown) => return None,
            // A TLS handshake where there is no TLS. An alert has no room for words.
            (_, Speaks::Tls) => return (!self.has_tls).then(|| TLS_ALERT.to_vec()),
            (Purpose::Clients, Speaks::ClientFrames | Speaks::Http2) => true,
            (Purpose::Peers, Speaks::PeerFrames | Speaks::Http2) => true,
            (Purpose::Http, Speaks::Http1) => true,
            _ => false,
        };
        match speaks {
            _ if belongs && !self.has_tls => None,
            Speaks::ClientFrames => Some(client_frame(if belongs { CLIENT_TLS.to_owned() } else { self.for_client() })),
            Speaks::PeerFrames => Some(peer_frame(if belongs { PEER_TLS.to_owned() } else { self.for_peer() })),
            Speaks::Http1 => Some(http1(&if belongs { HTTP_TLS.to_owned() } else { self.for_http() })),
            Speaks::Http2 if self.purpose == Purpose::Peers => Some(http2(PEER_TLS)),
            Speaks::Http2 => Some(http2(&if belongs { GRPC_TLS.to_owned() } else { self.for_grpc() })),
            Speaks::Tls | Speaks::Unknown => None,
        }
    }

    /// The answer to HTTP/1.1 on a port that is not for it, also inside of TLS.
    pub(crate) fn answer_http1(&self) -> Vec<u8> {
        http1(&self.for_http())
    }

    fn this_port(&self) -> &'static str {
        match self.purpose {
            Purpose::Clients => "this is the port for clients (frames and gRPC)",
            Purpose::Http => "this is the port for HTTP (health, readiness and metrics)",
            Purpose::Peers => "this is the port for the other nodes of the cluster",
        }
    }

    fn for_client(&self) -> String {
        format!("{}: clients connect to {}", self.this_port(), self.clients)
    }

    fn for_peer(&self) -> String {
        let (this_port, peers) = (self.this_port(), &self.peers);
        format!("{this_port}: other nodes connect to {peers}; check the peer address of the member (--advertise-peer)")
    }

    /// What a browser gets.
    pub(crate) fn for_http(&self) -> String {
        format!("{}: health, readiness and metrics are at {}", self.this_port(), self.http)
    }

    /// What gRPC gets for a service that this port does not have.
    pub(crate) fn for_grpc(&self) -> String {
        match self.purpose {
            Purpose::Clients => format!("{}, and it has no such service: see its reflection", self.this_port()),
            Purpose::Http | Purpose::Peers => format!("{}: gRPC for clients is at {}", self.this_port(), self.clients),
        }
    }
}

const CLIENT_TLS: &str = "this port speaks TLS: connect with https:// and the authority of the nodes (on the command line: --ca FILE; \
                          in Rust: ClientBuilder::tls)";
const PEER_TLS: &str = "this port speaks TLS: start the calling node with --peer-cert, --peer-key and --peer-ca";
const HTTP_TLS: &str = "this port speaks TLS: use https://";
const GRPC_TLS: &str = "this port speaks TLS: connect with https:// and the authority of the nodes (on the command line: --ca FILE; \
                        for a node that joins: --tls-cert, --tls-key and --join-ca)";

fn client_frame(message: String) -> Vec<u8> {
    let end = v1::StreamEnd { reason: Reason::WrongDoor.word().to_owned(), message, leader: None };
    frame(&v1::ServerMessage { end: Some(end), ..v1::ServerMessage::default() })
}

fn peer_frame(message: String) -> Vec<u8> {
    frame(&v1::DeliverResponse { reason: Reason::WrongDoor.word().to_owned(), message })
}

fn frame(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    put_frame(message, &mut bytes);
    bytes.to_vec()
}

fn http1(message: &str) -> Vec<u8> {
    let length = message.len() + 1;
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\nconnection: \
         close\r\n\r\n{message}\n"
    )
    .into_bytes()
}

/// The message stands in the debug data of the GOAWAY, which gRPC libraries show.
fn http2(message: &str) -> Vec<u8> {
    let mut bytes = BytesMut::from(&HTTP2_SETTINGS[..]);
    let length = u32::try_from(8 + message.len()).expect("a sentence");
    // Three bytes of length, the type, no flags, and stream 0.
    bytes.put_slice(&length.to_be_bytes()[1..]);
    bytes.put_slice(&[HTTP2_GOAWAY, 0, 0, 0, 0, 0]);
    // No stream was processed.
    bytes.put_u32(0);
    bytes.put_u32(HTTP2_REFUSED_STREAM);
    bytes.put_slice(message.as_bytes());
    bytes.to_vec()
}

/// Sends the answer, and reads what the caller still sends, so that the answer is not lost in a reset.
///
/// # Errors
/// Errors of the network.
pub(crate) async fn turn_away(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &[u8]) -> io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(WRONG_DOOR_BYTES_MAX as u64);
    // A caller that goes on sending is cut off.
    let _ = tokio::time::timeout(WRONG_DOOR_LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_the_protocol_as_soon_as_they_can() {
        let table: [(&[u8], Option<Speaks>); 16] = [
            (b"F", None),
            (b"FP/", None),
            (b"FP/1", Some(Speaks::ClientFrames)),
            (b"FN/1", Some(Speaks::PeerFrames)),
            (b"FP/2", Some(Speaks::Unknown)),
            (b"P", None),
            (b"PR", None),
            (b"PRI ", Some(Speaks::Http2)),
            (b"PRO", Some(Speaks::Http1)),
            (b"PO", Some(Speaks::Http1)),
            (b"G", Some(Speaks::Http1)),
            (b"GET ", Some(Speaks::Http1)),
            (b"\x16\x03\x01\x02", Some(Speaks::Tls)),
            (b"\x16", Some(Speaks::Tls)),
            (b"ssh-", Some(Speaks::Unknown)),
            (b"\0\0\0\0", Some(Speaks::Unknown)),
        ];
        for (first, speaks) in table {
            assert_eq!(Speaks::told_by(first), speaks, "{first:?}");
        }
    }
}
