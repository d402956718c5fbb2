//! A tokio runtime on a background thread, for tests that are not async: it keeps running between their calls.

use std::future::Future;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

pub(crate) struct Background {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start() -> Background {
        let (stop, stopped) = oneshot::channel();
        let (sender, handle): (Sender<Handle>, _) = channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            sender.send(runtime.handle().clone()).expect("`start` waits for the handle");
            // Ends when the sender sends or is dropped.
            let _ = runtime.block_on(stopped);
        });
        Background { handle: handle.recv().expect("the thread runs"), stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.handle.block_on(future)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}
