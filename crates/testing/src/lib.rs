//! A Fencepost server inside the test process, for tests of programs that use the `fencepost` library. It is the real server, with its
//! state in memory, on free ports of the loopback.
//!
//! This is a crate of its own, so that the library does not depend on the server.
//!
//! ```
//! use fencepost_testing::TestServer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fencepost::Error> {
//! let server = TestServer::start();
//! let client = server.client().await?;
//! let lock = client.lock("wallet:user_123").acquire().await?;
//! assert!(lock.is_held());
//! # Ok(())
//! # }
//! ```
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | the test server: its start, its address, its clients and its end |

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use fencepost::{Client, Error};
use fencepost_server::{Begin, Config, Server};
use tokio::sync::oneshot;

/// A cluster of one node. Dropping this ends the node, and its state is lost.
pub struct TestServer {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    // The node runs on its own thread, so that tests with and without a runtime can use it.
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Starts a node and waits until it leads.
    ///
    /// # Panics
    /// If this machine does not allow listening on the loopback interface.
    pub fn start() -> TestServer {
        let (say, hear) = mpsc::channel();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("this machine has the resources for a runtime").block_on(async {
                let free = SocketAddr::from(([127, 0, 0, 1], 0));
                let config = Config {
                    name: "test".to_owned(),
                    begin: Begin::Found,
                    client_listen: free,
                    http_listen: free,
                    peer_listen: free,
                    ..Config::default()
                };
                let server = Server::start(config).await.expect("this machine allows listening on the loopback");
                server.wait_until_ready().await;
                server.wait_until_member().await;
                // `TestServer::start` waits for this.
                let _ = say.send(server.client_address());
                tokio::select! {
                    // Ends at once, without a graceful shutdown: the test waits for this.
                    _ = ended => {}
                    stopped = server.run_until(std::future::pending()) => {
                        stopped.expect("a node without a disk has no reason to stop");
                    }
                }
            });
        });
        let address = hear.recv().expect("the server started");
        TestServer { address, end: Some(end), thread: Some(thread) }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client of this server.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn client(&self) -> Result<Client, Error> {
        Client::connect(&format!("fencepost://{}", self.address)).await
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}
