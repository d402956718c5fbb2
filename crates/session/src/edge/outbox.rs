//! The send buffer of one stream.
//!
//! Everything that a turn decides for a stream goes into its buffer. The driver takes all of it as one message when the connection has
//! room. A slow reader costs memory, but never delays other streams; the bound in bytes limits that memory. This file sends nothing
//! itself.

use fencepost_wire::v1::{Decided, Detached, Hello, NotTaken, ServerMessage};
use prost::Message;

use super::Transmit;
use crate::bounds::{OUTBOX_BYTES_CROWDED, OUTBOX_BYTES_MAX};
use crate::end::End;
use crate::planted::{Bug, planted};

#[derive(Debug, Default)]
pub(super) struct Outbox {
    message: ServerMessage,
    /// Encoded bytes of `message`. Invariant: at most [`OUTBOX_BYTES_MAX`] plus one item.
    bytes: usize,
    /// All streams together have too many unread bytes, so the smaller bound [`OUTBOX_BYTES_CROWDED`] applies.
    pub(super) is_crowded: bool,
    /// How the stream ends, after `message` is taken.
    end: Option<End>,
    /// The end was set. Nothing is added any more.
    is_closed: bool,
}

impl Outbox {
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Bytes in the buffer.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn hello(&mut self, hello: Hello) {
        if self.has_room(hello.encoded_len()) {
            self.message.hello = Some(hello);
        }
    }

    /// Adds what one entry decided. Answers and pushes of the same entry share one `Decided`.
    pub(super) fn decided(&mut self, entry: Decided) {
        if !self.has_room(entry.encoded_len()) {
            return;
        }
        match self.message.decided.last_mut() {
            Some(last) if (last.index, last.term) == (entry.index, entry.term) => {
                last.answers.extend(entry.answers);
                last.pushes.extend(entry.pushes);
            }
            _ => self.message.decided.push(entry),
        }
    }

    pub(super) fn not_taken(&mut self, not_taken: NotTaken) {
        if self.has_room(not_taken.encoded_len()) {
            self.message.not_taken.push(not_taken);
        }
    }

    pub(super) fn detached(&mut self, detached: Detached) {
        if self.has_room(detached.encoded_len()) {
            self.message.detached.push(detached);
        }
    }

    /// Ends the stream. What is in the buffer already still goes out.
    pub(super) fn end(&mut self, end: End) {
        if !self.is_closed {
            (self.end, self.is_closed) = (Some(end), true);
        }
    }

    /// What to send next.
    pub(super) fn poll(&mut self) -> Option<Transmit> {
        if self.bytes > 0 {
            self.bytes = 0;
            return Some(Transmit::Message(std::mem::take(&mut self.message)));
        }
        self.end.take().map(Transmit::End)
    }

    /// Whether the buffer takes another item of this size; counts its bytes if so. A stream with too many unread bytes ends instead.
    /// Its client loses no answer: an attach repeats every answer that the client has not seen.
    fn has_room(&mut self, bytes: usize) -> bool {
        if self.is_closed {
            return false;
        }
        if self.is_overfull() {
            *self = Outbox { end: Some(End::slow_reader()), is_closed: true, ..Outbox::default() };
            return false;
        }
        // An empty item must be sent, too.
        self.bytes += bytes.max(1);
        true
    }

    fn is_overfull(&self) -> bool {
        let bytes_max = if self.is_crowded { OUTBOX_BYTES_CROWDED } else { OUTBOX_BYTES_MAX };
        self.bytes > bytes_max && !planted(Bug::IgnoresOutboxBound)
    }
}
