//! The errors of the log and the snapshots on disk, by who must act: the operator, the node, or the caller.

use std::io;
use std::path::{Path, PathBuf};

use super::Identity;

/// Why the store failed or refused. The message says who must do what.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The node must stop. Only opening the store again shows what the disk holds.
    #[error("the disk is no longer reliable: {reason}; the node must stop and be restarted; do not retry")]
    Failed {
        /// What failed first.
        reason: String,
    },
    /// The operator must make room. Nothing was written, and the same write may be tried again.
    #[error("the disk is full, nothing was written: make room in {directory}, then try the same write again")]
    DiskFull {
        /// Where.
        directory: PathBuf,
    },
    /// The operator must replace the node, or restore a backup.
    #[error(
        "{place} is damaged: {reason}; this node must not use it: remove the node from its group and add it again \
         under a new id with an empty directory, or restore a backup if no other node has the data"
    )]
    Damaged {
        /// Which file or directory.
        place: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The operator must give the node its own directory.
    #[error("the directory belongs to {found}, and this is {expected}: start the node with its own directory")]
    Foreign {
        /// The node whose log is there.
        found: Identity,
        /// The node that opens it.
        expected: Identity,
    },
    /// The operator must start a newer version.
    #[error(
        "the log has format {found}, and this version knows formats up to {known}: start the version that wrote it, or a newer one"
    )]
    NewerFormat {
        /// The format of the log.
        found: u32,
        /// The newest format that this version knows.
        known: u32,
    },
    /// The operator must say whether the node is new or was wiped.
    #[error(
        "there is no log of group {group} in {directory}: start a new node as new; if this one ran before, its disk was \
         wiped, and it must be removed from its group and added again under a new id"
    )]
    NotThere {
        /// Which group.
        group: u64,
        /// Where.
        directory: PathBuf,
    },
    /// The operator started a node as new on a directory that is in use.
    #[error(
        "there already is a log of group {group} in {directory}: start the node as one that ran before, or give it an empty directory"
    )]
    AlreadyThere {
        /// Which group.
        group: u64,
        /// Where.
        directory: PathBuf,
    },
    /// The operator started the node twice.
    #[error("another process has {directory} open: stop it first")]
    InUse {
        /// Where.
        directory: PathBuf,
    },
    /// The caller asked for something that would make the log inconsistent. Nothing was written.
    #[error("refused, nothing was written: {reason}; this is a bug in the caller")]
    Inconsistent {
        /// What would be wrong.
        reason: String,
    },
    /// The operator must check whether another user changed something, and close the directory.
    #[error(
        "{path} has mode {mode:o}: {reason}. Check that it is as this node left it, then run chmod -R go= {path}; or name a \
         directory that does not exist yet, which the node creates with mode 700"
    )]
    OpenToOthers {
        /// Which directory or file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// The operator must look at the disk or its permissions.
    #[error("cannot {action} {path}: {source}; check the disk and the permissions, then start the node again")]
    Io {
        /// What the store tried to do.
        action: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// What the operating system answered.
        source: io::Error,
    },
}

impl StoreError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> StoreError {
        StoreError::Io { action, path: path.into(), source }
    }
}
