//! A group's snapshots on disk, each a file that is named by its position.
//!
//! A snapshot is written aside, synced and moved into place, so a file with a snapshot's name is always whole; what a crash
//! leaves of a write is removed at the next start. What stands in the bytes is not looked at here: they carry their own
//! checksums, and [`crate::read_snapshot`] finds any damage.
//!
//! Older snapshots go only when the caller says so. A snapshot that came from a peer is of no use before the log begins
//! behind it: if the node crashes in between, the log still goes with the snapshot before.

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
/// Of a number in a name: as many as the largest has, so that names sort as positions do.
const DIGITS: usize = 20;

/// The snapshots of one group, in a directory of their own.
///
/// Any thread may read while another one writes. The directory is not locked: whoever has the node's
/// [`super::LogStore`] open has its snapshots, too.
pub struct SnapshotStore<F: FileSystem = PrivateFiles> {
    file_system: Arc<F>,
    directory: PathBuf,
    failure: FirstFailure,
    /// Those that are durable.
    positions: Mutex<BTreeSet<LogPosition>>,
    /// Held while files change.
    changing: Mutex<()>,
}

impl SnapshotStore {
    /// Opens the directory, or makes it, and removes what was left by a write that was cut short. Files with other names
    /// are left alone.
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
        // A file that was moved into place just before the process ended may not be durable under its name yet.
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

    /// The newest snapshot that is durable.
    pub fn newest(&self) -> Option<LogPosition> {
        self.positions().last().copied()
    }

    /// The newest snapshot that a log goes on from: to start with. One that the log does not reach, or that is of another
    /// term there, came from a peer just before the node crashed, and will come again.
    pub fn newest_in(&self, log: &Log) -> Option<LogPosition> {
        self.positions().iter().rev().copied().find(|position| log.term(position.index) == Ok(position.term))
    }

    /// The bytes of a snapshot; none if there is none at this position, or not any more.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it is there and cannot be read.
    pub fn read(&self, position: LogPosition) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.path(position, SUFFIX);
        match scan::read(self.file_system.as_ref(), &path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.positions().contains(&position) => Ok(None),
            Err(source) => Err(StoreError::io("read", &path, source)),
        }
    }

    /// Makes a snapshot durable. Those before it stay until [`SnapshotStore::delete_older`].
    ///
    /// # Errors
    /// [`StoreError::DiskFull`]: nothing is left of it, and it may be tried again. [`StoreError::Failed`]: stop.
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
                    // There was not even room for its name.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(self.fail("deleted", &aside, &error)),
                }
                Err(StoreError::DiskFull { directory: self.directory.clone() })
            }
            Err(error) => Err(self.fail("written", &aside, &error)),
        }
    }

    /// Deletes all snapshots before one that is durable, once the log goes on from it.
    ///
    /// # Errors
    /// [`StoreError::Inconsistent`] if there is no such snapshot: nothing was deleted. [`StoreError::Failed`]: stop.
    pub fn delete_older(&self, position: LogPosition) -> Result<(), StoreError> {
        let _changing = self.change()?;
        let older = {
            let mut positions = self.positions();
            if !positions.contains(&position) {
                let reason = format!("snapshots before {position:?} were to be deleted, and there is none at it");
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
        // What a disk holds after a failed sync is unknown, also if it says that it is full.
        handle
            .sync()
            .inspect_err(|error| self.failure.note(format!("a sync of {} failed: {error}", aside.display())))?;
        self.file_system.rename(aside, path)?;
        sync_directory(&self.directory).map_err(|error| {
            self.failure.note(error.to_string());
            io::Error::other(error)
        })
    }

    /// Notes that the node must stop, and says so.
    fn fail(&self, what: &str, path: &Path, error: &io::Error) -> StoreError {
        self.failure.note(format!("{} cannot be {what}: {error}", path.display()));
        StoreError::Failed { reason: self.failure.reason().unwrap_or_default().into() }
    }

    /// Lets one thread at a time change files, and none after the first failure.
    fn change(&self) -> Result<MutexGuard<'_, ()>, StoreError> {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure.reason() {
            Some(reason) => Err(StoreError::Failed { reason: reason.into() }),
            None => Ok(changing),
        }
    }

    fn positions(&self) -> MutexGuard<'_, BTreeSet<LogPosition>> {
        // Nothing here panics between two changes that belong together.
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, position: LogPosition, suffix: &str) -> PathBuf {
        let LogPosition { index, term } = position;
        self.directory.join(format!("{index:0DIGITS$}-{term:0DIGITS$}{suffix}"))
    }
}

/// The position that a file is named by, if it is a snapshot's name.
fn position_in(name: &str, suffix: &str) -> Option<LogPosition> {
    let number = |text: &str| {
        let is_ours = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        is_ours.then(|| text.parse().ok()).flatten()
    };
    let (index, term) = name.strip_suffix(suffix)?.split_once('-')?;
    Some(LogPosition { index: number(index)?, term: number(term)? })
}
