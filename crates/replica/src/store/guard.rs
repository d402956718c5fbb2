//! A file system in front of the engine's that remembers the first failed sync.
//!
//! The engine unwraps the result of a sync: it panics, also while it is dropped, and two panics at once abort the process
//! before anybody can say why. So a failed sync is noted here, the engine is told that all is well, and
//! [`super::LogStore`] looks at the note before it acknowledges anything. After the note nothing more is written: what a
//! disk holds after a failed sync is unknown, and a second sync that succeeds says nothing about the first.

use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use raft_engine::env::{FileSystem, Handle, Permission, WriteExt};

/// Why the disk is not to be trusted any more, if it is not.
#[derive(Clone, Default)]
pub(super) struct FirstFailure(Arc<OnceLock<String>>);

impl FirstFailure {
    pub(super) fn note(&self, reason: String) {
        // Only the first one explains anything.
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
}

pub(super) struct GuardedHandle<F: FileSystem> {
    inner: Arc<F::Handle>,
    failure: FirstFailure,
}

pub(super) struct GuardedWriter<F: FileSystem> {
    inner: F::Writer,
    failure: FirstFailure,
}

impl<F: FileSystem> Guard<F> {
    fn handle(&self, inner: F::Handle) -> GuardedHandle<F> {
        GuardedHandle { inner: Arc::new(inner), failure: self.failure.clone() }
    }
}

impl<F: FileSystem> FileSystem for Guard<F> {
    type Handle = GuardedHandle<F>;
    type Reader = F::Reader;
    type Writer = GuardedWriter<F>;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<Self::Handle> {
        self.failure.check()?;
        self.inner.create(path).map(|inner| self.handle(inner))
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<Self::Handle> {
        self.inner.open(path, permission).map(|inner| self.handle(inner))
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
        Ok(GuardedWriter { inner, failure: self.failure.clone() })
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

impl<F: FileSystem> Write for GuardedWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.failure.check()?;
        self.inner.write(bytes)
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
        self.failure.check()?;
        self.inner.truncate(offset)
    }

    fn allocate(&mut self, offset: usize, size: usize) -> io::Result<()> {
        self.failure.check()?;
        self.inner.allocate(offset, size)
    }
}
