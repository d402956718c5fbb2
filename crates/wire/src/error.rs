//! The one error of this crate. Its variants differ in what somebody has to do; its text says it.

use fencepost_core::{BadWord, FormatVersion, KnownVersions};

/// Why bytes could not be read, or a record not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// For the operator: another member runs a newer version.
    #[error("{what} is written in format {found}, and this node knows {known}: upgrade this node, then start it again")]
    NewerFormat {
        /// What was being read.
        what: &'static str,
        /// The format it says.
        found: FormatVersion,
        /// The formats that the node knows.
        known: KnownVersions,
    },
    /// For the operator: a release was left out on the way.
    #[error(
        "{what} is written in format {found}, and this node knows {known}: start it with an older release that knows {found}, \
         and upgrade it when `fencepost members` shows that the cluster uses {}",
        known.oldest()
    )]
    OlderFormat {
        /// What was being read.
        what: &'static str,
        /// The format it says.
        found: FormatVersion,
        /// The formats that the node knows.
        known: KnownVersions,
    },
    /// For the operator: another member runs a newer version. It should have said so by its format.
    #[error(
        "{what} that this version does not know, and must not skip: upgrade this node to the version that wrote it, then \
         start it again; if that is this version, the bytes are damaged"
    )]
    Unknown {
        /// What was being read.
        what: &'static str,
    },
    /// For the operator: what was read can never have been written.
    #[error("{what} is not valid: {source}. The bytes are damaged: take them from another replica or an older backup")]
    BadWord {
        /// What was being read.
        what: &'static str,
        /// Why it is not valid.
        source: BadWord,
    },
    /// For the operator: what was read is not what was written.
    #[error("{what} is damaged ({detail}): take it from another replica or an older backup")]
    Damaged {
        /// What was being read.
        what: &'static str,
        /// How it shows.
        detail: String,
    },
    /// For the operator: another file was given.
    #[error("these bytes are no snapshot of Fencepost: look at the path")]
    NotASnapshot,
    /// For the sender: it stopped too early.
    #[error(
        "the snapshot ends before its trailer, after {records} records: fetch it again from the start; if the file is no \
         longer than this, take another snapshot"
    )]
    Truncated {
        /// How many records could be read.
        records: u64,
    },
    /// For the sender: a chunk did not come, or came twice.
    #[error(
        "chunk {found} of the snapshot came where chunk {expected} was due: fetch the snapshot again from the start"
    )]
    ChunkOutOfOrder {
        /// The number that was due.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// For the sender: something was appended.
    #[error("bytes follow the end of the snapshot: fetch it again from the start, as one file and nothing else")]
    TrailingBytes,
    /// For the developers, when writing; for the operator, when reading.
    #[error(
        "{what} has {bytes} bytes, and at most {bytes_max} are allowed: if this was read, take it from another replica; if \
         it was to be written, report a bug"
    )]
    TooLarge {
        /// What it was.
        what: &'static str,
        /// Its length.
        bytes: u64,
        /// The bound, of [`crate::bounds`].
        bytes_max: usize,
    },
}

impl WireError {
    /// For the client that sent a request that could not be read: what is wrong with it, without advice about disks.
    pub fn for_caller(&self) -> String {
        match self {
            WireError::BadWord { what, source } => format!("{what} is not valid: {source}"),
            WireError::Damaged { what, detail } => format!("{what} is not valid: {detail}"),
            WireError::Unknown { what } => {
                format!(
                    "{what} is missing, or says something that this server does not know: is the client newer than it?"
                )
            }
            WireError::TooLarge { what, bytes, bytes_max } => {
                format!("{what} has {bytes} bytes, and at most {bytes_max} are allowed: send several shorter ones")
            }
            other => other.to_string(),
        }
    }
}
