//! Every bound of the byte formats, each with its reason. The bounds of what the bytes say are the core's.
//!
//! A length is compared with its bound before anything is allocated for it.

/// Bytes of one log entry. The replica ends a batch long before this; a longer one is damage, not work.
pub const ENTRY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A chunk of a snapshot is finished when its records have so many bytes: large enough that its frame and its compression
/// cost little, small enough to send as one message and to lose without harm.
pub const CHUNK_RECORD_BYTES: usize = 256 * 1024;

/// Bytes of one record. The largest that the core can make is the answer to a deadlock whose cycle has as many links as
/// one search follows ([`DEADLOCK_STEPS_MAX`](fencepost_core::bounds::DEADLOCK_STEPS_MAX)), each with the longest name and
/// owner: about 7 MiB.
pub const RECORD_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes of a chunk before compression: one less than finishes it, and then the largest record with its length.
pub const CHUNK_RAW_BYTES_MAX: usize = CHUNK_RECORD_BYTES + RECORD_BYTES_MAX + 8;

/// Bytes of a chunk after compression: LZ4 adds at most one byte for each 255 that it cannot compress, and a few.
pub const CHUNK_PACKED_BYTES_MAX: usize = CHUNK_RAW_BYTES_MAX + CHUNK_RAW_BYTES_MAX / 255 + 64;

/// Members of one group, whatever their roles. A group votes with three or five; learners and those that are being replaced come
/// on top, and a number far above that is a mistake.
pub const MEMBERS_MAX: usize = 32;

/// Bytes of a member's name: enough for the host names that people give to machines, short enough for a column of a table.
pub const MEMBER_NAME_BYTES_MAX: usize = 64;

/// Bytes of a member's address: the longest name that the domain name system allows, about.
pub const MEMBER_ADDRESS_BYTES_MAX: usize = 255;

/// Bytes of the header of a snapshot, of any version. The longest of ours has [`MEMBERS_MAX`] members with the longest names and
/// addresses, about 20 KiB; a later one may say more, but not much.
pub const SNAPSHOT_HEADER_BYTES_MAX: usize = 64 * 1024;

/// Bytes of one message between nodes: consensus sends about a mebibyte of entries at a time, or one entry if it is longer.
pub const PEER_MESSAGE_BYTES_MAX: usize = ENTRY_BYTES_MAX + 2 * 1024 * 1024;
