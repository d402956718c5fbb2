//! The guard of plain files: in one process, among several processes, and with a process that is killed while it is admitted.
#![cfg(feature = "file")]

use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::suite::{AnyAccess, Connection, Store, reader, stale, writer};
use fencepost_fence::{Access, Error, FencingToken, Forgotten, Installed, ReadToken, Status, Token, file};
use tempfile::TempDir;

struct Files(TempDir);

impl Files {
    fn fresh() -> Files {
        let files = Files(tempfile::tempdir().expect("a temporary directory"));
        assert_eq!(file::install(files.0.path()).expect("a directory of our own"), Installed::New);
        files
    }

    fn guard(&self) -> file::Guard {
        file::Guard::open(self.0.path()).expect("it is installed")
    }

    fn path(&self, name: &str) -> PathBuf {
        path(self.0.path(), name)
    }
}

/// The file of a name. A name may contain any characters, so the file name is its bytes in hex.
fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn number(path: &Path) -> i64 {
    fs::read_to_string(path).map_or(0, |text| text.parse().expect("a number"))
}

struct Client {
    guard: file::Guard,
    directory: PathBuf,
}

impl Store for Files {
    type Connection = Client;
    const WHOLE_ACCESSES: bool = true;
    /// Each round waits for the disk three times.
    const RACING_ROUNDS: usize = 150;

    async fn connect(&self) -> Client {
        Client { guard: self.guard(), directory: self.0.path().to_owned() }
    }
}

impl Connection for Client {
    async fn claim(&mut self, name: &str, token: FencingToken) -> Result<i64, Error> {
        self.guard.admit(&Access::claim(name, token), || number(&path(&self.directory, name)))
    }

    async fn read(&mut self, name: &str, token: ReadToken) -> Result<i64, Error> {
        self.guard.admit(&Access::read(name, token), || number(&path(&self.directory, name)))
    }

    async fn write(&mut self, name: &str, token: FencingToken, number: i64) -> Result<(), Error> {
        self.guard.write(&Access::write(name, token), path(&self.directory, name), number.to_string().as_bytes())
    }

    async fn peek(&mut self, name: &str) -> i64 {
        number(&path(&self.directory, name))
    }

    async fn write_unguarded(&mut self, name: &str, number: i64) {
        let mine = self.directory.join(format!("{:?}", std::thread::current().id()));
        fs::write(&mine, number.to_string()).expect("a directory of our own");
        fs::rename(&mine, path(&self.directory, name)).expect("a directory of our own");
    }

    async fn admit(&mut self, access: &AnyAccess) -> Result<(), Error> {
        match access {
            AnyAccess::Reads(access) => self.guard.admit(access, || ()),
            AnyAccess::Claims(access) => self.guard.admit(access, || ()),
            AnyAccess::Writes(access) => self.guard.admit(access, || ()),
        }
    }

    /// Does nothing after the marks, as if it died before it wrote the file. A test below kills a real process.
    async fn write_and_crash(self, name: &str, token: FencingToken, _: i64) {
        self.guard.admit(&Access::write(name, token), || ()).expect("its token is good");
    }

    async fn forget_below(&mut self, oldest_live: Token) -> Result<Forgotten, Error> {
        self.guard.forget_below(oldest_live)
    }
}

crate::suite::suite!(Some(Files::fresh()));

#[test]
fn installing_again_changes_nothing_and_a_newer_form_is_refused() {
    let files = Files::fresh();
    let guard = files.guard();
    guard.write(&Access::write("/a/b", writer(5)), files.path("file"), b"1").expect("the first");
    assert_eq!(file::install(files.0.path()).expect("it is there"), Installed::AlreadyThere);
    let expected = Status { version: 1, base: Token(0), names: 2, writes: 1, highest: Token(5), keys: None };
    assert_eq!(guard.status().expect("it is there"), expected);
    let marks = files.0.path().join("fencepost-marks");
    fs::write(&marks, "fencepost-marks 2\nwho knows").expect("a directory of our own");
    let refused = file::install(files.0.path()).expect_err("a newer version has created it");
    assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("version 2")), "{refused}");
}

