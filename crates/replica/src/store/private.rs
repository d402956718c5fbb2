//! Only the node's own user may read its files: directories have mode 0700, files 0600.
//!
//! The log engine creates files with mode 0644. A narrower umask would apply to the whole process, and would race with other
//! threads that create files. So [`PrivateFiles`] creates each file itself before the engine opens it: no file is ever open to
//! other users, not even for a moment.
//!
//! [`close_to_others`] checks existing files. It closes files that others could only read, and an empty directory. It refuses
//! files that others could write to: they may have been changed, and closing them would hide that.

use std::fs::{DirBuilder, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raft_engine::env::{DefaultFileSystem, FileSystem, Permission};

use super::StoreError;

const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;
/// The bits of a mode for users other than the owner.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// The files directly in a node's directory.
const FILES: [&str; 3] = ["IDENTITY", "MARK", "RESERVE"];
/// The directories in a node's directory. All files in them belong to the node.
const DIRECTORIES: [&str; 2] = ["log", "snapshots"];

/// The operating system's files, created so that no other user can read them.
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

/// Opens a file for writing. A new file gets mode 0600.
pub(super) fn create_file(path: &Path) -> io::Result<std::fs::File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(path)
}

/// Creates a directory and its missing parents, with mode 0700.
pub(super) fn create_directory(path: &Path) -> Result<(), StoreError> {
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path);
    made.map_err(|source| StoreError::io("create", path, source))
}

/// Makes sure that no other user can read a node's directory, and returns the paths that it has closed. Does nothing if the
/// directory does not exist: the node creates it with the right mode.
///
/// # Errors
/// [`StoreError::OpenToOthers`] if other users can write to it, or if they can read it and it may belong to another program.
/// The message says what to do. Then nothing was changed.
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
    // An empty directory, such as the root of a new volume, holds nothing that other users could have changed or could need.
    let is_empty = list(directory)?.iter().all(|path| path.ends_with("lost+found"));
    let refused = |(path, about): &(PathBuf, Metadata), reason| {
        Err(StoreError::OpenToOthers { path: path.clone(), mode: about.permissions().mode() & 0o7777, reason })
    };
    if let Some(found) = open.iter().find(|(_, about)| about.permissions().mode() & OTHERS_WRITE != 0)
        && !is_empty
    {
        return refused(found, "other users can write to it, so its content may not be this node's");
    }
    // If this is another program's directory, named by mistake, its users must not be locked out.
    if let Some(found) = open.first()
        && !is_ours
        && !is_empty
    {
        return refused(found, "other users can read it, and it contains something that is not a node's");
    }
    for (path, about) in &open {
        let closed = Permissions::from_mode(about.permissions().mode() & !OTHERS);
        std::fs::set_permissions(path, closed)
            .map_err(|source| StoreError::io("remove other users' rights from", path, source))?;
    }
    Ok(open.into_iter().map(|(path, _)| path).collect())
}

/// The metadata of a path. `None` if nothing is there.
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
