//! Clients on a thread and a runtime of their own. They can fall silent all at once, like a machine that loses power: no lock is
//! released, and no session is closed. Dropping the clients on the runtime of the benchmark would release their locks.

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

/// For the work on the thread of [`Elsewhere`]: reports the end of a stage to the benchmark, and waits for `Elsewhere::go_on`.
pub(crate) struct Stage {
    reached: mpsc::UnboundedSender<Result<()>>,
    go_on: mpsc::UnboundedReceiver<()>,
}

impl Stage {
    /// Reports the end of a stage, and waits until the benchmark lets the work go on.
    pub(crate) async fn done(&mut self) {
        // If the receiver is gone, this thread is about to be stopped.
        let _ = self.reached.send(Ok(()));
        let _ = self.go_on.recv().await;
    }
}

impl Elsewhere {
    /// Runs `work` on a thread of its own. Its result is never dropped, so that its guards keep their locks.
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
                    // Never dropped: dropping a guard releases its lock, even while its runtime ends.
                    let kept = ManuallyDrop::new(work(stage).await);
                    match &*kept {
                        Ok(_) => drop(reached.send(Ok(()))),
                        Err(error) => drop(reached.send(Err(anyhow::anyhow!("{error:#}")))),
                    }
                    std::future::pending::<()>().await;
                };
                // When the stop signal comes, `block_on` returns. From then on no task of this runtime runs, and nothing is sent.
                tokio::select! {
                    biased;
                    _ = stopped => {}
                    () = work => {}
                }
            });
        })?;
        Ok(Elsewhere { stop: Some(stop), thread: Some(thread), stages, go_on })
    }

    /// Waits for the end of the next stage. The last stage ends when `work` returns.
    pub(crate) async fn next(&mut self) -> Result<()> {
        self.stages.recv().await.context("the clients' thread has ended")?
    }

    /// Lets the work go on after a stage.
    pub(crate) fn go_on(&self) {
        // If the thread has ended, `next` returns an error.
        let _ = self.go_on.send(());
    }

    /// Stops the clients. From now on they send nothing.
    pub(crate) fn fall_silent(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.end();
    }
}
