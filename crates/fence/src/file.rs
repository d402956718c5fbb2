//! Files on one host: the marks live in one file of a directory, and an admitted access works under a lock on that directory.
//!
//! A file system has no transactions. The lock replaces one: no other access is admitted during the check, the change of the
//! marks and the work. The marks are made durable first. A process that dies between the marks and its work leaves the old
//! content under a lifted mark. That mark shuts out older holders only.
//!
//! The lock is on the directory itself, because a lock file can be deleted while it is held. The kernel releases the lock when its
//! process ends. A process that is paused inside keeps all others waiting, and none can pass it: do the slow part of the work
//! before. Do not use this on a network file system: there, such a lock is refused, or holds for one host only.
//!
//! Every access that lifts a mark rewrites the whole file. So forget the marks of names that are no longer used.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fencepost_core::{Name, Token};

use crate::access::{Access, Writes};
use crate::error::Error;
use crate::rules::{MarkTable, Marks, Use};
use crate::upkeep::{Forgotten, Installed, SCHEMA_VERSION, Status};

const MARKS: &str = "fencepost-marks";

/// Creates the file of the marks, `fencepost-marks`, in a directory, and the directory if it is missing.
///
/// # Errors
/// [`Error::NotInstalled`] if a newer version has created the file.
pub fn install(directory: impl Into<PathBuf>) -> Result<Installed, Error> {
    let directory = directory.into();
    fs::create_dir_all(&directory).map_err(Error::store)?;
    let guard = Guard { directory };
    let _lock = guard.lock()?;
    if guard.directory.join(MARKS).exists() {
        guard.load()?;
        return Ok(Installed::AlreadyThere);
    }
    guard.store(&Kept::default())?;
    Ok(Installed::New)
}

/// A guard whose marks are in one directory. The caller decides which name stands for which files.
///
/// All methods block. In asynchronous code, call them where blocking is allowed.
///
/// ```
/// # use fencepost_fence::{Access, FencingToken, file};
/// # let directory = tempfile::tempdir().unwrap();
/// # let (marks, report) = (directory.path().join("marks"), directory.path().join("report.txt"));
/// # let token: FencingToken = "7".parse().unwrap();
/// # file::install(&marks)?;
/// let guard = file::Guard::open(&marks)?;
/// let before = guard.admit(&Access::claim("report", token), || std::fs::read(&report).ok())?;
/// assert_eq!(before, None);
/// guard.write(&Access::write("report", token), &report, b"all is well")?;
/// # Ok::<(), fencepost_fence::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Guard {
    directory: PathBuf,
}

impl Guard {
    /// The guard with the marks of this directory.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] without [`install`]. Missing marks are not created here: empty marks would admit every token.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Guard, Error> {
        let guard = Guard { directory: directory.into() };
        guard.load()?;
        Ok(guard)
    }

    /// Admits an access and runs the work. No other access is admitted meanwhile. The work may read or write any files.
    ///
    /// The marks stay lifted if the work fails: the same token may try again.
    ///
    /// # Errors
    /// [`Error::Stale`] if the marks have seen a newer token; then the work does not run.
    // Rule: same-transaction
    pub fn admit<Kind, Done>(&self, access: &Access<Kind>, work: impl FnOnce() -> Done) -> Result<Done, Error> {
        let shown = access.shown()?;
        let _lock = self.lock()?;
        let mut kept = self.load()?;
        let before = kept.clone();
        kept.table.admit(shown)?;
        for one in shown.iter().filter(|one| one.used_to == Use::Write) {
            *kept.writes.entry(one.name.clone()).or_default() += 1;
        }
        if kept != before {
            self.store(&kept)?;
        }
        Ok(work())
    }

    /// Replaces the content of a file as a whole, durably: a crash leaves the old content or the new.
    ///
    /// # Errors
    /// As [`Guard::admit`]. After [`Error::Store`] the same token may write again.
    // Rule: same-transaction
    pub fn write(&self, access: &Access<Writes>, path: impl AsRef<Path>, content: &[u8]) -> Result<(), Error> {
        self.admit(access, || replace(path.as_ref(), content))?.map_err(Error::store)
    }

    /// The state of the marks.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] if they are missing.
    pub fn status(&self) -> Result<Status, Error> {
        let Kept { table, writes } = self.load()?;
        let highest = table.iter().map(|(_, marks)| marks.write_floor.max(marks.write_floor_below)).max();
        Ok(Status {
            version: SCHEMA_VERSION,
            base: table.base(),
            names: table.iter().count() as u64,
            writes: writes.values().sum(),
            highest: highest.unwrap_or_default().max(table.base()),
            keys: None,
        })
    }

    /// Forgets every mark that is not above the oldest living token, and raises the base floor to that token.
    ///
    /// # Errors
    /// As [`Guard::status`].
    // Rule: fence-gc
    pub fn forget_below(&self, oldest_live: Token) -> Result<Forgotten, Error> {
        let _lock = self.lock()?;
        let mut kept = self.load()?;
        let names = kept.table.forget_below(oldest_live) as u64;
        self.store(&kept)?;
        Ok(Forgotten { names, base: kept.table.base() })
    }

    /// Waits for the lock. Each call opens the directory again: threads that shared one handle would share its lock.
    fn lock(&self) -> Result<File, Error> {
        let directory = File::open(&self.directory).map_err(|error| self.not_installed(error))?;
        directory.lock().map_err(Error::store)?;
        Ok(directory)
    }

    fn load(&self) -> Result<Kept, Error> {
        let text = fs::read_to_string(self.directory.join(MARKS)).map_err(|error| self.not_installed(error))?;
        Kept::parse(&text)
    }

    fn store(&self, kept: &Kept) -> Result<(), Error> {
        replace(&self.directory.join(MARKS), kept.text().as_bytes()).map_err(Error::store)
    }

    fn not_installed(&self, error: io::Error) -> Error {
        let directory = self.directory.display();
        let why = || {
            format!(
                "no marks in {directory}: if none have ever been there, run `fencepost fence init file:{directory}`"
            )
        };
        if error.kind() == ErrorKind::NotFound { Error::NotInstalled(why()) } else { Error::store(error) }
    }
}

