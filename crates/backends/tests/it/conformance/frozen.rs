//! A paused holder: its connections stay open, and nothing in it runs.
//!
//! Tests use it to see what a long pause of a process does to a lock. The holder has its own thread and runtime, and blocks both.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fencepost::{Error, Released};
use fencepost_backends::ClientBuilder;

use crate::conformance::bed::lock;

/// A paused holder, on its own thread and runtime.
pub(crate) struct Frozen {
    thaw: Sender<()>,
    woken: Receiver<Woken>,
    thread: JoinHandle<()>,
}

/// What the holder found after the pause.
pub(crate) struct Woken {
    /// Whether its guard still said "held".
    pub(crate) believed_held: bool,
    /// The result of its release.
    pub(crate) released: Result<Released, Error>,
}

impl Frozen {
    /// Starts a client on its own thread, which acquires the lock and then pauses. Returns as soon as that client holds the lock.
    pub(crate) fn holding(builder: ClientBuilder, name: &str) -> Frozen {
        let (hold, held) = channel();
        let (thaw, thawed) = channel();
        let (wake, woken) = channel();
        let name = name.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let client = builder.connect().await.expect("the server is up");
                let guard = lock(&client, &name).acquire().await.expect("the lock is free");
                hold.send(()).expect("`holding` waits for this");
                // Blocks the only thread of the runtime: nothing is renewed, read or closed.
                let _ = thawed.recv();
                let believed_held = guard.is_held();
                let _ = wake.send(Woken { believed_held, released: guard.release().await });
            });
        });
        held.recv().expect("the client got the lock");
        Frozen { thaw, woken, thread }
    }

    /// Ends the pause, and returns what the holder found.
    pub(crate) fn thaw(self) -> Woken {
        self.thaw.send(()).expect("the client waits for this");
        let woken = self.woken.recv().expect("the client continues");
        self.thread.join().expect("the client does not panic");
        woken
    }
}
