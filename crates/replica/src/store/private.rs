//! What a node keeps on disk is for its own user alone: directories have mode 0700, files 0600.
//!
//! The log engine makes its files with mode 0644. A narrower umask would be the process's, and so the whole program's, and it
//! would race with what other threads make meanwhile. So [`PrivateFiles`] makes each file itself, before the engine opens
//! it: no file is ever open to others, not even for a moment.
//!
//! [`close_to_others`] looks at what is there already. What others could only read is closed, and so is an empty directory. What
//! others could write to is refused: it may not be this node's work any more, and closing it would hide that.

use std::fs::{DirBuilder, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raft_engine::env::{DefaultFileSystem, FileSystem, Permission};

use super::StoreError;

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// What a mode says of users other than the owner.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// The files that stand in a node's directory itself.
const FILES: [&str; 3] = ["IDENTITY", "MARK", "RESERVE"];
/// The directories in it, whose files are all the node's.
const DIRECTORIES: [&str; 2] = ["log", "snapshots"];

/// The operating system's files, made so that no other user can read them.
pub struct PrivateFiles;

impl FileSystem for PrivateFiles {
    type Handle = <DefaultFileSystem as FileSystem>::Handle;
    type Reader = <DefaultFileSystem as FileSystem>::Reader;
    type Writer = <DefaultFileSystem as FileSystem>::Writer;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<Self::Handle> {
        create_file(path.as_ref())?;
        DefaultFileSystem.create(path)
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<Self::Handle> {
        DefaultFileSystem.open(path, permission)
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        DefaultFileSystem.delete(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        DefaultFileSystem.rename(from, to)
    }

    fn new_reader(&self, handle: Arc<Self::Handle>) -> io::Result<Self::Reader> {
        DefaultFileSystem.new_reader(handle)
    }

    fn new_writer(&self, handle: Arc<Self::Handle>) -> io::Result<Self::Writer> {
        DefaultFileSystem.new_writer(handle)
    }
}

/// Opens a file to write to, made for this user alone if it is not there.
pub(super) fn create_file(path: &Path) -> io::Result<std::fs::File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(path)
}

/// Makes a directory, and those above it that are missing, for this user alone.
pub(super) fn create_directory(path: &Path) -> Result<(), StoreError> {
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path);
    made.map_err(|source| StoreError::io("create", path, source))
}

/// Sees to it that no other user reads a node's directory, and gives back what it has closed. A directory that is not there is
/// made private when the node starts.
///
/// # Errors
/// [`StoreError::OpenToOthers`] if others could write to it, or if they can read it and it is not certain to be a node's: the
/// message says what to do. Then nothing was changed.
pub fn close_to_others(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let Some(about) = look(directory)? else { return Ok(Vec::new()) };
    let mut open: Vec<(PathBuf, Metadata)> = vec![(directory.into(), about)];
    for name in FILES {
        let path = directory.join(name);
        open.extend(look(&path)?.map(|about| (path, about)));
    }
    let is_ours = open.len() > 1;
    for name in DIRECTORIES {
        let path = directory.join(name);
        let Some(about) = look(&path)? else { continue };
        for file in list(&path)? {
            open.extend(look(&file)?.filter(Metadata::is_file).map(|about| (file, about)));
        }
        open.push((path, about));
    }
    open.retain(|(_, about)| about.permissions().mode() & OTHERS != 0);
    // In an empty directory there is nothing that others could have changed or could need: the root of a new volume, say.
    let is_empty = list(directory)?.iter().all(|path| path.ends_with("lost+found"));
    let refused = |(path, about): &(PathBuf, Metadata), reason| {
        Err(StoreError::OpenToOthers { path: path.clone(), mode: about.permissions().mode() & 0o7777, reason })
    };
    if let Some(found) = open.iter().find(|(_, about)| about.permissions().mode() & OTHERS_WRITE != 0)
        && !is_empty
    {
        return refused(found, "other users can write to it, so what is in it may not be this node's work");
    }
    // The directory of another program, named by mistake, must not be closed to its users.
    if let Some(found) = open.first()
        && !is_ours
        && !is_empty
    {
        return refused(found, "other users can read it, and there is something in it that is not a node's");
    }
    for (path, about) in &open {
        let closed = Permissions::from_mode(about.permissions().mode() & !OTHERS);
        std::fs::set_permissions(path, closed)
            .map_err(|source| StoreError::io("take others' rights from", path, source))?;
    }
    Ok(open.into_iter().map(|(path, _)| path).collect())
}

/// What the system says of a path; none if nothing is there.
fn look(path: &Path) -> Result<Option<Metadata>, StoreError> {
    match std::fs::metadata(path) {
        Ok(about) => Ok(Some(about)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::io("look at", path, source)),
    }
}

fn list(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = std::fs::read_dir(directory).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    entries.map_err(|source| StoreError::io("list", directory, source))
}
