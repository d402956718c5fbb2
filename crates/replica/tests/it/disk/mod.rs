//! A disk that fails on purpose, under the real log engine: it crashes at a chosen step, loses unsynced data, tears a write, fails a
//! sync, or is full.
//!
//! The files are real, because the engine lists its directory by itself. The disk records what was written and synced. From that it
//! computes what a crash leaves, and writes this into the files before the store is opened again.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "these tests are about files")]
#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};

/// A directory that is deleted when the test ends.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("fencepost-{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary directory can be made");
        Directory(path)
    }

    /// A second directory with the same files.
    pub fn copy(&self) -> Directory {
        Directory::copy_of(&self.0)
    }

    /// A directory with the files of another.
    pub fn copy_of(original: &Path) -> Directory {
        let copy = Directory::new("copy");
        for (path, bytes) in files_in(original) {
            let to = copy.0.join(path);
            fs::create_dir_all(to.parent().expect("a file is in a directory")).expect("a directory can be made");
            fs::write(to, bytes).expect("a file can be written");
        }
        copy
    }

    /// All files with their bytes, by their path within the directory.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        files_in(&self.0)
    }
}

fn files_in(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory can be listed") {
            let path = entry.expect("a directory can be listed").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(root).expect("it was found there").to_path_buf();
                files.insert(name, fs::read(&path).expect("a file can be read"));
            }
        }
    }
    files
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a crash leaves of unsynced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Keeps nothing. A file that was never synced is gone.
    LosesAll,
    /// Keeps all completed writes, and nothing of the write that the crash interrupts.
    KeepsAll,
    /// Keeps all completed writes, and the first half of the write that the crash interrupts.
    Tears,
    /// Keeps all completed writes, and the write that the crash interrupts, without its last byte.
    TearsLastByte,
    /// Keeps all completed writes, and the second half of the write that the crash interrupts. The first half is zeros.
    TearsBackwards,
}

pub const CRASHES: [Crash; 5] =
    [Crash::LosesAll, Crash::KeepsAll, Crash::Tears, Crash::TearsLastByte, Crash::TearsBackwards];

#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Extend(usize),
    Truncate(usize),
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => {
                let end = offset + bytes.len();
                file.resize(file.len().max(end), 0);
                file[*offset..end].copy_from_slice(bytes);
            }
            Change::Extend(length) => file.resize(file.len().max(*length), 0),
            Change::Truncate(length) => file.truncate(*length),
        }
    }

    /// The length of a file of this length after the change.
    fn length_after(&self, length: usize) -> usize {
        match self {
            Change::Write { offset, bytes } => length.max(offset + bytes.len()),
            Change::Extend(to) => length.max(*to),
            Change::Truncate(to) => length.min(*to),
        }
    }

    fn torn(self, crash: Crash) -> Option<Change> {
        let Change::Write { offset, mut bytes } = self else { return None };
        match crash {
            Crash::LosesAll | Crash::KeepsAll => return None,
            Crash::Tears => bytes.truncate(bytes.len() / 2),
            Crash::TearsLastByte => bytes.truncate(bytes.len() - 1),
            Crash::TearsBackwards => {
                let half = bytes.len() / 2;
                bytes[..half].fill(0);
            }
        }
        Some(Change::Write { offset, bytes })
    }
}

#[derive(Default)]
struct Image {
    /// The content as of the last sync, if there was one.
    synced: Option<Vec<u8>>,
    since: Vec<Change>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<PathBuf, Image>,
    /// Changes and syncs so far.
    steps: u64,
    syncs: u64,
    crash_at: Option<u64>,
    crashed: bool,
    under_way: Option<(PathBuf, Change)>,
    fail_sync: bool,
    is_full: bool,
    /// The most bytes that all files together may have.
    capacity: Option<usize>,
}

/// The file system of a disk that fails on purpose.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub fn new() -> Arc<Disk> {
        Arc::new(Disk::default())
    }

    pub fn crashing_at(step: u64) -> Arc<Disk> {
        let disk = Disk::default();
        disk.state().crash_at = Some(step);
        Arc::new(disk)
    }

    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Sets whether syncs fail from now on.
    pub fn fail_syncs(&self, fail: bool) {
        self.state().fail_sync = fail;
    }

    /// Sets whether the disk is full from now on.
    pub fn fill(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// Limits the bytes of all files that this disk knows from now on. A new empty file always fits, as on real disks.
    pub fn limit(&self, bytes: usize) {
        self.state().capacity = Some(bytes);
    }

    /// The bytes of all files that this disk knows.
    pub fn used(&self) -> usize {
        length_of_all(&self.state())
    }

    /// Writes into the files what the crash left.
    pub fn settle(&self, crash: Crash) {
        let mut state = self.state();
        let under_way = state.under_way.take();
        for (path, image) in &state.files {
            let mut file = image.synced.clone().unwrap_or_default();
            if crash == Crash::LosesAll {
                if image.synced.is_none() {
                    let _ = fs::remove_file(path);
                    continue;
                }
            } else {
                image.since.iter().for_each(|change| change.apply(&mut file));
                if let Some((torn_path, change)) = &under_way
                    && torn_path == path
                    && let Some(torn) = change.clone().torn(crash)
                {
                    torn.apply(&mut file);
                }
            }
            fs::write(path, file).expect("a file can be written");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics while it holds the disk")
    }

    fn step(&self, change: Option<(&Path, &Change)>) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.crashed {
            return Err(io::Error::other("crashed"));
        }
        state.steps += 1;
        if state.crash_at == Some(state.steps) {
            state.crashed = true;
            state.under_way = change.map(|(path, change)| (path.to_path_buf(), change.clone()));
            return Err(io::Error::other("crashed"));
        }
        Ok(state)
    }

    fn change(&self, path: &Path, change: Change) -> io::Result<()> {
        let mut state = self.step(Some((path, &change)))?;
        // The engine recognizes a full disk by the word "nospace".
        if state.is_full && !matches!(change, Change::Truncate(_)) {
            return Err(io::Error::new(ErrorKind::StorageFull, "nospace"));
        }
        let length = length_of(path);
        let room = state.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(length_of_all(&state)));
        if change.length_after(length) > length.saturating_add(room) {
            // As on real disks, the part that fits is written.
            if let Change::Write { offset, bytes } = &change {
                let fits = (length + room).saturating_sub(*offset).min(bytes.len());
                let part = Change::Write { offset: *offset, bytes: bytes[..fits].to_vec() };
                let mut file = fs::read(path)?;
                part.apply(&mut file);
                fs::write(path, file)?;
                state.files.entry(path.to_path_buf()).or_default().since.push(part);
            }
            return Err(io::Error::new(ErrorKind::StorageFull, "nospace"));
        }
        state.files.entry(path.to_path_buf()).or_default().since.push(change);
        Ok(())
    }
}

