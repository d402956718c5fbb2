//! Runs the first session of the README line by line in a shell. Only the port of its node is another one.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::fail_fast::Background;
use crate::harness::PATIENCE;

/// The lines of the first session: the block after the mark `<!-- first_session -->`.
fn lines() -> Vec<String> {
    let readme =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).expect("the README");
    let block = readme.split("<!-- first_session -->").nth(1).expect("the README has a first session");
    let block = block.split("```").nth(1).expect("the first session is a code block");
    block.lines().skip(1).map(|line| line.split(" #").next().unwrap_or(line).trim().to_owned()).collect()
}

#[test]
fn the_first_session_of_the_readme_works_line_by_line() {
    let place = std::env::temp_dir().join(format!("fencepost-readme-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a place for the backup");
    let binary = Path::new(env!("CARGO_BIN_EXE_fencepost"));
    let path =
        format!("{}:{}", binary.parent().expect("a directory").display(), std::env::var("PATH").unwrap_or_default());
    let shell_at = |server: &str, line: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(&place).env("PATH", &path).env("FENCEPOST_SERVER", server);
        shell.stdin(Stdio::null());
        shell
    };
    let lines = lines();
    assert!(lines.len() == 7, "seven lines: {lines:?}");
    assert_eq!(lines[0], "fencepost dev --background");
    let started = shell_at("", &format!("{} --listen 127.0.0.1:0", lines[0])).output().expect("a shell");
    assert!(started.status.success(), "{started:?}");
    let node = Background::of(&String::from_utf8_lossy(&started.stdout));
    let shell = |line: &str| shell_at(&node.server, line);
    let mut background = Vec::new();
    let mut all_said = String::new();
    for line in &lines[1..] {
        if let Some(line) = line.strip_suffix('&') {
            background.push(shell(&format!("exec {line}")).spawn().expect("a shell"));
            let until = Instant::now() + PATIENCE;
            while !String::from_utf8_lossy(&shell("fencepost locks").output().expect("a shell").stdout)
                .contains("nightly")
            {
                assert!(Instant::now() < until, "{line} holds its lock in time");
            }
            continue;
        }
        let done = shell(line).output().expect("a shell");
        let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{line} ended with {}:\n{said}", done.status);
        all_said += &said;
    }
    for expected in ["my token is 1", "124", "nightly is held (exclusive)"] {
        assert!(all_said.contains(expected), "{expected:?} was not printed:\n{all_said}");
    }
    for mut child in background {
        // Its lock was broken, so it ends by itself.
        let _ = child.wait();
    }
    std::fs::remove_dir_all(&place).expect("the test created it");
}
