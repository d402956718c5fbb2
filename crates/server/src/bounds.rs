//! Every bound of the server, in one place, each with its reason.
//!
//! The bounds of the session protocol are in `fencepost_session::bounds`, those of the locks in `fencepost_core::bounds`.

/// Bytes of one message of a peer: a whole log entry and its frame.
pub(crate) const PEER_MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Bytes of a peer's answer when it ends the connection: a sentence or two.
pub(crate) const PEER_ANSWER_BYTES_MAX: usize = 16 << 10;
/// Bytes of a peer's software version: a number and the name of a build.
pub(crate) const PEER_VERSION_BYTES_MAX: usize = 64;
/// Bytes of a snapshot that a peer may send: far above a million locks, far below the machine's memory.
pub(crate) const SNAPSHOT_BYTES_MAX: usize = 2 << 30;
/// Bytes of one piece of a snapshot or backup on the wire.
pub(crate) const SNAPSHOT_PIECE_BYTES: usize = 256 << 10;
/// Streams and calls at the same time on one connection: sessions share a stream, so few are needed.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// Bytes of what a caller says about itself: a user's and a host's name. With the mark `unverified` it is a principal.
pub(crate) const CALLER_BYTES_MAX: usize = 128;
/// Watchers that a node serves at the same time: each event is filtered once per watcher.
pub(crate) const WATCHERS_MAX: usize = 1_000;
/// Bytes in the send buffer of one peer. Further messages are dropped, as a network may do; consensus sends again.
pub(crate) const PEER_OUTBOX_BYTES_MAX: usize = 32 << 20;
/// Events in one message to a watcher.
pub(crate) const EVENTS_PER_MESSAGE_MAX: usize = 500;
/// Rows in one page of a listing: about what fits in a message.
pub(crate) const PAGE_ROWS_MAX: usize = 1_000;
/// Waiters that an explanation lists.
pub(crate) const EXPLAIN_QUEUE_MAX: usize = 1_000;
/// Rows of each kind in one answer over HTTP, unless the caller asks for fewer or more. A look into the state holds up the node, so this is
/// less than what fits.
pub(crate) const HTTP_ROWS_DEFAULT: usize = 100;
pub(crate) const HTTP_ROWS_MAX: usize = 500;
/// Waiters that an explanation over HTTP lists.
pub(crate) const HTTP_QUEUE_MAX: usize = 100;
/// Bytes of the query of one call: a name and a key, each byte of them written with three.
pub(crate) const HTTP_QUERY_BYTES_MAX: usize = 8 << 10;
/// Bytes of the headers of one call.
pub(crate) const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Pending resets of one HTTP/2 connection: the defence against rapid-reset attacks.
pub(crate) const PENDING_RESETS_MAX: usize = 20;
/// Handshakes at the same time on one port. Silent connections delay others by at most [`HANDSHAKE_TIMEOUT`].
pub(crate) const HANDSHAKES_MAX: usize = 512;
/// How long one handshake may take.
pub(crate) const HANDSHAKE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
/// Bytes that the door looks at to tell what the other side speaks: as many as a greeting has.
pub(crate) const FIRST_BYTES: usize = 4;
/// Bytes that the door reads and drops after it has told a caller that it is wrong here: a request with large headers. A connection that
/// is closed with unread bytes is reset, and the caller may not see the answer.
pub(crate) const WRONG_DOOR_BYTES_MAX: usize = 64 << 10;
/// How long the door reads these bytes. Within [`HANDSHAKE_TIMEOUT`], so a caller cannot hold the door longer than by silence.
pub(crate) const WRONG_DOOR_LINGER: std::time::Duration = std::time::Duration::from_secs(1);
