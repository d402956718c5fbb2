//! The error of this crate. Each variant says who must act, and its text says what to do.

use fencepost_core::{BadWord, FormatVersion, KnownVersions};

/// Why bytes could not be read, or a record could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// For the operator: another member runs a newer version.
    #[error("{what} is written in format {found}, and this node knows {known}: upgrade this node, then start it again")]
    NewerFormat {
        /// What was being read.
        what: &'static str,
        /// The format of the bytes.
        found: FormatVersion,
        /// The formats that the node knows.
        known: KnownVersions,
    },
    /// For the operator: the upgrade skipped a release.
    #[error(
        "{what} is written in format {found}, and this node knows {known}: start it with an older release that knows {found}, \
         and upgrade it when `fencepost members` shows that the cluster uses {}",
        known.oldest()
    )]
    OlderFormat {
        /// What was being read.
        what: &'static str,
        /// The format of the bytes.
        found: FormatVersion,
        /// The formats that the node knows.
        known: KnownVersions,
    },
    /// For the operator: another member runs a newer version, which should have used a newer format.
    #[error(
        "{what} is not known to this version, which must not skip it: upgrade this node to the version that wrote it, then \
         start it again; if that is this version, the bytes are damaged"
    )]
    Unknown {
        /// What was being read.
        what: &'static str,
    },
    /// For the operator: the bytes hold a value that no version writes.
    #[error("{what} is not valid: {source}. The bytes are damaged: take them from another replica or an older backup")]
    BadWord {
        /// What was being read.
        what: &'static str,
        /// Why it is not valid.
        source: BadWord,
    },
    /// For the operator: the bytes differ from what was written.
    #[error("{what} is damaged ({detail}): take it from another replica or an older backup")]
    Damaged {
        /// What was being read.
        what: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// For the operator: this is another kind of file.
    #[error("these bytes are not a Fencepost snapshot: check the path")]
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
    #[error("chunk {found} of the snapshot came instead of chunk {expected}: fetch the snapshot again from the start")]
    ChunkOutOfOrder {
        /// The number that was expected.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// For the sender: something was appended.
    #[error("bytes follow the end of the snapshot: fetch it again from the start, and append nothing to it")]
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
    /// The text for a client whose request could not be read: what is wrong with the request, without advice for operators.
    pub fn for_caller(&self) -> String {
        match self {
            WireError::Unknown { what } => {
                format!(
                    "{what} is missing, or says something that this server does not know: is the client newer than it?"
                )
            }
            WireError::TooLarge { .. } => self.problem() + ": send several shorter ones",
            other => other.problem(),
        }
    }

    /// What is wrong with bytes that came over the network, without advice: the reader cannot take them from elsewhere.
    pub fn problem(&self) -> String {
        match self {
            WireError::BadWord { what, source } => format!("{what} is not valid: {source}"),
            WireError::Damaged { what, detail } => format!("{what} is not valid: {detail}"),
            WireError::Unknown { what } => {
                format!("{what} is missing, or says something that this version does not know")
            }
            WireError::TooLarge { what, bytes, bytes_max } => {
                format!("{what} has {bytes} bytes, and at most {bytes_max} are allowed")
            }
            other => other.to_string(),
        }
    }
}
