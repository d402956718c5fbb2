//! `fencepost-bench compare` with its smallest sizes and nodes of its own: the results, the report, the plots and the refusals.

use crate::{fencepost_bench, is_refused_with, printed};

#[test]
fn a_comparison_writes_a_report_every_block_and_plots() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("out");
    let place = out.to_str().expect("a plain path");
    let args = ["compare", "--quick", "--systems", "fencepost-1", "--workloads", "w1,w2,w6,programs", "--rounds", "1"];
    let (stdout, stderr) = printed(&fencepost_bench(&[&args[..], &["--block-ms", "60", "--out", place]].concat()));
    assert!(stdout.starts_with("8 blocks measured; the report is ") && stdout.contains(place), "{stdout}");
    assert!(stderr.contains("starting fencepost-1") && stderr.contains("round 1"), "{stderr}");

    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let lines = read("results.jsonl");
    let blocks = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON"));
    let blocks: Vec<_> = blocks.collect();
    assert_eq!(blocks.len(), 8, "{lines}");
    for block in &blocks {
        let figures = &block["figures"];
        let rate = ["pairs_per_second", "handovers_per_second"].iter().find_map(|name| figures[*name].as_f64());
        assert!(rate.is_some_and(|rate| rate > 0.0), "{block}");
        for figure in ["probe_disk_us", "probe_loopback_us", "probe_commit_us", "entries_per_operation"] {
            assert!(figures[figure].as_f64().is_some_and(|value| value > 0.0), "{figure} in {block}");
        }
    }
    let report = read("report.md");
    for part in [
        "## Goals",
        "W1: free locks",
        "### C = 64",
        "### N = 2",
        "### C = 16, one thread, one connection",
        "### C = 16, multi-threaded, four connections",
        "| Fencepost x1 |",
        "w6 was not measured: it needs fencepost-3",
    ] {
        assert!(report.contains(part), "{part:?} is not in {report}");
    }
    assert!(read("w1-throughput.svg").contains("<polyline") && read("w2-handovers.svg").contains("Fencepost x1"));
}

#[test]
fn a_wrong_program_system_or_block_is_refused_with_advice() {
    is_refused_with(&["compare", "--workloads", "w7"], "write one of w1, programs");
    is_refused_with(&["compare", "--rounds", "0"], "1..=1000");
    is_refused_with(&["compare", "--out", "/proc/no/such"], "cannot make the directory");
    is_refused_with(&["compare", "--systems", "chubby"], "write one of fencepost-1");
    is_refused_with(&["compare", "--block-ms", "1"], "10..=3600000");
    let bench = env!("CARGO_BIN_EXE_fencepost-bench");
    for other in [bench, "/nowhere/fencepost"] {
        let refused = std::process::Command::new(bench).args(["--fencepost", other, "compare", "--quick"]).output();
        let refused = refused.expect("the program starts");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("cargo build --release -p fencepost-cli"), "{refused:?}");
    }
}
