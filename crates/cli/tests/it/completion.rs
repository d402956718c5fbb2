//! Completion: a real bash presses TAB. Names of locks come from the cluster, or there are none; never an error, never a wait.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Dev, Process, command, fencepost, wait_until};

/// What bash offers at the end of this line, with these variables set. It must write no error.
fn bash(line: &str, variables: &[(&str, &str)]) -> Vec<String> {
    // As bash does at TAB: it splits the words at spaces and at COMP_WORDBREAKS, and calls the function.
    let script = r#"
        source <(fencepost completion bash)
        COMP_LINE=$1 COMP_POINT=${#1}
        _fencepost
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let binary = Path::new(env!("CARGO_BIN_EXE_fencepost")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("bash");
    shell.args(["--norc", "-c", script, "bash", line]).env("PATH", path).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_")) {
        shell.env_remove(name);
    }
    shell.envs(variables.iter().copied());
    let done = shell.output().expect("bash is installed");
    assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{line}");
    String::from_utf8_lossy(&done.stdout).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Waits until bash offers exactly this. On a busy machine the cluster may answer too late, and then TAB offers nothing.
#[track_caller]
fn offers(line: &str, variables: &[(&str, &str)], expected: &[&str]) {
    wait_until(&format!("{line:?} is completed with {expected:?}"), || {
        let offered = bash(line, variables);
        assert!(offered.is_empty() || offered == expected, "{line:?} is completed with {offered:?}, not {expected:?}");
        (offered == expected).then_some(())
    });
}

#[test]
fn tab_completes_names_of_locks_in_bash() {
    let dev = Dev::start();
    let _holders = ["wallet:7", "wallet:8", "nightly", "$(touch x)"].map(|lock| dev.hold(lock));
    let _waiter = dev.start_client(&["run", "wallet:7", "wallet:9", "--", "true"]);
    dev.wait_until_waiting("wallet:9", 1);
    let of_shell = [("FENCEPOST_SERVER", dev.server.as_str())];
    for command in ["why", "describe", "break", "run"] {
        offers(&format!("fencepost {command} ni"), &of_shell, &["nightly"]);
    }
    // Bash replaces only what follows the colon.
    offers("fencepost why wallet:", &of_shell, &["7", "8", "9"]);
    offers("fencepost why wal", &of_shell, &["wallet:7", "wallet:8", "wallet:9"]);
    // A name that another user chose cannot become a command.
    offers("fencepost why ", &of_shell, &[r"\$\(touch\ x\)", "nightly", "wallet:7", "wallet:8", "wallet:9"]);
    // The cluster can be named on the line.
    offers(&format!("fencepost why --server {} ni", dev.server), &[], &["nightly"]);
    offers(&format!("fencepost why --server=fencepost://{} ni", dev.server), &[], &["nightly"]);
}

#[test]
fn tab_completes_names_and_keys_of_jobs_in_bash() {
    let dev = Dev::start();
    for (name, key) in [("billing", "2026-10"), ("billing", "2026-11"), ("billing2", "x"), ("shipping", "day 1")] {
        dev.fencepost(&["run", "--once", key, name, "--", "true"]).ok();
    }
    let of_shell = [("FENCEPOST_SERVER", dev.server.as_str())];
    for command in ["show", "wait", "forget", "complete", "check"] {
        offers(&format!("fencepost job {command} bi"), &of_shell, &["billing", "billing2"]);
    }
    offers("fencepost job show billing ", &of_shell, &["2026-10", "2026-11"]);
    offers("fencepost job show billing 2026-10", &of_shell, &["2026-10"]);
    offers("fencepost job wait shipping ", &of_shell, &[r"day\ 1"]);
    offers(&format!("fencepost job show --server {} ship", dev.server), &[], &["shipping"]);
    offers("fencepost job fo", &of_shell, &["forget"]);
    offers("fencepost run --once-", &of_shell, &["--once-per"]);
}

#[test]
fn tab_completes_commands_flags_values_and_files_in_bash() {
    assert_eq!(bash("fencepost des", &[]), ["describe"]);
    assert_eq!(bash("fencepost member pro", &[]), ["promote"]);
    assert_eq!(bash("fencepost why --serv", &[]), ["--server", "--server-name"]);
    assert_eq!(bash("fencepost locks -o ", &[]), ["table", "json"]);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("authority.pem"), "").unwrap();
    let file = directory.path().join("authority.pem").display().to_string();
    assert_eq!(bash(&format!("fencepost why --ca {}/auth", directory.path().display()), &[]), [file]);
}

/// A user who presses TAB must not wait, and must not see an error.
#[test]
fn without_a_cluster_that_answers_tab_completes_nothing_and_does_not_wait() {
    // Accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let wrong: [&[(&str, &str)]; 4] = [
        &[("FENCEPOST_SERVER", &address)],
        &[("FENCEPOST_SERVER", "127.0.0.1:1")],
        &[("FENCEPOST_SERVER", "not an address")],
        &[("FENCEPOST_CONFIG", "/no-such-file")],
    ];
    for variables in wrong {
        assert_eq!(bash("fencepost why ", variables), [""; 0], "{variables:?}");
        let mut complete = command(&["complete-words", "--", "fencepost", "why", ""]);
        complete.envs(variables.iter().copied());
        let begun = Instant::now();
        let done = Process::start(complete).finish().ok();
        // It gives up after 200 ms. A client command looks for seconds, so a busy machine does not make this fail.
        assert!(begun.elapsed() < Duration::from_secs(2), "{variables:?}: {:?}", begun.elapsed());
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""), "{variables:?}");
    }
}

#[test]
fn every_shell_gets_its_completion_script() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        fencepost(&["completion", shell]).ok().says("fencepost");
    }
    for shell in ["bash", "zsh", "fish"] {
        fencepost(&["completion", shell]).ok().says("fencepost complete-words -- ");
    }
    fencepost(&["completion", "bsh"]).with_code(2).says("a similar value exists: 'bash'");
}
