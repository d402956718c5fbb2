//! A file system between the engine and the disk. It remembers the first failed sync, and handles a full disk.
//!
//! The engine unwraps the result of a sync. It panics, even while it is dropped, and two panics at once abort the process before it can
//! log the reason. So the guard notes a failed sync and reports success to the engine. [`super::LogStore`] checks the note before
//! it acknowledges anything. After the note nothing more is written: what a disk holds after a failed sync is unknown, and a second
//! sync that succeeds proves nothing about the first.
//!
//! On a full disk the guard gives the [`Reserve`] back and repeats the write. If that does not help, it deletes a file that the engine
//! has just created. The engine would leave that file without its header and continue in the previous file. After a crash, the torn
//! tail of the previous file would no longer be at the end of the log, and the scan would call it damage.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use raft_engine::env::{FileSystem, Handle, Permission, WriteExt};

use super::reserve::{Reserve, is_full};
use super::sync_directory;

/// The first failure of the disk, if there was one. After it the disk is not reliable.
#[derive(Clone, Default)]
pub(super) struct FirstFailure(Arc<OnceLock<String>>);

impl FirstFailure {
    pub(super) fn note(&self, reason: String) {
        // Later failures follow from the first one.
        let _ = self.0.set(reason);
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    fn check(&self) -> io::Result<()> {
        match self.reason() {
            Some(reason) => Err(io::Error::other(reason.to_owned())),
            None => Ok(()),
        }
    }
}

pub(super) struct Guard<F: FileSystem> {
    pub(super) inner: Arc<F>,
    pub(super) failure: FirstFailure,
    pub(super) reserve: Arc<Reserve<F>>,
}

pub(super) struct GuardedHandle<F: FileSystem> {
    inner: Arc<F::Handle>,
    path: PathBuf,
    /// Whether the file was just created and is still empty.
    is_new: AtomicBool,
    failure: FirstFailure,
}

pub(super) struct GuardedWriter<F: FileSystem> {
    inner: F::Writer,
    file: Arc<GuardedHandle<F>>,
    file_system: Arc<F>,
    reserve: Arc<Reserve<F>>,
}

impl<F: FileSystem> Guard<F> {
    fn handle(&self, inner: F::Handle, path: &Path, is_new: bool) -> GuardedHandle<F> {
        let (inner, is_new) = (Arc::new(inner), AtomicBool::new(is_new));
        GuardedHandle { inner, path: path.into(), is_new, failure: self.failure.clone() }
    }
}

/// Makes an attempt, and one more if the disk was full and the reserve was given back.
fn with_reserve<F: FileSystem, T>(reserve: &Reserve<F>, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match attempt() {
        Err(error) if is_full(&error) && reserve.give_back() => attempt(),
        answer => answer,
    }
}

impl<F: FileSystem> FileSystem for Guard<F> {
    type Handle = GuardedHandle<F>;
    type Reader = F::Reader;
    type Writer = GuardedWriter<F>;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<Self::Handle> {
        self.failure.check()?;
        let inner = with_reserve(&self.reserve, || self.inner.create(&path))?;
        let is_new = inner.file_size()? == 0;
        Ok(self.handle(inner, path.as_ref(), is_new))
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<Self::Handle> {
        let inner = self.inner.open(&path, permission)?;
        Ok(self.handle(inner, path.as_ref(), false))
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.failure.check()?;
        self.inner.delete(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        self.failure.check()?;
        self.inner.rename(from, to)
    }

    fn new_reader(&self, handle: Arc<Self::Handle>) -> io::Result<Self::Reader> {
        self.inner.new_reader(handle.inner.clone())
    }

    fn new_writer(&self, handle: Arc<Self::Handle>) -> io::Result<Self::Writer> {
        let inner = self.inner.new_writer(handle.inner.clone())?;
        Ok(GuardedWriter { inner, file: handle, file_system: self.inner.clone(), reserve: self.reserve.clone() })
    }
}

impl<F: FileSystem> Handle for GuardedHandle<F> {
    fn truncate(&self, offset: usize) -> io::Result<()> {
        self.failure.check()?;
        self.inner.truncate(offset)
    }

    fn file_size(&self) -> io::Result<usize> {
        self.inner.file_size()
    }

    fn sync(&self) -> io::Result<()> {
        if self.failure.reason().is_none()
            && let Err(error) = self.inner.sync()
        {
            self.failure.note(format!("a sync failed: {error}"));
        }
        Ok(())
    }
}

impl<F: FileSystem> GuardedWriter<F> {
    fn delete_new_file(&self) -> io::Result<()> {
        let path = &self.file.path;
        self.file_system.delete(path)?;
        // Synced before the previous file grows. Otherwise a crash could bring this file back.
        if let Some(Err(error)) = path.parent().map(sync_directory) {
            self.file.failure.note(error.to_string());
        }
        self.file.failure.check()
    }
}

impl<F: FileSystem> Write for GuardedWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.failure.check()?;
        let written = with_reserve(&self.reserve, || self.inner.write(bytes));
        let was_new = self.file.is_new.swap(false, Ordering::Relaxed);
        if was_new && written.as_ref().is_err_and(is_full) {
            self.delete_new_file()?;
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<F: FileSystem> Seek for GuardedWriter<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

impl<F: FileSystem> WriteExt for GuardedWriter<F> {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.file.failure.check()?;
        self.inner.truncate(offset)
    }

    fn allocate(&mut self, offset: usize, size: usize) -> io::Result<()> {
        self.file.failure.check()?;
        // Not worth the reserve: the engine allocates ahead, and works without if it cannot.
        self.inner.allocate(offset, size)
    }
}