/// Lost or damaged marks must not be replaced by empty ones, which would admit every token.
#[test]
fn with_lost_or_damaged_marks_every_access_is_refused() {
    let files = Files::fresh();
    let guard = files.guard();
    let access = Access::write("wallet", writer(7));
    guard.write(&access, files.path("wallet"), b"70").expect("the first");
    let marks = files.0.path().join("fencepost-marks");
    let whole = fs::read_to_string(&marks).expect("it is there");
    for damaged in ["", "fencepost-marks 1\n", "fencepost-marks 1\n0\n7 7 0", &whole.replace("7 7", "7 x")] {
        fs::write(&marks, damaged).expect("a directory of our own");
        let refused = guard.write(&access, files.path("wallet"), b"71").expect_err("they are damaged");
        assert!(refused.to_string().contains("restore it"), "{damaged:?}: {refused}");
    }
    fs::remove_file(&marks).expect("a directory of our own");
    let refused = guard.write(&access, files.path("wallet"), b"71").expect_err("they are gone");
    assert!(matches!(&refused, Error::NotInstalled(why) if why.contains("fencepost fence init file:")), "{refused}");
    assert!(matches!(file::Guard::open(files.0.path()), Err(Error::NotInstalled(_))));
    assert_eq!(number(&files.path("wallet")), 70);
}

/// The marks are lifted and the file cannot be written: the old content stays, and the same token may try again.
#[test]
fn a_write_that_fails_after_its_marks_shuts_out_only_older_holders() {
    let files = Files::fresh();
    let guard = files.guard();
    let place = files.0.path().join("place");
    let target = place.join("wallet");
    fs::create_dir(&place).expect("a directory of our own");
    guard.write(&Access::write("wallet", writer(5)), &target, b"50").expect("the first");
    let away = files.0.path().join("away");
    fs::rename(&place, &away).expect("a directory of our own");
    let failed = guard.write(&Access::write("wallet", writer(7)), &target, b"70").expect_err("its directory is gone");
    assert!(matches!(failed, Error::Store(_)), "{failed}");
    fs::rename(&away, &place).expect("a directory of our own");
    assert_eq!(number(&target), 50, "the old content stays");
    stale(guard.write(&Access::write("wallet", writer(6)), &target, b"60"), 6, 7);
    guard.write(&Access::write("wallet", writer(7)), &target, b"70").expect("the same token tries again");
    assert_eq!(number(&target), 70);
}

#[test]
fn a_refused_access_does_no_work_and_one_that_lifts_nothing_writes_no_marks() {
    let files = Files::fresh();
    let guard = files.guard();
    let marks =
        || fs::metadata(files.0.path().join("fencepost-marks")).map(|file| std::os::unix::fs::MetadataExt::ino(&file));
    guard.admit(&Access::claim("wallet", writer(7)), || ()).expect("the first");
    let before = marks().expect("it is there");
    stale(guard.admit(&Access::claim("wallet", writer(6)), || panic!("it is refused")), 6, 7);
    guard.admit(&Access::claim("wallet", writer(7)), || ()).expect("again");
    guard.admit(&Access::read("wallet", reader(5)), || ()).expect("there was no write yet");
    assert_eq!(marks().expect("it is there"), before, "a rewrite of the file would give it a new inode");
}

#[test]
fn a_file_keeps_its_permissions_and_leaves_nothing_beside_it() {
    let files = Files::fresh();
    let target = files.path("wallet");
    fs::write(&target, "0").expect("a directory of our own");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).expect("it is ours");
    // A writer has crashed before its rename.
    fs::write(files.0.path().join("77616c6c6574.fencepost-new"), "half").expect("a directory of our own");
    files.guard().write(&Access::write("wallet", writer(5)), &target, b"50").expect("the first");
    assert_eq!(fs::metadata(&target).expect("it is there").permissions().mode() & 0o777, 0o640);
    let mut left: Vec<_> =
        fs::read_dir(files.0.path()).expect("it is there").map(|entry| entry.expect("readable").file_name()).collect();
    left.sort();
    assert_eq!(left, ["77616c6c6574", "fencepost-marks"]);
}