/// The content of the file of the marks: a line with the version, one with the base floor, and one for each name.
#[derive(Clone, Default, PartialEq)]
struct Kept {
    table: MarkTable,
    /// How often each name was written. Kept only for names that have marks.
    writes: BTreeMap<Name, u64>,
}

impl Kept {
    fn text(&self) -> String {
        let mut text = format!("{MARKS} {SCHEMA_VERSION}\n{}\n", self.table.base().0);
        for (name, marks) in self.table.iter() {
            let Marks { write_floor, read_floor, write_floor_below, read_floor_below } = marks;
            let writes = self.writes.get(name).copied().unwrap_or_default();
            let numbers = [write_floor.0, read_floor.0, write_floor_below.0, read_floor_below.0, writes];
            text.extend(numbers.map(|number| format!("{number} ")));
            // The name comes last: it may contain spaces, but no line breaks.
            text += name.as_str();
            text.push('\n');
        }
        text
    }

    fn parse(text: &str) -> Result<Kept, Error> {
        let mut lines = text.lines();
        let version = lines.next().and_then(|first| first.strip_prefix(MARKS)).map(str::trim);
        let damaged = || Error::store(format!("the file {MARKS} is damaged: restore it, and do not create a new one"));
        match version {
            Some(version) if version == SCHEMA_VERSION.to_string() => {}
            Some(version) => {
                let why = format!(
                    "the guard's marks have format version {version}, and this release knows {SCHEMA_VERSION}: use a newer \
                     release of Fencepost"
                );
                return Err(Error::NotInstalled(why));
            }
            None => return Err(damaged()),
        }
        let base = lines.next().and_then(|line| line.parse().ok()).ok_or_else(damaged)?;
        let mut kept = Kept { table: MarkTable::with_base(Token(base)), writes: BTreeMap::new() };
        for line in lines {
            let (name, marks, writes) = line_of_name(line).ok_or_else(damaged)?;
            kept.table.restore(name.clone(), marks);
            if writes > 0 {
                kept.writes.insert(name, writes);
            }
        }
        Ok(kept)
    }
}

fn line_of_name(line: &str) -> Option<(Name, Marks, u64)> {
    let mut words = line.splitn(6, ' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (write_floor, read_floor) = (Token(number()?), Token(number()?));
    let (write_floor_below, read_floor_below) = (Token(number()?), Token(number()?));
    let writes = number()?;
    let name = Name::new(words.next()?).ok()?;
    Some((name, Marks { write_floor, read_floor, write_floor_below, read_floor_below }, writes))
}

/// Replaces or creates a file: as a whole, durably, with the permissions that the old file had.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the path names no file"))?;
    let mut beside = name.to_owned();
    beside.push(".fencepost-new");
    let beside = directory.join(beside);
    let mode = match fs::metadata(path) {
        Ok(there) => Some(there.permissions().mode()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        // Removed: the temporary file of a writer that crashed. Or there was none.
        _ => {}
    }
    // The new file is never readable for more users than the old one, not even for a moment.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode.unwrap_or(0o666)).open(&beside)?;
    if let Some(mode) = mode {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(directory)?.sync_all()
}
