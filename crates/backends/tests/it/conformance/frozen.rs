//! A holder that stands still: its connections stay open, and nothing in it runs. It is what a long pause of a process does.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fencepost::{Error, Released};
use fencepost_backends::ClientBuilder;

use crate::conformance::bed::lock;

/// A holder on a thread and a runtime of its own.
pub(crate) struct Frozen {
    thaw: Sender<()>,
    woken: Receiver<Woken>,
    thread: JoinHandle<()>,
}

/// What it found when it woke up.
pub(crate) struct Woken {
    /// What it believed at the first look.
    pub(crate) believed_held: bool,
    /// What came of giving the lock back.
    pub(crate) released: Result<Released, Error>,
}

impl Frozen {
    /// Takes the lock and stands still. Returns when it holds it.
    pub(crate) fn holding(builder: ClientBuilder, name: &str) -> Frozen {
        let (hold, held) = channel();
        let (thaw, thawed) = channel();
        let (wake, woken) = channel();
        let name = name.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let client = builder.connect().await.expect("the server is up");
                let guard = lock(&client, &name).acquire().await.expect("nobody else wants it");
                hold.send(()).expect("somebody waits");
                // Blocks the only thread of the runtime: nothing is renewed, nothing is read, nothing is closed.
                let _ = thawed.recv();
                let believed_held = guard.is_held();
                let _ = wake.send(Woken { believed_held, released: guard.release().await });
            });
        });
        held.recv().expect("it got the lock");
        Frozen { thaw, woken, thread }
    }

    /// Lets it go on, and says what it found.
    pub(crate) fn thaw(self) -> Woken {
        self.thaw.send(()).expect("it waits");
        let woken = self.woken.recv().expect("it goes on");
        self.thread.join().expect("it ends well");
        woken
    }
}
