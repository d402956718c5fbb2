//! Runs seeds, and explains a failed one: its violations, the command that replays it, and a shorter run that still fails.

use fencepost_sim::check::Violation;
use fencepost_sim::run::{Run, Subject, run, shortest_failing_seconds};
use fencepost_sim::world::Plan;

use crate::{RunOptions, refuse};

/// Runs a seed, and with `--twice` runs it again: a different trace hash is then a violation.
pub(crate) fn run_seed(options: &RunOptions, seed: u64, traces: bool) -> Run {
    let once = || run(options.subject(seed), seed, traces).unwrap_or_else(|wrong| refuse(&wrong.to_string()));
    let mut first = once();
    if options.twice {
        let (one, other) = (first.outcome.trace_hash, once().outcome.trace_hash);
        if one != other {
            let what = format!("two runs of the same seed have different traces, {one:016x} and {other:016x}");
            let at = fencepost_sim::fact::WorldTime(first.outcome.simulated_ms * 1_000_000);
            first.outcome.violations.push(Violation { invariant: "determinism", at, what });
        }
    }
    first
}

/// The command that replays this seed and prints its trace.
pub(crate) fn command(options: &RunOptions, seed: u64, seconds: Option<u64>) -> String {
    #[cfg(feature = "made-up-version")]
    let (features, upgrades) = match options.upgrades {
        true => (" --features made-up-version", " --upgrades"),
        false => ("", ""),
    };
    #[cfg(not(feature = "made-up-version"))]
    let (features, upgrades) = ("", "");
    let mut command = format!("cargo run --release -p fencepost-sim{features} -- --seed {seed}{upgrades}");
    if let Some((name, _)) = &options.story {
        command += &format!(" --scenario {name}");
    }
    if let Some(nodes) = options.nodes {
        command += &format!(" --nodes {nodes}");
    }
    if let Some(seconds) = seconds.or(options.seconds) {
        command += &format!(" --seconds {seconds}");
    }
    if options.leases {
        command += " --leases";
    }
    if options.twice {
        command += " --twice";
    }
    command
}

/// The violations of a seed and the commands that reproduce them. `search` also looks for a shorter run, which costs several runs.
pub(crate) fn explain(options: &RunOptions, seed: u64, violations: &[Violation], search: bool) -> String {
    let mut text = format!("seed {seed} FAILED\n");
    for Violation { invariant, at, what } in violations.iter().take(5) {
        text += &format!("  {invariant} at {} ms: {what}\n", at.ms());
    }
    if violations.len() > 5 {
        text += &format!("  and {} more\n", violations.len() - 5);
    }
    text += &format!("  replay: {}\n", command(options, seed, None));
    if let Subject::Chance(plan @ Plan { seconds: planned, .. }) = options.subject(seed)
        && search
    {
        let seconds = shortest_failing_seconds(plan, seed);
        if seconds < planned {
            text += &format!("  shorter: {}\n", command(options, seed, Some(seconds)));
        }
    }
    text
}
