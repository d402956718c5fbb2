//! Every bound and timing constant of a replica and its disk, in one place, each with its reason.
//!
//! A queue, loop or payload of this crate without a line here is a bug. The bounds of the lock state are in
//! `fencepost_core::bounds`, the bounds of byte formats in `fencepost_wire::bounds`.
//!
//! Not here: byte layouts and names of files (`store/`), estimates of encoded sizes (`gather.rs`), and the shares into which
//! the room of the log is divided (`Settings::log_bytes_for_operations`, `replica/snapshots.rs`). Each of them defines one
//! file's algorithm. They are not for tuning.

use std::time::Duration;

// ---- Consensus

/// Milliseconds between two ticks. Consensus counts time in ticks only.
pub const TICK_MS: u64 = 100;
/// Ticks without a message of the leader after which a follower stands for election, at least. At most twice as many: each
/// node draws its own timeout, so that two candidates rarely meet. An election begins after one to two seconds.
pub const ELECTION_TICKS: usize = 10;
/// Ticks between two heartbeats of the leader: four may be lost before a follower stands for election.
pub const HEARTBEAT_TICKS: usize = 2;
/// Bytes of entries in one append message: large enough that the message costs little beside its content, and small enough that
/// a heartbeat behind it is not late.
pub(crate) const APPEND_BYTES_MAX: u64 = 1 << 20;
/// Append messages to one follower that are not answered yet. A follower that answers nothing gets no more than these.
pub(crate) const APPENDS_IN_FLIGHT_MAX: usize = 256;
/// Linearizable reads that wait for consensus at the same time. Each of them is asked again every tick.
pub(crate) const READS_WAITING_MAX: usize = 10_000;
/// Entries that a learner may be behind the leader when it gets a vote: fewer than a second's worth on a busy group. A voter that is
/// further behind could hold up every commit.
pub const PROMOTE_BEHIND_ENTRIES_MAX: u64 = 100;
/// Milliseconds after which a peer that should be heard counts as silent. A leader and its followers exchange heartbeats every
/// 200 ms. Without a leader, a voter asks for votes at least every two seconds.
pub const SILENT_AFTER_MS: u64 = 3_000;

// ---- Logical time

/// Milliseconds that one turn adds to logical time at most, however long the process slept.
// Rule: logical-time
pub const TURN_MS_MAX: u64 = 500;
/// Milliseconds of logical time that may pass without an entry while something can expire. A new leader counts on from the newest
/// entry that it has, so a leader that dies takes at most this much time with it. Half of it would double the entries of an idle
/// group. Twice as much would make each fail-over a second later.
// Rule: bounded-late
pub const STAMP_EVERY_MS: u64 = 1_000;
/// Milliseconds between two entries that only keep-alives or passing time cause.
// Rule: idle-is-silent
pub const BEAT_MS: u64 = 250;

// ---- Entries and what waits for them

/// Entries in flight at the same time. More than three brought nothing beyond the noise (`docs/decisions/0020-several-entries-under-way.md`).
pub const ENTRIES_IN_FLIGHT_MAX: usize = 4;
/// Default of [`crate::Settings::further_entry_min`]: for fewer operations, another entry costs more than it saves.
pub(crate) const FURTHER_ENTRY_MIN_DEFAULT: usize = 16;
/// Commands in one entry, so that an entry is applied in a few milliseconds.
pub const ENTRY_COMMANDS_MAX: usize = 10_000;
/// Bytes in one entry, as estimated from above. Well below what the log format allows.
pub(crate) const ENTRY_WEIGHT_MAX: usize = 4 << 20;
/// Queue length above which operations that make the state larger are refused: about a second's worth on a busy group.
pub const WAITING_WANTS_MAX: usize = 100_000;
/// Queue length above which even releases are refused. Twice [`WAITING_WANTS_MAX`], so that acquires are refused long before releases.
/// Keep-alives are always taken: a session has at most one of them in flight, and refusing it would end a live session.
pub const WAITING_OPERATIONS_MAX: usize = 200_000;
/// Indexes between two state hashes that replicas compare: rare enough to cost nothing, often enough that a node with another
/// state stops within seconds on a busy group.
pub const PROOF_EVERY_ENTRIES: u64 = 64;
/// State hashes that a node keeps. The two replicas that compare are fewer entries apart, unless one of them has installed a snapshot.
pub(crate) const PROOFS_KEPT_MAX: usize = 256;
/// Events that a node keeps for watchers. A watcher that is further behind must read the state again.
pub const EVENTS_KEPT_MAX: usize = 100_000;

// ---- The log in memory, and snapshots

/// Default of [`crate::Settings::snapshot_every_entries`]: a restart applies 100,000 small entries in less
/// than a second.
pub(crate) const SNAPSHOT_EVERY_ENTRIES_DEFAULT: u64 = 100_000;
/// Default of [`crate::Settings::snapshot_every_bytes`]: a quarter of the log's room.
pub(crate) const SNAPSHOT_EVERY_BYTES_DEFAULT: u64 = 64 << 20;
/// Default of [`crate::Settings::entries_kept`]: some seconds of a busy group. A follower that is further behind gets a snapshot.
pub(crate) const ENTRIES_KEPT_DEFAULT: u64 = 10_000;
/// Default of [`crate::Settings::log_bytes_max`], for a node with a gigabyte of memory.
pub(crate) const LOG_BYTES_MAX_DEFAULT: u64 = 256 << 20;
/// Entries handed to the thread that makes a snapshot in one turn: copying them takes a fraction of a millisecond.
pub(crate) const FED_PER_TURN: usize = 1_000;
/// Bytes of a snapshot that are decoded at a time, so that little of it is unpacked in memory at once.
pub(crate) const SNAPSHOT_PIECE_BYTES: usize = 256 * 1024;

// ---- The disk

/// Time between two attempts at a write for which the disk has no room.
pub(crate) const FULL_DISK_WAIT: Duration = Duration::from_millis(200);
/// Time between two attempts to fill the reserve again on a nearly full disk. An operator who made room wants to see the effect
/// soon. But on file systems that cannot allocate, each attempt writes the reserve until the disk is full.
pub(crate) const REFILL_WAIT: Duration = Duration::from_secs(1);
/// A sync that takes longer than this must not hold up a turn again. It is a quarter of a tick: peers do not notice a message that is
/// this late, and a quick disk takes this long only when something is wrong with it.
pub(crate) const SYNC_IN_TURN_MAX: Duration = Duration::from_millis(25);
/// How long a disk counts as slow after such a sync.
pub(crate) const SLOW_DISK_FOR: Duration = Duration::from_secs(10);
/// Bytes of entries up to which a node that is alone syncs in its turn. More of them mean that many requests arrive, and those would
/// wait for this sync.
pub(crate) const SMALL_ENTRY_BYTES: usize = 1 << 10;
/// Bytes of a log file at which a new one begins. A file is read into memory whole when the store is opened.
pub(crate) const LOG_FILE_BYTES: u64 = 32 << 20;
/// Bytes of all log files together above which files of compacted entries are deleted: eight files.
pub(crate) const PURGE_BYTES: u64 = 256 << 20;
/// Bytes kept back for a full disk: two log files.
pub(crate) const RESERVE_BYTES: u64 = 64 << 20;
/// Bytes written at a time where the file system cannot allocate the reserve.
pub(crate) const RESERVE_PIECE_BYTES: usize = 1 << 20;
