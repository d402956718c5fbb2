//! A group's snapshots on disk, one file for each, named by its position.
//!
//! A snapshot is written to a temporary file, synced and renamed, so a file with a snapshot's name is always complete. The next start
//! deletes the temporary file of a crashed write. This file does not look into the bytes: they carry their own checksums, and
//! [`crate::read_snapshot`] finds any damage.
//!
//! Older snapshots are deleted only when the caller says so. A peer's snapshot is usable only when the log begins after it. If the
//! node crashes before that, the old log still needs the previous snapshot.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raft::Storage;
use raft_engine::env::{FileSystem, Handle};

use super::guard::FirstFailure;
use super::reserve::is_full;
use super::{PrivateFiles, StoreError, private, scan, sync_directory};
use fencepost_core::LogPosition;

use crate::log::Log;

const SUFFIX: &str = ".snapshot";
const SUFFIX_ASIDE: &str = ".snapshot.new";
/// Digits of a number in a file's name: enough for the largest, so that names sort in the order of positions.
const DIGITS: usize = 20;

/// The snapshots of one group, in a directory of their own.
///
/// Any thread may read while another one writes. The directory has no lock of its own: the lock of the node's
/// [`super::LogStore`] protects it, too.
pub struct SnapshotStore<F: FileSystem = PrivateFiles> {
    file_system: Arc<F>,
    directory: PathBuf,
    failure: FirstFailure,
    /// The durable snapshots.
    positions: Mutex<BTreeSet<LogPosition>>,
    /// Held while files change.
    changing: Mutex<()>,
}

impl SnapshotStore {
    /// Opens the directory, or creates it, and deletes the temporary files of crashed writes. Files with other names stay.
    ///
    /// # Errors
    /// [`StoreError::Io`] says what to do.
    pub fn open(directory: &Path) -> Result<SnapshotStore, StoreError> {
        SnapshotStore::open_on(Arc::new(PrivateFiles), directory)
    }
}

