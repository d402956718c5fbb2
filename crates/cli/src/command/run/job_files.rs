//! What the command of `run --once` gets: files for the last checkpoint and the result, and the socket for `fencepost checkpoint`.
//!
//! They are in a private directory, which is gone when this process ends. What the command does to them cannot block this process: it may
//! delete a file, replace it by a pipe, or fill it.

use std::ffi::OsString;
use std::fs::{OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fencepost::JobKey;
use fencepost_core::bounds::JOB_BYTES_MAX;
use nix::fcntl::OFlag;
use tokio::net::UnixListener;

use crate::failure::{Failure, Result};
use crate::output;

/// The path of the socket.
pub(crate) const SOCKET: &str = "FENCEPOST_CHECKPOINT_SOCKET";

/// Every variable that only the command of a job gets.
pub(crate) const VARIABLES: [&str; 5] =
    ["FENCEPOST_JOB_KEY", "FENCEPOST_ATTEMPT", "FENCEPOST_LAST_CHECKPOINT", "FENCEPOST_RESULT", SOCKET];

/// The path of a socket has at most 107 bytes, and a macOS path four fewer.
const SOCKET_PATH_MAX: usize = 103;

pub(super) struct JobFiles {
    /// Removed when it is dropped.
    directory: tempfile::TempDir,
    listener: UnixListener,
}

impl JobFiles {
    /// # Errors
    /// The directory for temporary files cannot be written.
    pub(super) fn create(last_checkpoint: impl AsRef<[u8]>) -> Result<JobFiles> {
        let place = std::env::temp_dir();
        JobFiles::in_directory(&place, last_checkpoint.as_ref()).map_err(|error| {
            let shown = place.display();
            Failure::failed(format!(
                "cannot write the files of the job in {shown}: {error}; free disk space, or set TMPDIR to a directory that is yours"
            ))
        })
    }

    fn in_directory(place: &Path, last_checkpoint: &[u8]) -> std::io::Result<JobFiles> {
        let private = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix("fencepost-job-").permissions(Permissions::from_mode(0o700));
            builder
        };
        let mut directory = private().tempdir_in(place)?;
        if directory.path().join("checkpoint").as_os_str().len() > SOCKET_PATH_MAX {
            directory = private().tempdir_in("/tmp")?;
        }
        let create =
            |name| OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.path().join(name));
        create("last-checkpoint")?.write_all(last_checkpoint)?;
        create("result")?;
        let listener = UnixListener::bind(directory.path().join("checkpoint"))?;
        Ok(JobFiles { directory, listener })
    }

    pub(super) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The variables of the command, in the order of [`VARIABLES`].
    pub(super) fn variables(&self, key: &JobKey, attempt: u64) -> Vec<(&'static str, OsString)> {
        let values: [OsString; 5] = [
            key.as_str().into(),
            attempt.to_string().into(),
            self.path("last-checkpoint").into(),
            self.path("result").into(),
            self.path("checkpoint").into(),
        ];
        VARIABLES.into_iter().zip(values).collect()
    }

    /// What the command wrote as its result. The work is done, so a result that cannot be kept is only a warning.
    pub(super) fn result(&self) -> Vec<u8> {
        let path = self.path("result");
        match read(&path) {
            Ok(result) if result.len() > JOB_BYTES_MAX => {
                output::say(&format!(
                    "fencepost: the result is cut: it has more than {JOB_BYTES_MAX} bytes. Store it elsewhere, and write where to \
                     FENCEPOST_RESULT"
                ));
                cut(result)
            }
            Ok(result) => result,
            Err(error) => {
                output::say(&format!(
                    "fencepost: the job is completed without a result: FENCEPOST_RESULT cannot be read: {error}"
                ));
                Vec::new()
            }
        }
    }
}

/// The first bytes of a file, one more than a result may have.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    // Opening a pipe would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a file any more"));
    }
    let mut bytes = Vec::new();
    file.take(JOB_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The first bytes, as many as a result may have. Text is cut between characters, so that it stays text.
fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(JOB_BYTES_MAX);
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_result_is_cut_between_characters_if_it_is_text() {
        let text = "x".repeat(JOB_BYTES_MAX - 1) + "é";
        assert_eq!(cut(text.clone().into_bytes()), &text.as_bytes()[..JOB_BYTES_MAX - 1]);
        let bytes = vec![0xff; JOB_BYTES_MAX + 1];
        assert_eq!(cut(bytes.clone()), &bytes[1..]);
    }

    #[tokio::test]
    async fn whatever_the_command_left_is_read_without_waiting() {
        let files = JobFiles::create("where it was").unwrap();
        assert_eq!(std::fs::read(files.path("last-checkpoint")).unwrap(), b"where it was");
        assert_eq!(files.result(), b"");
        std::fs::write(files.path("result"), "done").unwrap();
        assert_eq!(files.result(), b"done");
        std::fs::remove_file(files.path("result")).unwrap();
        assert_eq!(files.result(), b"");
        nix::unistd::mkfifo(&files.path("result"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(files.result(), b"");
        let mode = std::fs::metadata(files.directory.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let gone = files.directory.path().to_owned();
        drop(files);
        assert!(!gone.exists());
    }

    #[tokio::test]
    async fn a_long_path_for_temporary_files_is_no_obstacle() {
        let place = tempfile::tempdir().unwrap();
        let long = place.path().join("l".repeat(100));
        std::fs::create_dir(&long).unwrap();
        JobFiles::in_directory(&long, b"").unwrap();
    }
}
