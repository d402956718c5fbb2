//! Every limit and timeout of the session protocol, in one place, each with its reason.
//!
//! The limits of the locks are in `fencepost_core::bounds`, those of the server's connections in the server's `bounds.rs`.

use std::time::Duration;

// ---- Both sides must agree

/// Bytes of one message of a client. A node's decoder never allocates more.
pub const CLIENT_MESSAGE_BYTES_MAX: usize = fencepost_core::bounds::MESSAGE_BYTES_MAX;
/// Bytes of one message of a node. A client's decoder never allocates more.
/// Invariant: at least [`OUTBOX_BYTES_MAX`] plus the largest answer.
pub const SERVER_MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Requests of a new session that a node holds until the session's open is answered. The same number as the answers that a session
/// may leave unseen.
pub const HELD_REQUESTS_MAX: usize = fencepost_core::bounds::UNSEEN_ANSWERS_MAX;

// ---- The node

/// Client streams that a node serves at the same time.
pub const STREAMS_MAX: usize = 20_000;
/// Bytes in the send buffer of one stream. Beyond it the node ends the stream, and the client attaches its sessions again. A hundred
/// thousand answers fill about half of it.
pub const OUTBOX_BYTES_MAX: usize = 8 << 20;
/// Bytes in all send buffers together. Beyond it the node ends each stream with more than [`OUTBOX_BYTES_CROWDED`] unread bytes.
pub const OUTBOXES_BYTES_MAX: usize = 512 << 20;
/// Bytes that a client may always leave unread, whatever the other clients do: a few hundred answers.
pub const OUTBOX_BYTES_CROWDED: usize = 16 << 10;
/// Bytes of the requests that one stream holds behind unanswered opens: sixteen messages. Beyond it the client is told to retry.
pub const HELD_BYTES_MAX: usize = 16 * CLIENT_MESSAGE_BYTES_MAX;

// ---- The client

/// Bytes of one message to the node. A little less than the node accepts, which leaves room for the framing of the parts.
pub const MESSAGE_BYTES: usize = CLIENT_MESSAGE_BYTES_MAX - 4 * 1024;
/// Keep-alives in one message.
pub const KEEP_ALIVES_PER_MESSAGE: usize = 2_000;
/// Requests of one session in flight. A session may leave [`HELD_REQUESTS_MAX`] answers unseen. Half of them are for the requests in
/// flight; the other half is room for the answers of waits that end at the same time.
pub const IN_FLIGHT_MAX: usize = HELD_REQUESTS_MAX / 2;
/// Pending requests of one session, waits included. Further requests fail at once.
pub const PENDING_MAX: usize = 65_536;
/// How long a cancel may take before the client reports the outcome as unknown.
pub const CANCEL_PATIENCE: Duration = Duration::from_secs(2);
/// Time without an answer after which the client gives up the stream: the node hangs, or the network to it is cut. An election
/// takes at most two seconds, so a session with a TTL of five seconds still has time to reach the new leader.
pub const STALL: Duration = Duration::from_secs(3);
/// The longest warning before a deadline. A third of the validity is enough for a short TTL and far too much for an hour.
pub const WARNING_MAX: Duration = Duration::from_secs(10);
/// Pause before a retry of a request that was not taken, if the server names no time.
pub const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How many times one stream attaches a session again that was attached on another stream. An old stream of this client can cause
/// that once or twice; another client that has the secret causes it for ever.
pub const REATTACH_MAX: u32 = 3;

/// The first backoff between rounds of dialling.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// The longest backoff between rounds of dialling.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// The first backoff if a node answered but none leads. A leadership transfer takes milliseconds.
pub const BACKOFF_ELECTION_FIRST: Duration = Duration::from_millis(5);
/// The longest backoff if a node answered but none leads. An election is soon over.
pub const BACKOFF_ELECTION_MAX: Duration = Duration::from_millis(200);
/// Rounds without an answer from any node after which the cluster counts as dead.
pub const BREAKER_ROUNDS: u32 = 3;
/// Rounds in which every endpoint refuses the connection after which a first connect fails: no node runs there. Twice, because a node
/// that restarts refuses for a moment. With [`BACKOFF_FIRST`] between them this takes well under 300 ms.
pub const REFUSED_ROUNDS: u32 = 2;
/// Leader hints that the client follows without a pause. During an election nodes may point at each other.
pub const HINTS_FOLLOWED: u32 = 3;