impl<F: FileSystem> SnapshotStore<F> {
    /// As [`SnapshotStore::open`], on a file system of the caller's choice.
    ///
    /// # Errors
    /// As [`SnapshotStore::open`].
    pub fn open_on(file_system: Arc<F>, directory: &Path) -> Result<SnapshotStore<F>, StoreError> {
        private::create_directory(directory)?;
        let failed = |source| StoreError::io("list", directory, source);
        let mut positions = BTreeSet::new();
        for entry in std::fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if position_in(name, SUFFIX_ASIDE).is_some() {
                file_system.delete(&path).map_err(|source| StoreError::io("delete", &path, source))?;
            }
            positions.extend(position_in(name, SUFFIX));
        }
        // A rename just before the process ended may not be durable yet.
        sync_directory(directory)?;
        if let Some(parent) = directory.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_directory(parent)?;
        }
        Ok(SnapshotStore {
            file_system,
            directory: directory.into(),
            failure: FirstFailure::default(),
            positions: Mutex::new(positions),
            changing: Mutex::new(()),
        })
    }

    /// The newest durable snapshot.
    pub fn newest(&self) -> Option<LogPosition> {
        self.positions().last().copied()
    }

    /// The newest snapshot that fits the log, to start from. A snapshot beyond the log's end, or with another term at its index, came
    /// from a peer just before the node crashed. The peer will send it again.
    pub fn newest_in(&self, log: &Log) -> Option<LogPosition> {
        self.positions().iter().rev().copied().find(|position| log.term(position.index) == Ok(position.term))
    }

    /// The bytes of a snapshot. `None` if there is no snapshot at this position, or it was deleted.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it exists and cannot be read.
    pub fn read(&self, position: LogPosition) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.path(position, SUFFIX);
        match scan::read(self.file_system.as_ref(), &path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.positions().contains(&position) => Ok(None),
            Err(source) => Err(StoreError::io("read", &path, source)),
        }
    }

    /// Makes a snapshot durable. Older snapshots stay until [`SnapshotStore::delete_older`].
    ///
    /// # Errors
    /// [`StoreError::DiskFull`]: nothing was kept, and the caller may try again. [`StoreError::Failed`]: the node must stop.
    pub fn write(&self, position: LogPosition, bytes: &[u8]) -> Result<(), StoreError> {
        let _changing = self.change()?;
        let aside = self.path(position, SUFFIX_ASIDE);
        match self.write_file(&aside, &self.path(position, SUFFIX), bytes) {
            Ok(()) => {
                self.positions().insert(position);
                Ok(())
            }
            Err(error) if is_full(&error) && self.failure.reason().is_none() => {
                match self.file_system.delete(&aside) {
                    Ok(()) => {}
                    // There was not even room for the file's name.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(self.fail("deleted", &aside, &error)),
                }
                Err(StoreError::DiskFull { directory: self.directory.clone() })
            }
            Err(error) => Err(self.fail("written", &aside, &error)),
        }
    }

    /// Deletes all snapshots older than the durable one at `position`. Called when the log continues from that snapshot.
    ///
    /// # Errors
    /// [`StoreError::Inconsistent`] if there is no such snapshot: nothing was deleted. [`StoreError::Failed`]: the node must stop.
    pub fn delete_older(&self, position: LogPosition) -> Result<(), StoreError> {
        let _changing = self.change()?;
        let older = {
            let mut positions = self.positions();
            if !positions.contains(&position) {
                let reason = format!("cannot delete the snapshots before {position:?}: there is none at {position:?}");
                return Err(StoreError::Inconsistent { reason });
            }
            let not_older = positions.split_off(&position);
            std::mem::replace(&mut *positions, not_older)
        };
        for position in older {
            let path = self.path(position, SUFFIX);
            self.file_system.delete(&path).map_err(|error| self.fail("deleted", &path, &error))?;
        }
        Ok(())
    }

    fn write_file(&self, aside: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let handle = Arc::new(self.file_system.create(aside)?);
        handle.truncate(0)?;
        self.file_system.new_writer(handle.clone())?.write_all(bytes)?;
        // What a disk holds after a failed sync is unknown, even if the error is a full disk.
        handle
            .sync()
            .inspect_err(|error| self.failure.note(format!("a sync of {} failed: {error}", aside.display())))?;
        self.file_system.rename(aside, path)?;
        sync_directory(&self.directory).map_err(|error| {
            self.failure.note(error.to_string());
            io::Error::other(error)
        })
    }

    /// Notes the first failure, and returns the error that stops the node.
    fn fail(&self, what: &str, path: &Path, error: &io::Error) -> StoreError {
        self.failure.note(format!("{} cannot be {what}: {error}", path.display()));
        StoreError::Failed { reason: self.failure.reason().unwrap_or_default().into() }
    }

    /// Locks the files for one thread. Fails after the first failure.
    fn change(&self) -> Result<MutexGuard<'_, ()>, StoreError> {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure.reason() {
            Some(reason) => Err(StoreError::Failed { reason: reason.into() }),
            None => Ok(changing),
        }
    }

    fn positions(&self) -> MutexGuard<'_, BTreeSet<LogPosition>> {
        // Poisoning does not matter: no code here panics between two changes that belong together.
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, position: LogPosition, suffix: &str) -> PathBuf {
        let LogPosition { index, term } = position;
        self.directory.join(format!("{index:0DIGITS$}-{term:0DIGITS$}{suffix}"))
    }
}

/// The position in a file's name, if it is a snapshot's name.
fn position_in(name: &str, suffix: &str) -> Option<LogPosition> {
    let number = |text: &str| {
        let is_ours = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        is_ours.then(|| text.parse().ok()).flatten()
    };
    let (index, term) = name.strip_suffix(suffix)?.split_once('-')?;
    Some(LogPosition { index: number(index)?, term: number(term)? })
}
