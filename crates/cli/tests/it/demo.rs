//! `fencepost demo`: it goes as expected, needs no terminal, and leaves nothing behind, however it ends.

use std::path::Path;

use crate::harness::{Finished, Process, wait_until};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// A demo with its own temporary directory, so that the test sees what it leaves behind.
fn start(args: &[&str]) -> (Process, TempDir) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut command = crate::harness::command(&[&["demo"], args].concat());
    command.env("TMPDIR", place.path());
    (Process::start(command), place)
}

/// How many processes have this directory in their arguments: every node and every worker has.
fn processes(place: &Path) -> usize {
    let place = place.to_str().expect("a name in UTF-8");
    let all = std::fs::read_dir("/proc").expect("Linux has it").flatten();
    let told = |process: std::fs::DirEntry| std::fs::read(process.path().join("cmdline")).unwrap_or_default();
    all.map(told).filter(|told| String::from_utf8_lossy(told).contains(place)).count()
}

fn wait_until_gone(place: &Path) {
    wait_until("every process is gone", || (processes(place) == 0).then_some(()));
}

fn assert_nothing_left(place: &TempDir) {
    assert_eq!(processes(place.path()), 0, "no process is left behind");
    let left: Vec<_> = std::fs::read_dir(place).expect("the directory exists").flatten().map(|it| it.path()).collect();
    assert!(left.is_empty(), "nothing is left behind: {left:?}");
}

#[test]
fn the_demo_goes_as_expected_and_leaves_nothing_behind() {
    let (demo, place) = start(&[]);
    let told = demo.finish().ok();
    for part in [
        "its write lands: 400",
        "The account holds 400, and should hold 350.",
        "its write is refused",
        "The account holds 350, and should hold 350.",
        "the leader, is killed",
        "The account holds 250, and should hold 250.",
        "fencepost run nightly",
        "sqlite::admit(",
        "SELECT fencepost.write(",
    ] {
        assert!(told.stdout.contains(part), "{part:?} was not printed:\n{}", told.stdout);
    }
    let Finished { stdout, stderr, .. } = told;
    let (token, rest) =
        stdout.split_once("its token is ").and_then(|(_, rest)| rest.split_once(", and ")).expect("a refusal");
    let highest = rest.split(' ').next().expect("a number");
    let number = |text: &str| text.parse::<u64>().expect("a token is a number");
    assert!(number(token) < number(highest), "the refused token is older than {highest}: {token}");
    assert_eq!(stderr, "", "nothing went wrong");
    assert!(stdout.is_ascii() && !stdout.contains('\x1b'), "only ASCII in a pipe:\n{stdout}");
    let widest = stdout.lines().map(str::len).max();
    assert!(widest <= Some(100), "a line has {widest:?} columns:\n{stdout}");
    assert_nothing_left(&place);
}

#[test]
fn a_demo_that_does_not_go_as_expected_exits_with_one_and_says_why() {
    let (demo, place) = start(&["--without-guard"]);
    demo.finish().with_code(1).says("the demo did not go as expected").says("the late write with token");
    assert_nothing_left(&place);
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let (mut demo, place) = start(&[]);
    // A worker is paused at this moment.
    demo.wait_for_line("is paused (SIGSTOP)");
    assert_eq!(processes(place.path()), 5, "three nodes and two workers");
    demo.signal(Signal::SIGINT);
    demo.finish().with_code(130);
    assert_nothing_left(&place);
}

#[test]
fn a_killed_demo_takes_its_processes_with_it() {
    let (mut demo, place) = start(&[]);
    demo.wait_for_line("is paused (SIGSTOP)");
    demo.signal(Signal::SIGKILL);
    wait_until_gone(place.path());
}
