//! Room on the disk that is kept back for a full disk, so that locks can still be released and expire.
//!
//! The reserve is a file of a fixed size beside the log. When a write of the log finds no room, the guard gives the whole reserve back
//! to the file system and repeats the write. The engine never notices. It must not: on a full disk it would begin new files, and
//! while it deletes old files it would forget which logs were dropped. From then on the store is short, and the replica refuses
//! operations that make the state larger. This file decides nothing about operations.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raft_engine::env::{FileSystem, Handle, WriteExt};

use crate::bounds::RESERVE_PIECE_BYTES;

pub(super) struct Reserve<F: FileSystem> {
    file_system: Arc<F>,
    path: PathBuf,
    bytes: usize,
    /// Whether the reserve is missing or incomplete. Changed only under the lock of the log store.
    is_short: AtomicBool,
}

impl<F: FileSystem> Reserve<F> {
    /// Creates no file yet: the directory may turn out to be another node's.
    pub(super) fn new(file_system: Arc<F>, path: PathBuf, bytes: u64) -> Reserve<F> {
        Reserve { file_system, path, bytes: bytes as usize, is_short: AtomicBool::new(true) }
    }

    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Acquire)
    }

    /// Allocates all of it, or nothing. Returns whether it is complete. It need not survive a crash: the next start allocates it again.
    pub(super) fn fill(&self) -> io::Result<bool> {
        if !self.is_short() {
            return Ok(true);
        }
        match self.allocate() {
            Ok(()) => self.is_short.store(false, Ordering::Release),
            Err(error) => {
                self.empty()?;
                if !is_full(&error) {
                    return Err(error);
                }
            }
        }
        Ok(!self.is_short())
    }

    /// Gives the room back to the file system. `false` if there is none to give.
    pub(super) fn give_back(&self) -> bool {
        !self.is_short.swap(true, Ordering::AcqRel) && self.bytes > 0 && self.empty().is_ok()
    }

    fn allocate(&self) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let handle = Arc::new(self.file_system.create(&self.path)?);
        // Shortens the file if the reserve was larger at the last start.
        handle.truncate(self.bytes.min(handle.file_size()?))?;
        let mut writer = self.file_system.new_writer(handle.clone())?;
        // Even if the file is long enough: a copied file may be sparse.
        writer.allocate(0, self.bytes)?;
        // Where the system cannot allocate, the engine's file system reports success without doing it.
        if handle.file_size()? < self.bytes {
            let zeros = vec![0; RESERVE_PIECE_BYTES.min(self.bytes)];
            for begin in (0..self.bytes).step_by(zeros.len()) {
                writer.write_all(&zeros[..zeros.len().min(self.bytes - begin)])?;
            }
        }
        Ok(())
    }

    fn empty(&self) -> io::Result<()> {
        match self.file_system.create(&self.path) {
            Ok(handle) => handle.truncate(0),
            // The file does not exist, and there is not even room for its name.
            Err(error) if is_full(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}
