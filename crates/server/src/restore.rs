//! Makes a new cluster from a backup: the directory of its first node.
//!
//! The cluster and the node get new ids, so that they cannot be mistaken for the old ones. Sessions are not restored: every holder of
//! a lock must acquire it again.

use std::path::Path;

use fencepost_core::KnownVersions;
use fencepost_replica::store::{Identity, LogStore, SnapshotStore, Start, close_to_others, read_identity};
use fencepost_replica::{GROUP_BEGINS, GroupId, Log, Stop, restore_backup};

use crate::error::StartError;
use crate::server::{GROUP, draw_node_id, draw_u128};

/// The result of restoring a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredCluster {
    /// The new cluster.
    pub cluster: u128,
    /// Its only member.
    pub node: u64,
}

/// Makes the directory of a new cluster's only node from the bytes of a backup. Every token of the new cluster is greater by at least
/// `token_jump` than the last one in the backup: pass more than the number of tokens that the old cluster can have given since then.
///
/// # Errors
/// [`StartError::LogExists`] if there is a log in the directory, [`StartError::Stop`] if the backup cannot be read or the
/// directory cannot be written.
pub fn restore(backup: &[u8], directory: &Path, token_jump: u64) -> Result<RestoredCluster, StartError> {
    close_to_others(directory).map_err(Stop::from)?;
    if read_identity(directory).map_err(Stop::from)?.is_some() {
        return Err(StartError::LogExists { directory: directory.display().to_string() });
    }
    let (cluster, node) = (draw_u128(), draw_node_id());
    let group = GroupId { cluster, group: GROUP };
    let snapshot = restore_backup(backup, group, token_jump, node, KnownVersions::THIS_BUILD)?;
    // The log is written last: until it exists, the restore can be tried again.
    let snapshots = SnapshotStore::open(&directory.join("snapshots")).map_err(Stop::from)?;
    snapshots.write(GROUP_BEGINS, &snapshot).map_err(Stop::from)?;
    let log = Log::new(&[node]);
    LogStore::open(directory, Identity { cluster, node }, GROUP, Start::New(&log)).map_err(Stop::from)?;
    Ok(RestoredCluster { cluster, node })
}