const DIRECTORY: &str = "FENCEPOST_TEST_DIRECTORY";
const NUMBER: &str = "FENCEPOST_TEST_NUMBER";

/// Starts this test again as a child process, which finds its part in the environment.
fn play(test: &str, directory: &Path, number: u64) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().expect("it runs"));
    child
        .args(["--exact", &format!("file::{test}"), "--nocapture"])
        .env(DIRECTORY, directory)
        .env(NUMBER, number.to_string());
    let mut child = child.stdout(Stdio::piped()).spawn().expect("it runs once already");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    (child, lines)
}

/// The part of this process, if it is a child.
fn part() -> Option<(file::Guard, PathBuf, u64)> {
    let directory = PathBuf::from(std::env::var_os(DIRECTORY)?);
    let number = std::env::var(NUMBER).expect("both are set").parse().expect("a number");
    Some((file::Guard::open(&directory).expect("it is installed"), path(&directory, "wallet"), number))
}

/// The next line that a child has printed itself, without the output of the test runner.
fn said(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = lines.map(|line| line.expect("text")).find(|line| line.contains("said "));
    line.expect("it says something").rsplit("said ").next().expect("there is a last").to_owned()
}

/// Like the race of the suite, but among processes that share nothing but the directory.
#[test]
fn racing_processes_lose_no_update() {
    const PROCESSES: u64 = 4;
    if let Some((guard, wallet, me)) = part() {
        println!("said {}", (0..100).filter(|_| update(&guard, &wallet, PROCESSES, me)).count());
        return;
    }
    let files = Files::fresh();
    let mut children: Vec<_> =
        (0..PROCESSES).map(|me| play("racing_processes_lose_no_update", files.0.path(), me)).collect();
    let admitted: Vec<i64> = children.iter_mut().map(|(_, lines)| said(lines).parse().expect("a number")).collect();
    for (mut child, lines) in children {
        lines.for_each(drop);
        assert!(child.wait().expect("it ends").success());
    }
    println!("admitted, by process: {admitted:?}");
    assert!(admitted.iter().sum::<i64>() > 0);
    assert_eq!(number(&files.path("wallet")), admitted.iter().sum::<i64>(), "each builds on the one before");
}

/// Adds one to the number. Its token is newer than all that were seen, and no other process uses it.
fn update(guard: &file::Guard, wallet: &Path, processes: u64, me: u64) -> bool {
    let highest = guard.status().expect("it is installed").highest.0;
    let token = writer((highest / processes + 1) * processes + me);
    let outcome = guard
        .admit(&Access::claim("wallet", token), || number(wallet))
        .and_then(|number| guard.write(&Access::write("wallet", token), wallet, (number + 1).to_string().as_bytes()));
    match outcome {
        Ok(()) => true,
        Err(Error::Stale(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// A process is admitted and about to write. No other access passes it. When it is killed, only its mark is left.
#[test]
fn a_process_that_is_killed_inside_leaves_its_mark_and_the_old_content() {
    if let Some((guard, _, token)) = part() {
        let forever = || {
            println!("said inside");
            loop {
                std::thread::park();
            }
        };
        return guard.admit(&Access::write("wallet", writer(token)), forever).expect("its token is good");
    }
    let files = Files::fresh();
    let guard = files.guard();
    guard.write(&Access::write("wallet", writer(5)), files.path("wallet"), b"50").expect("the first");
    let test = "a_process_that_is_killed_inside_leaves_its_mark_and_the_old_content";
    let (mut child, mut lines) = play(test, files.0.path(), 7);
    assert_eq!(said(&mut lines), "inside");
    let taken = File::open(files.0.path()).expect("it is there").try_lock();
    assert!(matches!(taken, Err(TryLockError::WouldBlock)), "all others wait for it: {taken:?}");
    child.kill().expect("it still runs");
    child.wait().expect("it was killed");
    assert_eq!(number(&files.path("wallet")), 50, "the old content stays");
    stale(guard.write(&Access::write("wallet", writer(6)), files.path("wallet"), b"60"), 6, 7);
    guard.write(&Access::write("wallet", writer(7)), files.path("wallet"), b"70").expect("its lock may still stand");
    assert_eq!(number(&files.path("wallet")), 70);
}
