//! `fencepost bench` against a real node, and `fencepost bench compare` with nodes of its own. What is measured depends on the machine
//! and is not asserted; that something was, and that it adds up, is.

mod harness;

use harness::{Dev, fencepost, wait_until};
use nix::sys::signal::Signal;

#[test]
fn a_running_cluster_is_loaded_and_nothing_is_left_behind() {
    let dev = Dev::start();
    let done = dev.fencepost(&["bench", "--seconds", "1", "--contenders", "4"]).ok();
    assert!(done.stdout.contains("by 4 contenders") && done.stdout.contains("P99.9"), "{done:?}");
    assert!(done.stderr.contains("1 of 1 s: ") && !done.stdout.contains("1 of 1 s"), "{done:?}");
    for more in [&["--shared-names"][..], &["--efficiency"], &["--separate-connections"]] {
        let args = [&["bench", "-s", "1", "-c", "8", "-o", "json"], more].concat();
        let outcome = dev.fencepost(&args).ok().json();
        let number = |path: &str| outcome.pointer(path).and_then(serde_json::Value::as_f64).expect(path);
        assert!(number("/pairs") >= 8.0 && number("/seconds") >= 1.0 && number("/contenders") == 8.0, "{outcome}");
        assert!(number("/acquire_ms/p50") > 0.0, "{outcome}");
        assert!(number("/acquire_ms/p50") <= number("/acquire_ms/longest"), "{outcome}");
        let ratio = number("/pairs") / number("/seconds") / number("/pairs_per_second");
        assert!((0.99..1.01).contains(&ratio), "{outcome}");
    }
    let sessions = dev.fencepost(&["sessions", "-o", "json"]).ok().json();
    assert_eq!(sessions, serde_json::json!([]), "all sessions were closed");
}

#[test]
fn whoever_breaks_off_has_what_was_measured_until_then() {
    let dev = Dev::start();
    let bench = dev.start_client(&["bench", "--seconds", "600"]);
    wait_until("it has begun", || dev.fencepost(&["sessions"]).ok().stdout.contains("fencepost bench").then_some(()));
    bench.signal(Signal::SIGINT);
    bench.finish().with_code(130).says("by 64 contenders").says("P99.9");
}

#[test]
fn a_comparison_writes_a_report_every_block_and_plots() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().join("out");
    let place = out.to_str().expect("a plain path");
    let args = [
        "bench",
        "compare",
        "--quick",
        "--systems",
        "fencepost-1",
        "--workloads",
        "w1,w2,w6,programs",
        "--rounds",
        "1",
    ];
    let done = fencepost(&[&args[..], &["--block", "60ms", "--out", place]].concat()).ok();
    assert!(done.stdout.starts_with("8 blocks measured; the report is ") && done.stdout.contains(place), "{done:?}");
    assert!(done.stderr.contains("starting fencepost-1") && done.stderr.contains("round 1"), "{done:?}");

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
