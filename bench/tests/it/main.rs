//! The integration tests of the benchmarks, in one program. They judge no figures: that needs a quiet machine.

mod compare;
mod growth;
mod peers;

use std::path::Path;
use std::process::{Command, Output};

/// Runs `fencepost-bench` with these arguments, and with the `fencepost` in the same directory.
fn fencepost_bench(args: &[&str]) -> Output {
    let bench = Path::new(env!("CARGO_BIN_EXE_fencepost-bench"));
    let fencepost = bench.with_file_name("fencepost");
    assert!(fencepost.exists(), "these tests measure `fencepost`: build it first, with `cargo build -p fencepost-cli`");
    Command::new(bench).arg("--fencepost").arg(fencepost).args(args).output().expect("the program starts")
}

/// Standard output and standard error. Fails if the command failed.
fn printed(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{output:?}");
    (text(&output.stdout), text(&output.stderr))
}

fn is_refused_with(args: &[&str], reason: &str) {
    let refused = fencepost_bench(args);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains(reason), "{refused:?}");
}
