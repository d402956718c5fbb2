//! A TCP proxy before a server. Dropping it cuts all its connections.
//!
//! It copies bytes and knows no protocol.

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A proxy that runs until it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let task = tokio::spawn(async move {
            // The connections end with this task.
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                connections.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", server)).await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Proxy { port, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
