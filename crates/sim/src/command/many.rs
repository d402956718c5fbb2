//! Runs many seeds: progress on standard error, failed seeds and a summary on standard output.
//!
//! This file only adds up and prints. How a failed seed is run again is the business of `replay.rs`.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fencepost_sim::world::Outcome;

use super::replay;
use crate::RunOptions;

/// For this many failed seeds a shorter failing run is searched. Each search costs a few runs.
const SEARCHED_MAX: u64 = 5;
/// Pause between two progress reports, on a terminal and elsewhere.
const TERMINAL_EVERY: Duration = Duration::from_millis(100);
const OTHERS_EVERY: Duration = Duration::from_secs(10);
const BAR_WIDTH: u64 = 30;

#[derive(Default)]
struct Sums {
    seeds: u64,
    failed: u64,
    simulated_ms: u64,
    /// Time simulated in the second runs of `--twice`.
    again_ms: u64,
    operations: u64,
    entries: u64,
    snapshots: u64,
    writes: u64,
    refused: u64,
    corrupted: u64,
    effects: u64,
    effects_refused: u64,
    repeated_without_row: u64,
    repeated_without_guard: u64,
    jobs_granted: u64,
    attempts: u64,
    checkpoints: u64,
    completions: u64,
    faults: BTreeMap<&'static str, u64>,
    violations: BTreeMap<&'static str, u64>,
}

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.failed += u64::from(!outcome.violations.is_empty());
        self.simulated_ms += outcome.simulated_ms;
        self.operations += outcome.operations;
        self.entries += outcome.entries;
        self.snapshots += outcome.snapshots;
        self.writes += outcome.store.writes;
        self.refused += outcome.store.refused;
        self.corrupted += outcome.store.corrupted;
        self.effects += outcome.store.effects;
        self.effects_refused += outcome.store.effects_refused;
        self.repeated_without_row += outcome.store.repeated_without_row;
        self.repeated_without_guard += outcome.store.repeated_without_guard;
        self.jobs_granted += outcome.checked.jobs_granted;
        self.attempts += outcome.checked.attempts;
        self.checkpoints += outcome.checked.checkpoints;
        self.completions += outcome.checked.completions;
        for (kind, count) in &outcome.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for violation in &outcome.violations {
            *self.violations.entry(violation.invariant).or_default() += 1;
        }
    }

    fn speed(&self, took: Duration) -> f64 {
        (self.simulated_ms + self.again_ms) as f64 / 1_000.0 / took.as_secs_f64().max(1e-9)
    }

    /// The rows of the summary: label and value.
    fn rows(&self, took: Duration) -> Vec<(String, String)> {
        let row = |what: &str, count: u64| (what.to_owned(), count.to_string());
        let hours = self.simulated_ms as f64 / 3_600_000.0;
        let mut rows = vec![
            row("seeds", self.seeds),
            ("simulated hours".to_owned(), format!("{hours:.2}")),
            row("operations", self.operations),
            row("entries", self.entries),
            row("snapshots", self.snapshots),
            row("writes at the store", self.writes),
            row("  refused by the guard", self.refused),
            row("  corrupted without a guard", self.corrupted),
            row("jobs given to a client", self.jobs_granted),
            row("  attempts", self.attempts),
            row("  checkpoints", self.checkpoints),
            row("  completions", self.completions),
            row("effects of jobs at the store", self.effects),
            row("  refused by the guard", self.effects_refused),
            row("  done twice with a guard alone", self.repeated_without_row),
            row("  done twice without a guard", self.repeated_without_guard),
            row("faults", self.faults.values().sum()),
        ];
        rows.extend(self.faults.iter().map(|(kind, count)| row(&format!("  {kind}"), *count)));
        rows.push(row("violations", self.violations.values().sum()));
        rows.extend(self.violations.iter().map(|(invariant, count)| row(&format!("  {invariant}"), *count)));
        rows.push(("simulated per real second".to_owned(), format!("{:.0} s", self.speed(took))));
        rows
    }
}

/// Reports progress on standard error.
struct Progress {
    seeds: u64,
    is_terminal: bool,
    begun: Instant,
    told: Instant,
}

impl Progress {
    fn tell(&mut self, sums: &Sums) {
        let every = if self.is_terminal { TERMINAL_EVERY } else { OTHERS_EVERY };
        if self.told.elapsed() < every {
            return;
        }
        self.told = Instant::now();
        let (done, seeds, failed) = (sums.seeds, self.seeds, sums.failed);
        let speed = sums.speed(self.begun.elapsed());
        let text = format!("{done} of {seeds} seeds, {failed} failed, {speed:.0} simulated seconds a second");
        let mut err = std::io::stderr().lock();
        // Standard error may be closed. That is not an error of the run.
        let _ = match self.is_terminal {
            true => {
                let full = (done * BAR_WIDTH / seeds) as usize;
                let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR_WIDTH as usize - full));
                write!(err, "\r[{bar}] {text}\x1b[K").and_then(|()| err.flush())
            }
            false => writeln!(err, "{text}"),
        };
    }

    /// Clears the progress line, so that other output does not mix with it.
    fn clear(&self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Runs the seeds and prints the summary.
pub(crate) fn run(options: &RunOptions, first: u64, seeds: u64) -> ExitCode {
    let begun = Instant::now();
    let mut sums = Sums::default();
    let mut progress = Progress { seeds, is_terminal: std::io::stderr().is_terminal(), begun, told: begun };
    for seed in (first..=u64::MAX).take(usize::try_from(seeds).unwrap_or(usize::MAX)) {
        let run = replay::run_seed(options, seed, false);
        sums.add(&run.outcome);
        sums.again_ms += if options.twice { run.outcome.simulated_ms } else { 0 };
        if !run.outcome.violations.is_empty() {
            progress.clear();
            let search = sums.failed <= SEARCHED_MAX;
            print!("{}", replay::explain(options, seed, &run.outcome.violations, search));
        }
        progress.tell(&sums);
    }
    progress.clear();
    let rows = sums.rows(begun.elapsed());
    let what_width = rows.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    let count_width = rows.iter().map(|(_, count)| count.len()).max().unwrap_or(0);
    for (what, count) in rows {
        println!("{what:what_width$}  {count:>count_width$}");
    }
    ExitCode::from(u8::from(sums.failed > 0))
}
