//! What waits to go down one client's stream.
//!
//! Whatever is decided in a turn is put here, and gRPC takes all of it as one message when the connection has room. So a slow
//! reader costs memory and nobody's time, and a bound on that memory is a bound on how slow it may be.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use fencepost_wire::v1::{Decided, NotTaken, ServerMessage};
use futures_core::Stream;
use tonic::Status;

use crate::bounds::OUTBOX_ITEMS_MAX;

#[derive(Default)]
struct Pending {
    message: ServerMessage,
    items: usize,
    /// How the stream ends, once everything before it is taken.
    end: Option<Status>,
    is_over: bool,
    reader: Option<Waker>,
}

/// The sending end, and what is read from it.
#[derive(Clone, Default)]
pub(crate) struct Outbox(Arc<Mutex<Pending>>);

impl Outbox {
    /// What one entry decided: answers and pushes are put to those of the same entry.
    pub(crate) fn decided(&self, entry: Decided) {
        self.change(|pending| {
            pending.items += entry.answers.len() + entry.pushes.len();
            match pending.message.decided.last_mut() {
                Some(last) if last.index == entry.index => {
                    last.answers.extend(entry.answers);
                    last.pushes.extend(entry.pushes);
                }
                _ => pending.message.decided.push(entry),
            }
        });
    }

    pub(crate) fn not_taken(&self, not_taken: NotTaken) {
        self.change(|pending| {
            pending.items += 1;
            pending.message.not_taken.push(not_taken);
        });
    }

    pub(crate) fn hello(&self, hello: fencepost_wire::v1::Hello) {
        self.change(|pending| {
            pending.items += 1;
            pending.message.hello = Some(hello);
        });
    }

    /// Ends the stream. What was put here before still goes out.
    pub(crate) fn end(&self, status: Status) {
        self.change(|pending| {
            pending.end.get_or_insert(status);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.end.is_some() || pending.is_over {
            return;
        }
        change(&mut pending);
        if pending.items > OUTBOX_ITEMS_MAX {
            // What is dropped here is not lost: an attach gives back every answer that was not seen.
            *pending = Pending { reader: pending.reader.take(), ..Pending::default() };
            pending.end = Some(Status::resource_exhausted(
                "this connection does not read its answers: attach its sessions again, and read faster",
            ));
        }
        if let Some(reader) = pending.reader.take() {
            reader.wake();
        }
    }
}

impl Stream for Outbox {
    type Item = Result<ServerMessage, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut pending = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.items > 0 {
            pending.items = 0;
            return Poll::Ready(Some(Ok(std::mem::take(&mut pending.message))));
        }
        if let Some(status) = pending.end.take() {
            pending.is_over = true;
            return Poll::Ready(Some(Err(status)));
        }
        if pending.is_over {
            return Poll::Ready(None);
        }
        pending.reader = Some(context.waker().clone());
        Poll::Pending
    }
}
