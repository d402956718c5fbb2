//! Every bound of the byte formats, each with its reason. The bounds of commands and of the lock state are in the core.
//!
//! A length is compared with its bound before anything is allocated for it.

/// Bytes of one log entry. The replica ends a batch long before this, so a longer entry is damaged.
pub const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of records at which a chunk of a snapshot is finished. Large enough that its head and its compression cost little, small
/// enough to send as one message and to send again after a loss.
pub const CHUNK_RECORD_BYTES: usize = 256 * 1024;

/// Bytes of one record. The largest record that the core can make is the answer to a deadlock with
/// [`DEADLOCK_STEPS_MAX`](fencepost_core::bounds::DEADLOCK_STEPS_MAX) links, each with the longest name and owner: about 7 MiB.
pub const RECORD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of a chunk before compression: one byte less than finishes it, plus the largest record with its length.
pub const CHUNK_RAW_BYTES_MAX: usize = CHUNK_RECORD_BYTES + RECORD_BYTES_MAX + 8;

/// Bytes of a chunk after compression: LZ4 adds at most one byte for each 255 incompressible bytes, and a few more.
pub const CHUNK_PACKED_BYTES_MAX: usize = CHUNK_RAW_BYTES_MAX + CHUNK_RAW_BYTES_MAX / 255 + 64;

/// Members of one group, whatever their roles. A group has three or five voters, and some learners and leaving members. A number far
/// above that is a mistake.
pub const MEMBERS_MAX: usize = 32;

/// Bytes of a member's name: enough for usual host names, short enough for a column of a table.
pub const MEMBER_NAME_BYTES_MAX: usize = 64;

/// Bytes of a member's address: about the longest name that the domain name system allows.
pub const MEMBER_ADDRESS_BYTES_MAX: usize = 255;

/// Bytes of the header of a snapshot, of any version. Today's longest header has [`MEMBERS_MAX`] members with the longest names and
/// addresses, about 20 KiB, and [`WALL_CLOCK_ROWS_MAX`] rows of wall-clock times, about 20 KiB. The rest is room for later versions.
pub const SNAPSHOT_HEADER_BYTES_MAX: usize = 64 * 1024;

/// Rows in the table of wall-clock times. A pause of the cluster adds one, so a table covers months at least. It is sent with each
/// answer to an observer: a row takes about 20 bytes.
pub const WALL_CLOCK_ROWS_MAX: usize = 1_000;

/// How far logical time and the wall clock may move apart, in milliseconds, before the table of wall-clock times gets another row.
/// People read times by the second, and a usual clock drifts by that in a day.
pub const WALL_CLOCK_STEP_MS: u64 = 1_000;

/// Bytes of one message between nodes. Consensus sends about a mebibyte of entries at a time, or one longer entry.
pub const PEER_MESSAGE_BYTES_MAX: usize = ENTRY_BYTES_MAX + 2 * 1024 * 1024;
