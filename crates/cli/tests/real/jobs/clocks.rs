//! Hosts whose wall clocks differ, by libfaketime: their processes get its library and see another time.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use fencepost_testbed::tool;

/// The hosts' wall clocks, by libfaketime.
pub(super) struct Clocks {
    /// The libraries to preload.
    preload: String,
    /// The test's wall clock when it began.
    began_s: i64,
}

impl Clocks {
    /// `None` if libfaketime is not installed; then the test is skipped.
    pub(super) fn prepare() -> Option<Clocks> {
        let faketime = tool("faketime", "the Debian package faketime")?;
        let output = Command::new(faketime).args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"]).output();
        let preload = String::from_utf8(output.expect("faketime is a program").stdout).expect("a path is text");
        Some(Clocks { preload: preload.trim().to_owned(), began_s: now_s() })
    }

    /// Sets the wall clock of a process and its children. Clocks that count from the start of a machine stay as they are.
    pub(super) fn set(&self, command: &mut Command, off_min: i64) {
        command.env("LD_PRELOAD", &self.preload).env("FAKETIME", format!("{off_min:+}m"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// Checks that `run` saw its host's clock: each job noted the FENCEPOST_DEADLINE that `run` computed. Returns how many did.
    pub(super) fn check(&self, noted: &Path, off_min: i64) -> usize {
        let noted = std::fs::read_to_string(noted).unwrap_or_default();
        let possible = self.began_s + 60 * off_min - 60..=now_s() + 60 * off_min + 60;
        for line in noted.lines() {
            let deadline_s = line.parse::<i64>().expect("milliseconds") / 1_000;
            assert!(possible.contains(&deadline_s), "a clock that is {off_min} minutes off shows {deadline_s}");
        }
        noted.lines().count()
    }
}

impl Drop for Clocks {
    /// Removes what libfaketime shares between a process and its children. A killed process leaves it behind.
    fn drop(&mut self) {
        for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let process = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
            let is_gone = process.is_some_and(|process| !Path::new("/proc").join(process).exists());
            let created_s = file.metadata().map_or(0, |metadata| metadata.mtime());
            if is_gone && created_s >= self.began_s {
                // Another test may remove it at the same time.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970").as_secs() as i64
}
