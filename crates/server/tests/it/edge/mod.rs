//! Golden files of the server's edge: every refusal and every end of a stream, as a client receives them over frames and over gRPC.
//!
//! Each test is one case. It starts a real node, connects over loopback, once over frames and once over gRPC (the two "doors"), and
//! records what the client does and what it receives. The record is compared with `tests/golden/NAME.txt`. A line that differs
//! between the doors stands there twice. To write the files again after an intended change:
//!
//! ```text
//! FENCEPOST_WRITE_GOLDEN=1 cargo test -p fencepost-server --test it edge
//! ```
//!
//! All tests run on one thread, like the server in production, so the order of what a client receives does not depend on timing.

mod calls;
mod ends;
mod leaders;
mod refusals;
mod sessions;
mod story;
mod stream;

use crate::client::{lock, open, request};
use fencepost_core::{Action, Epoch, GrantId, Seen, SessionId, Wait};
use fencepost_wire::{api, v1};

/// Longer than any test: a session with this time to live does not expire.
const TTL_MS: u64 = 600_000;

fn opens(opens: impl IntoIterator<Item = v1::OpenSession>) -> v1::ClientMessage {
    v1::ClientMessage { opens: opens.into_iter().collect(), ..Default::default() }
}

fn open_session(session: u128) -> v1::ClientMessage {
    opens([open(session, TTL_MS)])
}

fn attach_session(session: u128) -> v1::ClientMessage {
    v1::ClientMessage { attaches: vec![crate::client::attach(session, 0)], ..Default::default() }
}

fn keep_alive(session: u128, epoch: u64) -> v1::ClientMessage {
    let keep_alive = api::keep_alive_to_wire(SessionId(session), Epoch(epoch), &Seen::default());
    v1::ClientMessage { keep_alives: vec![keep_alive], ..Default::default() }
}

fn requests(requests: impl IntoIterator<Item = v1::Request>) -> v1::ClientMessage {
    v1::ClientMessage { requests: requests.into_iter().collect(), ..Default::default() }
}

/// An acquire that does not wait.
fn acquire(session: u128, epoch: u64, number: u64, name: &str) -> v1::Request {
    request(session, epoch, number, lock(name, Wait::No))
}

/// The release of a grant. In a new cluster, grants count from 1.
fn release(session: u128, epoch: u64, number: u64, grant: u64) -> v1::Request {
    request(session, epoch, number, Action::Release { grant: GrantId(grant), report: None })
}
