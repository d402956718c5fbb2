//! `fencepost-bench growth` with its smallest sizes: the points, the report, the plots and the refusals.

use crate::{fencepost_bench, is_refused_with, printed};

#[test]
fn hand_overs_and_storms_are_measured_and_reported() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let out = directory.path().to_str().expect("a plain path");
    let options = ["--quick", "--curves", "handover,storms", "--most", "5", "--block-ms", "200", "--out", out];
    let (stdout, _) = printed(&fencepost_bench(&[&["growth"][..], &options].concat()));
    assert!(stdout.contains("2 points measured"), "{stdout}");
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("it was written");
    let points: Vec<serde_json::Value> =
        read("growth.jsonl").lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let found: Vec<_> = points.iter().map(|it| (it["workload"].as_str(), it["parameter"].as_f64())).collect();
    assert_eq!(found, [(Some("handover"), Some(2.0)), (Some("storms"), Some(5.0))]);
    let figure = |at: usize, name: &str| points[at]["figures"][name].as_f64().unwrap_or(0.0);
    assert!(figure(0, "handovers_per_second") > 0.0, "{points:?}");
    // One push for each hand-over, with a margin for those in flight at both ends of the block.
    assert!((0.5..1.5).contains(&figure(0, "pushes_per_operation")), "{points:?}");
    // At best, the release and the request that waits again share an entry.
    assert!(figure(0, "entries_per_operation") > 0.4, "{points:?}");
    assert!(figure(1, "open_ms") > 0.0 && figure(1, "expire_entries_count") >= 1.0, "{points:?}");
    let report = read("growth.md");
    assert!(report.contains("growth-handover.svg") && report.contains("| 5 |"), "{report}");
    assert!(read("growth-storms.svg").starts_with("<svg"));
}

#[test]
fn an_unknown_curve_is_refused_with_the_list_of_curves() {
    is_refused_with(&["growth", "--curves", "speed"], "handover, locks, memory");
}
