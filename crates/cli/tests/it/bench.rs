//! `fencepost bench` against a real node. The figures depend on the machine and are not asserted; the tests assert that there are figures,
//! and that they add up.

use crate::harness::{Dev, wait_until};
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
fn an_interrupted_run_prints_what_was_measured_until_then() {
    let dev = Dev::start();
    let bench = dev.start_client(&["bench", "--seconds", "600"]);
    wait_until("the benchmark has begun", || {
        dev.fencepost(&["sessions"]).ok().stdout.contains("fencepost bench").then_some(())
    });
    bench.signal(Signal::SIGINT);
    bench.finish().with_code(130).says("by 64 contenders").says("P99.9");
}
