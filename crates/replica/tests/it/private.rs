//! Only a node's own user can read its directory: what the node creates, what it closes, and what it refuses.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "these tests are about files")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::disk::Directory;
use fencepost_core::LogPosition;
use fencepost_replica::Log;
use fencepost_replica::store::{Identity, LogStore, SnapshotStore, Start, StoreError, close_to_others};

const US: Identity = Identity { cluster: 0xC, node: 1 };
const GROUP: u64 = 1;

/// A new node's directory with all the files of a node.
fn begun() -> (Directory, PathBuf) {
    let temporary = Directory::new("private");
    let directory = temporary.0.join("machine/data");
    let (store, _) = LogStore::open(&directory, US, GROUP, Start::New(&Log::new(&[1]))).expect("a new directory");
    let snapshots = SnapshotStore::open(&directory.join("snapshots")).expect("a new directory");
    snapshots.write(LogPosition { index: 1, term: 1 }, b"a snapshot").expect("there is room");
    drop(store);
    (temporary, directory)
}

/// A directory and everything below it, with the modes.
fn modes(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = vec![(directory.to_owned(), mode(directory))];
    for entry in fs::read_dir(directory).expect("it is ours") {
        let path = entry.expect("it is ours").path();
        if path.is_dir() {
            found.extend(modes(&path));
        } else {
            found.push((path.clone(), mode(&path)));
        }
    }
    found
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// Sets the modes that an old version left, which did not set them itself.
fn open_to_readers(directory: &Path) {
    for (path, _) in modes(directory) {
        set_mode(&path, if path.is_dir() { 0o755 } else { 0o644 });
    }
}

fn assert_private(directory: &Path) {
    let found = modes(directory);
    assert!(found.len() >= 9, "{found:?}");
    for (path, mode) in found {
        assert_eq!(mode, if path.is_dir() { 0o700 } else { 0o600 }, "{}", path.display());
    }
}

#[test]
fn only_the_nodes_own_user_can_read_what_it_creates() {
    let (temporary, directory) = begun();
    assert_private(&directory);
    assert_eq!(mode(&temporary.0.join("machine")), 0o700, "a missing parent directory");
    assert_eq!(close_to_others(&directory).expect("it is private already"), Vec::<PathBuf>::new());
}

#[test]
fn what_others_could_read_is_closed_and_the_node_starts() {
    let (_temporary, directory) = begun();
    open_to_readers(&directory);
    // A file that is not the node's keeps its mode. Only the directory above it is closed.
    let other = directory.join("notes");
    fs::write(&other, "of the operator").expect("it is ours");
    set_mode(&other, 0o644);
    let closed = close_to_others(&directory).expect("others could only read");
    assert!(closed.contains(&directory) && closed.contains(&directory.join("IDENTITY")), "{closed:?}");
    assert_eq!(mode(&other), 0o644);
    fs::remove_file(&other).expect("it is ours");
    assert_private(&directory);
    LogStore::open(&directory, US, GROUP, Start::Again).expect("the same log");
    assert_private(&directory);
}

#[test]
fn what_others_could_write_to_is_refused_and_not_changed() {
    for (path, mode_of_it) in
        [("", 0o770), ("", 0o1777), ("log", 0o702), ("IDENTITY", 0o660), ("snapshots", 0o777), ("log/LOCK", 0o606)]
    {
        let (_temporary, directory) = begun();
        open_to_readers(&directory);
        let path = if path.is_empty() { directory.clone() } else { directory.join(path) };
        set_mode(&path, mode_of_it);
        let before = modes(&directory);
        let refused = close_to_others(&directory).expect_err("others could write");
        assert!(matches!(&refused, StoreError::OpenToOthers { path: refused, .. } if *refused == path), "{refused}");
        assert!(refused.to_string().contains("chmod -R go= "), "{refused}");
        assert_eq!(modes(&directory), before);
    }
}

/// The directory may be another program's, named by mistake. Closing it would break that program.
#[test]
fn a_directory_that_may_be_another_programs_is_refused_and_an_empty_one_is_closed() {
    let temporary = Directory::new("private");
    let directory = temporary.0.join("data");
    assert_eq!(close_to_others(&directory).expect("it is not there"), Vec::<PathBuf>::new());
    fs::create_dir(&directory).expect("it is ours");
    set_mode(&directory, 0o755);
    assert_eq!(close_to_others(&directory).expect("it is empty"), std::slice::from_ref(&directory));
    assert_eq!(mode(&directory), 0o700);
    // The root of a new volume, as some systems create it.
    fs::create_dir(directory.join("lost+found")).expect("it is ours");
    set_mode(&directory, 0o1777);
    assert_eq!(close_to_others(&directory).expect("nothing is in it"), std::slice::from_ref(&directory));
    assert_eq!(mode(&directory), 0o1700);
    set_mode(&directory, 0o755);
    fs::write(directory.join("passwd"), "of another program").expect("it is ours");
    let refused = close_to_others(&directory).expect_err("something else is in it");
    assert!(refused.to_string().contains("it contains something that is not a node's"), "{refused}");
    assert_eq!(mode(&directory), 0o755);
}
