//! Requests that the edge holds until an open is answered.
//!
//! A client may send requests behind an open, in the same message. They run when the open has bound the session to the stream. If
//! the open is refused, the id may be another client's session, and these requests must not run in it.

use fencepost_core::SessionId;
use fencepost_wire::v1::Request;
use prost::Message;

use super::Table;
use crate::bounds::{HELD_BYTES_MAX, HELD_REQUESTS_MAX};

/// Why a request is not held.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotHeld {
    /// No open of its session is under way on this stream.
    NotOpening,
    /// Too many requests wait behind the open, or the requests that this stream holds have too many bytes.
    Full,
}

/// The unanswered opens of one stream, each with the requests behind it.
#[derive(Debug)]
pub(super) struct Opening {
    /// Invariant: at most [`HELD_REQUESTS_MAX`] requests per session.
    held: Table<SessionId, Vec<Request>>,
    /// Bytes of all held requests. Invariant: at most [`HELD_BYTES_MAX`].
    bytes: usize,
}

impl Opening {
    pub(super) fn new(hash_seed: u64) -> Opening {
        Opening { held: super::table(hash_seed), bytes: 0 }
    }

    /// An open was submitted.
    pub(super) fn begin(&mut self, session: SessionId) {
        self.held.entry(session).or_default();
    }

    pub(super) fn hold(&mut self, session: SessionId, request: Request) -> Result<(), NotHeld> {
        let held = self.held.get_mut(&session).ok_or(NotHeld::NotOpening)?;
        let bytes = request.encoded_len();
        if held.len() >= HELD_REQUESTS_MAX || self.bytes + bytes > HELD_BYTES_MAX {
            return Err(NotHeld::Full);
        }
        self.bytes += bytes;
        held.push(request);
        Ok(())
    }

    /// The open is answered. Returns the requests held behind it.
    pub(super) fn end(&mut self, session: SessionId) -> Vec<Request> {
        let held = self.held.remove(&session).unwrap_or_default();
        self.bytes -= held.iter().map(Message::encoded_len).sum::<usize>();
        held
    }
}
