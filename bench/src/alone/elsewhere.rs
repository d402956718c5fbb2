//! Clients on a thread and a runtime of their own, which fall silent all at once, as a machine does whose plug is pulled: nothing
//! is given back, no session is closed.

use std::mem::ManuallyDrop;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::sync::{mpsc, oneshot};

/// Clients that live until this is dropped.
pub(crate) struct Elsewhere {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    stages: mpsc::UnboundedReceiver<Result<()>>,
    go_on: mpsc::UnboundedSender<()>,
}

/// How the thread says that it has come to the end of a stage, and waits for the word to go on.
pub(crate) struct Stage {
    reached: mpsc::UnboundedSender<Result<()>>,
    go_on: mpsc::UnboundedReceiver<()>,
}

impl Stage {
    /// Says that a stage is done, and waits until somebody has looked at it.
    pub(crate) async fn done(&mut self) {
        // If nobody listens, the word to stop is on its way.
        let _ = self.reached.send(Ok(()));
        let _ = self.go_on.recv().await;
    }
}

impl Elsewhere {
    /// Runs this on a thread of its own. What it gives back is kept until the silence.
    pub(crate) fn start<W, F, T>(work: W) -> Result<Elsewhere>
    where
        W: FnOnce(Stage) -> F + Send + 'static,
        F: Future<Output = Result<T>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (reached, stages) = mpsc::unbounded_channel();
        let (go_on, to_go_on) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("elsewhere".to_owned()).spawn(move || {
            let stage = Stage { reached: reached.clone(), go_on: to_go_on };
            runtime.block_on(async {
                let work = async {
                    // Never dropped: a guard that is dropped gives its lock back, also when its runtime ends.
                    let kept = ManuallyDrop::new(work(stage).await);
                    match &*kept {
                        Ok(_) => drop(reached.send(Ok(()))),
                        Err(error) => drop(reached.send(Err(anyhow::anyhow!("{error:#}")))),
                    }
                    std::future::pending::<()>().await;
                };
                // When this returns, no task of this runtime runs any more, and nothing is sent.
                tokio::select! {
                    biased;
                    _ = stopped => {}
                    () = work => {}
                }
            });
        })?;
        Ok(Elsewhere { stop: Some(stop), thread: Some(thread), stages, go_on })
    }

    /// Waits for the end of the next stage; the last one ends when the work has given back what it holds.
    pub(crate) async fn next(&mut self) -> Result<()> {
        self.stages.recv().await.context("the clients' thread has ended")?
    }

    /// Lets it go on after a stage.
    pub(crate) fn go_on(&self) {
        // If it has ended, the next stage says so.
        let _ = self.go_on.send(());
    }

    /// From now on, nothing is heard of them.
    pub(crate) fn fall_silent(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panicked, and said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.end();
    }
}