fn length_of(path: &Path) -> usize {
    fs::metadata(path).map_or(0, |metadata| metadata.len() as usize)
}

fn length_of_all(state: &State) -> usize {
    state.files.keys().map(|path| length_of(path)).sum()
}

type RealHandle = <DefaultFileSystem as FileSystem>::Handle;
type RealFile = <DefaultFileSystem as FileSystem>::Writer;

pub struct DiskHandle {
    inner: Arc<RealHandle>,
    path: PathBuf,
    disk: Disk,
}

pub struct DiskWriter {
    inner: RealFile,
    handle: Arc<DiskHandle>,
    offset: u64,
}

impl FileSystem for Disk {
    type Handle = DiskHandle;
    type Reader = <DefaultFileSystem as FileSystem>::Reader;
    type Writer = DiskWriter;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<DiskHandle> {
        let path = path.as_ref();
        if self.step(None)?.is_full && !path.exists() {
            return Err(io::Error::new(ErrorKind::StorageFull, "nospace"));
        }
        let synced = fs::read(path).ok();
        self.state().files.entry(path.into()).or_insert_with(|| Image { synced, since: Vec::new() });
        let inner = Arc::new(DefaultFileSystem.create(path)?);
        Ok(DiskHandle { inner, path: path.into(), disk: self.clone() })
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<DiskHandle> {
        let path = path.as_ref();
        let inner = Arc::new(DefaultFileSystem.open(path, permission)?);
        let synced = fs::read(path).ok();
        self.state().files.entry(path.into()).or_insert_with(|| Image { synced, since: Vec::new() });
        Ok(DiskHandle { inner, path: path.into(), disk: self.clone() })
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.step(None)?.files.remove(path.as_ref());
        DefaultFileSystem.delete(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        let mut state = self.step(None)?;
        if let Some(image) = state.files.remove(from.as_ref()) {
            state.files.insert(to.as_ref().into(), image);
        }
        DefaultFileSystem.rename(from, to)
    }

    fn new_reader(&self, handle: Arc<DiskHandle>) -> io::Result<Self::Reader> {
        DefaultFileSystem.new_reader(handle.inner.clone())
    }

    fn new_writer(&self, handle: Arc<DiskHandle>) -> io::Result<DiskWriter> {
        Ok(DiskWriter { inner: DefaultFileSystem.new_writer(handle.inner.clone())?, handle, offset: 0 })
    }
}

impl Handle for DiskHandle {
    fn truncate(&self, offset: usize) -> io::Result<()> {
        self.disk.change(&self.path, Change::Truncate(offset))?;
        self.inner.truncate(offset)
    }

    fn file_size(&self) -> io::Result<usize> {
        self.inner.file_size()
    }

    /// Not a real sync: this disk only records it.
    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.step(None)?;
        if state.fail_sync {
            return Err(io::Error::other("the disk did not answer"));
        }
        state.syncs += 1;
        let image = state.files.entry(self.path.clone()).or_default();
        let mut file = image.synced.take().unwrap_or_default();
        image.since.drain(..).for_each(|change| change.apply(&mut file));
        image.synced = Some(file);
        Ok(())
    }
}

impl Write for DiskWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let change = Change::Write { offset: self.offset as usize, bytes: bytes.to_vec() };
        self.handle.disk.change(&self.handle.path, change)?;
        let written = self.inner.write(bytes)?;
        self.offset += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl Seek for DiskWriter {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.offset = self.inner.seek(to)?;
        Ok(self.offset)
    }
}

impl WriteExt for DiskWriter {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.handle.disk.change(&self.handle.path, Change::Truncate(offset))?;
        self.inner.truncate(offset)?;
        self.offset = offset as u64;
        Ok(())
    }

    fn allocate(&mut self, offset: usize, size: usize) -> io::Result<()> {
        self.handle.disk.change(&self.handle.path, Change::Extend(offset + size))?;
        self.inner.allocate(offset, size)
    }
}
