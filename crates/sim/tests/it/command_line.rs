//! The command line of the simulation: its output, its refusals and its exit codes.

use std::path::Path;
use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fencepost-sim")).args(arguments).output().expect("the program runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A path in the temporary directory of this test binary.
fn file(name: &str) -> String {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).to_str().expect("a path in plain text").to_owned()
}

#[test]
fn one_seed_prints_a_readable_trace() {
    let output = sim(&["--seed", "1", "--seconds", "5"]);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    assert!(text.contains("granted account-") && text.contains("opens session s1"), "{text}");
    assert!(text.contains("no violations"), "{text}");
    assert!(!text.contains("SessionId(") && !text.contains("GrantId("), "the trace contains debug output");
}

#[test]
fn any_seed_can_be_a_lease_run() {
    let output = sim(&["--seed", "1", "--leases", "--seconds", "30"]);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    assert!(text.contains(" leads in term ") && text.contains("granted lease-"), "{text}");
}

#[test]
fn many_seeds_print_a_summary() {
    let output = sim(&["--seeds", "2", "--first", "5", "--seconds", "5", "--twice"]);
    assert!(output.status.success(), "{}", err(&output));
    let text = out(&output);
    for row in ["seeds", "simulated hours", "operations", "faults", "violations", "simulated per real second"] {
        assert!(text.lines().any(|line| line.starts_with(row)), "no {row} in {text}");
    }
}

#[test]
fn the_scenarios_are_listed() {
    let text = out(&sim(&["--scenarios"]));
    assert!(text.lines().count() == 10 && text.contains("paused-holder  "), "{text}");
}

#[test]
fn a_trace_is_written_as_json() {
    let path = file("trace.json");
    let output = sim(&["--scenario", "circular-wait", "--seed", "3", "--json", &path]);
    assert!(output.status.success(), "{}", err(&output));
    let text = std::fs::read_to_string(&path).expect("it was written");
    let page: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!((page["title"].as_str(), page["seed"].as_u64()), (Some("Two wait for each other"), Some(3)));
    let line = &page["lines"][0];
    assert!(line["at_ms"].is_f64() && line["who"].is_string() && line["what"].is_string(), "{line}");
    assert_eq!(page["outcome"]["violations"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_scenario_that_fails_prints_the_command_that_replays_it() {
    let path = file("wrong.toml");
    let story = "title = \"wrong\"\ntells = \"nothing\"\nnodes = 3\n[[client]]\nname = \"first\"\nttl-ms = 4000\n\
                 [[step]]\nat-ms = 0\nexpect.holder = { lock = \"account\", who = \"first\" }\n";
    std::fs::write(&path, story).expect("the temporary directory is writable");
    let output = sim(&["--scenario", &path, "--seeds", "2", "--first", "8"]);
    assert_eq!(output.status.code(), Some(1));
    let text = out(&output);
    let command = format!("cargo run --release -p fencepost-sim -- --seed 9 --scenario {path}");
    assert!(text.contains(&command) && text.contains("seed 8 FAILED"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("  expectation ") && line.ends_with(" 2")), "{text}");
}

#[test]
fn a_refused_command_line_says_what_to_do() {
    let refused: [(&[&str], &str); 8] = [
        (&[], "use --seed N, --seeds N"),
        (&["--scenario", "no-such-story"], "use one of paused-holder"),
        (&["--scenario", "no-such-file.toml"], "cannot be read"),
        (&["--seeds", "0"], "use 1 or more"),
        (&["--seed", "1", "--seeds", "2"], "cannot be used with"),
        (&["--first", "3", "--seed", "1"], "cannot be used with"),
        (&["--first", "3", "--scenario", "clock-jump"], "--seeds <N>"),
        (&["--seeds", "2", "--json", "x.json"], "cannot be used with"),
    ];
    for (arguments, says) in refused {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(err(&output).contains(says), "{arguments:?}: {}", err(&output));
    }
}
