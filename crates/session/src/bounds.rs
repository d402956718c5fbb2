//! Every number that the two ends go by, in one place, each with its reason. Those of the locks are in `fencepost_core::bounds`.

use std::time::Duration;

// ---- Both ends must agree

/// Bytes of one message of a client. A node's decoder never allocates more.
pub const CLIENT_MESSAGE_BYTES_MAX: usize = fencepost_core::bounds::MESSAGE_BYTES_MAX;
/// Bytes of one message of a node. A client's decoder never allocates more.
/// Invariant: at least [`OUTBOX_BYTES_MAX`] and the largest answer more.
pub const SERVER_MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Requests that a node holds behind one open: as many as a session may leave unseen.
pub const HELD_REQUESTS_MAX: usize = fencepost_core::bounds::UNSEEN_ANSWERS_MAX;

// ---- The node

/// Streams of clients that a node serves in all.
pub const STREAMS_MAX: usize = 20_000;
/// Bytes that wait for one slow reader. Then it is cut off and attaches again. A hundred thousand answers are about half of it.
pub const OUTBOX_BYTES_MAX: usize = 8 << 20;
/// Bytes that wait for all readers together. Beyond it a reader is cut off that leaves more than [`OUTBOX_BYTES_CROWDED`] unread.
pub const OUTBOXES_BYTES_MAX: usize = 512 << 20;
/// Bytes that a reader may leave unread whatever the others do: some hundred answers.
pub const OUTBOX_BYTES_CROWDED: usize = 16 << 10;
/// Bytes of the requests that one stream has behind opens that are not answered yet: sixteen messages. Beyond it the client is told to
/// ask again in a moment.
pub const HELD_BYTES_MAX: usize = 16 * CLIENT_MESSAGE_BYTES_MAX;

// ---- The client

/// Bytes of one message to the node, a little under what it reads: the rest is for the frame around the parts.
pub const MESSAGE_BYTES: usize = CLIENT_MESSAGE_BYTES_MAX - 4 * 1024;
/// Keep-alives in one message.
pub const KEEP_ALIVES_PER_MESSAGE: usize = 2_000;
/// Requests of one session that are sent and not answered. Half of what a session may leave unseen, so that waits which end at
/// the same time find room.
pub const IN_FLIGHT_MAX: usize = HELD_REQUESTS_MAX / 2;
/// Requests of one session that are not over, waits included. Whoever asks for more while nobody answers hears it.
pub const PENDING_MAX: usize = 65_536;
/// How long a cancel may take before the outcome is called unknown.
pub const CANCEL_PATIENCE: Duration = Duration::from_secs(2);
/// Without an answer for so long the stream is given up: the node hangs, or the way to it is cut. An election takes two
/// seconds at most, and somebody else leads then; a session of five seconds should live to see it.
pub const STALL: Duration = Duration::from_secs(3);
/// The longest warning before a deadline. A third of the validity is enough for a short TTL and far too much for an hour.
pub const WARNING_MAX: Duration = Duration::from_secs(10);
/// When something is asked again that was not taken, if the server does not say.
pub const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How often one stream attaches a session again that seems to be attached elsewhere. Our own old stream can do that once or
/// twice; somebody else with our secret does it for ever.
pub const REATTACH_MAX: u32 = 3;

/// The first step of the back-off between rounds of dialling.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// Its longest step.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// The first pause between rounds in which somebody answered, but nobody leads: a lead that is handed over is soon taken,
pub const BACKOFF_ELECTION_FIRST: Duration = Duration::from_millis(5);
/// and the longest: so is an election.
pub const BACKOFF_ELECTION_MAX: Duration = Duration::from_millis(200);
/// So many rounds without an answer from anyone, and the cluster is taken for dead.
pub const BREAKER_ROUNDS: u32 = 3;
/// Hints to another leader that are followed without a pause. In an election nodes may point at each other.
pub const HINTS_FOLLOWED: u32 = 3;
