//! A proxy before ZooKeeper that can drop one message, cut connections, or end a session from outside.
//!
//! It knows only the part of the protocol that it needs for that: framing, request numbers, and the session handshake.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// ZooKeeper's operation code for creating a sequential node.
pub(crate) const CREATE: i32 = 15;
/// The operation code for deleting a node.
pub(crate) const DELETE: i32 = 2;
const CLOSE_SESSION: i32 = -11;

/// A message to drop. Its connection is cut as well.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// The next request with this operation code.
    Request(i32),
    /// The answer to that request: the server has executed it.
    Answer(i32),
}

/// A proxy that runs until it is dropped, which cuts all connections.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    way: Arc<Way>,
    task: JoinHandle<()>,
}

struct Way {
    server: u16,
    /// The next message to drop.
    next_loss: watch::Sender<Option<Loss>>,
    /// A change cuts all connections.
    cuts: watch::Sender<u32>,
    /// While false, new connections wait.
    open: watch::Sender<bool>,
    /// The id and the password of the session that was opened or resumed last.
    session: Mutex<Option<(i64, Vec<u8>)>>,
}

impl Proxy {
    pub(crate) async fn to(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let way = Arc::new(Way {
            server,
            next_loss: watch::Sender::new(None),
            cuts: watch::Sender::new(0),
            open: watch::Sender::new(true),
            session: Mutex::default(),
        });
        let passing = way.clone();
        let task = tokio::spawn(async move {
            // The connections end with this task.
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let way = passing.clone();
                let mut cuts = way.cuts.subscribe();
                connections.spawn(async move {
                    tokio::select! {
                        _ = cuts.changed() => {}
                        _ = way.pass(near) => {}
                    }
                });
            }
        });
        Proxy { port, way, task }
    }

    /// Drops one message.
    pub(crate) fn lose(&self, loss: Loss) {
        self.way.next_loss.send_replace(Some(loss));
    }

    /// Returns when the message was dropped.
    pub(crate) async fn lost(&self) {
        self.way.next_loss.subscribe().wait_for(Option::is_none).await.expect("the proxy is alive");
    }

    /// Cuts all connections. New connections work.
    pub(crate) fn cut(&self) {
        self.way.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Whether new connections work. If not, they wait.
    pub(crate) fn set_open(&self, open: bool) {
        self.way.open.send_replace(open);
    }

    /// Ends the session that used this proxy last, as ZooKeeper does when it expires.
    pub(crate) async fn end_session(&self) {
        let session = self.way.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (id, password) = session.expect("there was a session");
        // The client must not resume the session meanwhile: it would end up with a connection without a session.
        self.set_open(false);
        self.cut();
        while !self.is_session_over(id, &password).await.unwrap_or(false) {}
        self.set_open(true);
    }

    /// Resumes the session and closes it. True if it had already ended.
    async fn is_session_over(&self, id: i64, password: &[u8]) -> io::Result<bool> {
        let mut server = TcpStream::connect(("127.0.0.1", self.way.server)).await?;
        let mut connect = Vec::new();
        connect.extend(0i32.to_be_bytes());
        connect.extend(0i64.to_be_bytes());
        connect.extend(10_000i32.to_be_bytes());
        connect.extend(id.to_be_bytes());
        connect.extend((password.len() as i32).to_be_bytes());
        connect.extend(password);
        connect.push(0);
        let close = [1i32.to_be_bytes(), CLOSE_SESSION.to_be_bytes()].concat();
        let messages = [framed(&connect), framed(&close)].concat();
        server.write_all(&messages).await?;
        let answer = read(&mut server).await?;
        let over = number(&answer, 8, 8) == 0;
        // The server closes the connection with the session.
        while read(&mut server).await.is_ok() {}
        Ok(over)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Way {
    /// Copies the messages of one connection until it ends or a message is dropped.
    async fn pass(&self, near: TcpStream) -> io::Result<()> {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        let far = TcpStream::connect(("127.0.0.1", self.server)).await?;
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        // The number of the request whose answer to drop.
        let doomed = AtomicI32::new(0);
        let up = async {
            write(&mut far_out, &read(&mut near_in).await?).await?;
            loop {
                let request = read(&mut near_in).await?;
                let (xid, operation) = (number(&request, 0, 4) as i32, number(&request, 4, 4) as i32);
                let loss = *self.next_loss.borrow();
                match loss {
                    Some(Loss::Request(kind)) if kind == operation => return self.has_lost(),
                    Some(Loss::Answer(kind)) if kind == operation => doomed.store(xid, Ordering::SeqCst),
                    _ => {}
                }
                write(&mut far_out, &request).await?;
            }
        };
        let down = async {
            let welcome = read(&mut far_in).await?;
            let session = (number(&welcome, 8, 8), welcome.get(20..36).unwrap_or_default().to_vec());
            *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
            write(&mut near_out, &welcome).await?;
            loop {
                let answer = read(&mut far_in).await?;
                let xid = number(&answer, 0, 4) as i32;
                if xid > 0 && xid == doomed.load(Ordering::SeqCst) {
                    return self.has_lost();
                }
                write(&mut near_out, &answer).await?;
            }
        };
        tokio::select! {
            ended = up => ended,
            ended = down => ended,
        }
    }

    /// A message was dropped. The caller ends the connection.
    fn has_lost(&self) -> io::Result<()> {
        self.next_loss.send_replace(None);
        Ok(())
    }
}

async fn read(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut message = vec![0; stream.read_u32().await? as usize];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write(stream: &mut (impl AsyncWriteExt + Unpin), message: &[u8]) -> io::Result<()> {
    stream.write_all(&framed(message)).await
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u32).to_be_bytes(), message].concat()
}

/// The number in `bytes` bytes at offset `at`; 0 if the message is too short.
fn number(message: &[u8], at: usize, bytes: usize) -> i64 {
    let bytes = message.get(at..at + bytes).unwrap_or_default();
    bytes.iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
}
