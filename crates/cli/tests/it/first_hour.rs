//! Plays `examples/first-hour` with this build: every command of it answers, and no answer is one that a newcomer cannot use.

use std::path::Path;

#[test]
fn the_first_hour_of_a_newcomer_has_no_dead_ends() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/first-hour");
    let mut command = std::process::Command::new("bash");
    command.arg(script).arg(env!("CARGO_BIN_EXE_fencepost")).stdin(std::process::Stdio::null());
    // The script bounds each of its steps.
    let played = command.output().expect("bash runs the script");
    let said = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success(), "{played:?}");
    let dead_ends = [
        "panicked",
        "report a bug",
        "another replica",
        "orruption",
        "not true within",
        "exit code 143",
        "http2",
        "close_notify",
    ];
    for dead_end in dead_ends {
        assert!(!said.contains(dead_end), "{dead_end:?} is in\n{said}");
    }
    let mut expected = vec![
        "a similar subcommand exists: 'locks'",
        "start one with `fencepost dev`",
        "my token is 1",
        "weekly, nightly were not granted in time: as of now nightly is held by session",
        "nightly is held (exclusive) by session",
        "an administrator broke it: the backup hangs, ticket 7",
        "accounts/8 with token",
        "token: none",
        "pool is a semaphore: give --permits 1",
        "is not a number of permits",
        "this is the port for clients",
        "cannot join a cluster at",
    ];
    if !said.contains("skipped: the part about TLS") {
        // The second: three nodes that are well have logged no warning.
        expected.extend(["the node wants to see a certificate", "'WARN|ERROR' | wc -l\n0\n"]);
    }
    for part in expected {
        assert!(said.contains(part), "{part:?} is not in\n{said}");
    }
}
