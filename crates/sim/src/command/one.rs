//! Runs one seed and prints its trace on standard output; on request also writes it as JSON, for a viewer.
//!
//! This file owns the text form and the JSON form of a trace. It does not word the lines: `telling.rs` does.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use fencepost_sim::observer::Line;
use fencepost_sim::run::Run;
use serde::Serialize;

use super::replay;
use crate::{RunOptions, refuse};

/// The JSON form of a trace.
#[derive(Serialize)]
struct Page<'a> {
    title: String,
    tells: Option<&'a str>,
    seed: u64,
    lines: &'a [Line],
    outcome: PageOutcome<'a>,
}

#[derive(Serialize)]
struct PageOutcome<'a> {
    simulated_ms: u64,
    operations: u64,
    entries: u64,
    snapshots: u64,
    faults: &'a BTreeMap<&'static str, u64>,
    writes: u64,
    guarded_refusals: u64,
    unguarded_corruptions: u64,
    /// In hexadecimal, because many JSON readers cannot hold 64-bit integers.
    trace_hash: String,
    violations: Vec<PageViolation<'a>>,
}

#[derive(Serialize)]
struct PageViolation<'a> {
    invariant: &'a str,
    at_ms: u64,
    what: &'a str,
}

/// Runs the seed and prints its trace.
pub(crate) fn run(options: &RunOptions, seed: u64, json: Option<&Path>) -> ExitCode {
    let run = replay::run_seed(options, seed, true);
    // The reader of the pipe may have closed it, as `head` does. That is not an error.
    let _ = print(options, seed, &run);
    if let Some(path) = json
        && let Err(wrong) = write(options, seed, &run, path)
    {
        refuse(&format!("{} cannot be written: {wrong}", path.display()));
    }
    ExitCode::from(u8::from(!run.outcome.violations.is_empty()))
}

fn print(options: &RunOptions, seed: u64, run: &Run) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    if let Some((_, scenario)) = &options.story {
        writeln!(out, "{}\n\n{}\n", scenario.title, scenario.tells.trim())?;
    }
    let width = run.lines.iter().map(|line| line.who.chars().count()).max().unwrap_or(0);
    for Line { at_ms, who, what } in &run.lines {
        writeln!(out, "{:>9.3} s  {who:width$}  {what}", at_ms / 1_000.0)?;
    }
    let outcome = &run.outcome;
    writeln!(
        out,
        "\nseed {seed}: {} ms simulated, {} operations in {} entries, trace {:016x}",
        outcome.simulated_ms, outcome.operations, outcome.entries, outcome.trace_hash
    )?;
    match outcome.violations.is_empty() {
        true => writeln!(out, "no violations")?,
        false => write!(out, "{}", replay::explain(options, seed, &outcome.violations, true))?,
    }
    out.flush()
}

fn write(options: &RunOptions, seed: u64, run: &Run, path: &Path) -> std::io::Result<()> {
    let outcome = &run.outcome;
    let violations = outcome.violations.iter();
    let violations = violations.map(|it| PageViolation { invariant: it.invariant, at_ms: it.at.ms(), what: &it.what });
    let scenario = options.story.as_ref().map(|(_, scenario)| scenario);
    let page = Page {
        title: scenario.map_or(format!("seed {seed}"), |scenario| scenario.title.clone()),
        tells: scenario.map(|scenario| scenario.tells.trim()),
        seed,
        lines: &run.lines,
        outcome: PageOutcome {
            simulated_ms: outcome.simulated_ms,
            operations: outcome.operations,
            entries: outcome.entries,
            snapshots: outcome.snapshots,
            faults: &outcome.faults,
            writes: outcome.store.writes,
            guarded_refusals: outcome.store.refused,
            unguarded_corruptions: outcome.store.corrupted,
            trace_hash: format!("{:016x}", outcome.trace_hash),
            violations: violations.collect(),
        },
    };
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    serde_json::to_writer_pretty(&mut file, &page)?;
    writeln!(file)?;
    file.flush()
}
