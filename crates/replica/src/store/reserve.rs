//! Room on the disk that is kept back for when it is full, so that locks can still be released and expire.
//!
//! It is a file of a fixed size beside the log. The first write of the log that finds no room gives all of it back to the
//! file system and is repeated beneath the engine, which never learns of it: the engine would begin new files on a full
//! disk, and forgets what it was about when it finds no room while it deletes old ones. From then on the store says that
//! it is short; whoever drives it then refuses what would make the log grow for no good reason.

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
    /// Whether the file is not there in full. Changed by one thread at a time: the one that writes the log.
    is_short: AtomicBool,
}

impl<F: FileSystem> Reserve<F> {
    /// Touches nothing yet: a directory that turns out to be somebody else's is left alone.
    pub(super) fn new(file_system: Arc<F>, path: PathBuf, bytes: u64) -> Reserve<F> {
        Reserve { file_system, path, bytes: bytes as usize, is_short: AtomicBool::new(true) }
    }

    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Acquire)
    }

    /// Allocates all of it, or nothing; whether it is there now. It need not survive a crash: the next start does the same.
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

    /// Gives the room back to the file system; `false` if there is none to give.
    pub(super) fn give_back(&self) -> bool {
        !self.is_short.swap(true, Ordering::AcqRel) && self.bytes > 0 && self.empty().is_ok()
    }

    fn allocate(&self) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let handle = Arc::new(self.file_system.create(&self.path)?);
        // A smaller reserve than at the last start.
        handle.truncate(self.bytes.min(handle.file_size()?))?;
        let mut writer = self.file_system.new_writer(handle.clone())?;
        // Also if the file is long enough: a file that was copied may be long and have no room of its own.
        writer.allocate(0, self.bytes)?;
        // The engine's file system says that all is well where the system cannot allocate.
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
            // There is not even room for its name, so it holds none.
            Err(error) if is_full(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}
