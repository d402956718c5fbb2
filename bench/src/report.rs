//! The report of the comparison: Markdown tables with medians, ranges and ratios, the goals with their figures, and what could not be
//! measured.
//!
//! It is written from the recorded blocks alone, so it can be written again after each workload.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use fencepost_load::count;

use crate::catalogue::{BASELINE, EFFICIENCY_BASELINE};
use crate::figures::{Block, Results, Summary};
use crate::workload::Workload;
use crate::{goals, plot};

/// Everything that a report is written from.
pub(crate) struct Report {
    /// What was measured.
    pub(crate) results: Results,
    /// What could not be measured, and why.
    pub(crate) notes: Vec<String>,
    /// For each id: the system's name, and how its locks are taken.
    pub(crate) systems: BTreeMap<&'static str, (String, String)>,
    rounds: usize,
    block: Duration,
    began: SystemTime,
}

impl Report {
    pub(crate) fn new(rounds: usize, block: Duration) -> Report {
        let (results, notes, systems) = (Results::default(), Vec::new(), BTreeMap::new());
        Report { results, notes, systems, rounds, block, began: SystemTime::now() }
    }
}

/// Whether more or less of a figure is better.
#[derive(Clone, Copy, PartialEq)]
enum Better {
    More,
    Less,
}

struct Column {
    figure: &'static str,
    heading: &'static str,
    /// `Some` if the figure is compared with the baseline.
    compared: Option<Better>,
}

const fn column(figure: &'static str, heading: &'static str) -> Column {
    Column { figure, heading, compared: None }
}

const fn compared(figure: &'static str, heading: &'static str, better: Better) -> Column {
    Column { figure, heading, compared: Some(better) }
}

fn columns(workload: Workload) -> &'static [Column] {
    match workload {
        Workload::Uncontended | Workload::Efficiency | Workload::Programs | Workload::EfficiencyPrograms => {
            const {
                &[
                    compared("pairs_per_second", "pairs/s", Better::More),
                    compared("acquire_p50_ms", "acquire p50, ms", Better::Less),
                    column("acquire_p99_ms", "p99, ms"),
                    column("servers_cpu_us", "CPU a pair, servers, µs"),
                    column("all_cpu_us", "CPU a pair, with the load, µs"),
                ]
            }
        }
        Workload::OpenLoop => {
            const {
                &[
                    column("due_per_second", "pairs/s due"),
                    column("pairs_per_second", "pairs/s done"),
                    column("acquire_p50_ms", "acquire p50, ms"),
                    compared("acquire_p99_ms", "p99, ms", Better::Less),
                    column("acquire_p999_ms", "p99.9, ms"),
                    column("all_cpu_us", "CPU a pair, with the load, µs"),
                ]
            }
        }
        Workload::HotLock => {
            const {
                &[
                    compared("handovers_per_second", "hand-overs/s", Better::More),
                    column("handover_p50_ms", "hand-over p50, ms"),
                    column("handover_p99_ms", "p99, ms"),
                    column("servers_cpu_us", "CPU a hand-over, servers, µs"),
                    column("all_cpu_us", "CPU a hand-over, with the load, µs"),
                ]
            }
        }
        Workload::Shared => {
            const {
                &[
                    compared("pairs_per_second", "pairs/s", Better::More),
                    column("readers_together_count", "readers at the same time"),
                    column("read_p50_ms", "read p50, ms"),
                    column("write_p50_ms", "write p50, ms"),
                    column("all_cpu_us", "CPU a pair, with the load, µs"),
                ]
            }
        }
        Workload::Idle => {
            const {
                &[
                    column("sessions_count", "sessions"),
                    column("locks_count", "locks"),
                    column("entries_per_second", "log entries/s"),
                    column("leader_core_percent", "leader, % of a core"),
                    column("session_bytes", "bytes a session"),
                    column("lock_bytes", "bytes a lock"),
                ]
            }
        }
        Workload::Dying => {
            const {
                &[
                    column("sessions_count", "sessions"),
                    column("first_ms", "first lock handed on, ms after the deadline"),
                    column("last_ms", "last lock, ms after the deadline"),
                    column("entries_count", "log entries from death to the last lock"),
                ]
            }
        }
        Workload::Failover => const { &[column("gap_ms", "ms without a grant")] },
        Workload::Restart => {
            const {
                &[
                    column("locks_count", "locks"),
                    column("listens_ms", "listens after, ms"),
                    column("serves_ms", "first grant after, ms"),
                ]
            }
        }
    }
}

/// Figures from Fencepost's own counters.
const COUNTS: &[(&str, &str)] = &[
    ("entries_per_operation", "log entries"),
    ("syncs_per_operation", "syncs, all nodes"),
    ("log_bytes_per_operation", "bytes of log, all nodes"),
    ("messages_per_operation", "messages between nodes"),
    ("message_bytes_per_operation", "bytes between nodes"),
    ("pushes_per_operation", "pushes to clients"),
];

fn baseline(workload: Workload) -> &'static str {
    match workload {
        Workload::Efficiency | Workload::EfficiencyPrograms => EFFICIENCY_BASELINE,
        _ => BASELINE,
    }
}

/// Writes `report.md` and the plots.
///
/// # Errors
/// If the directory cannot be written.
pub(crate) fn write(report: &Report, out: &Path) -> Result<()> {
    let plots = plot::all(&report.results);
    for (name, svg) in &plots {
        let path = out.join(name);
        std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    let path = out.join("report.md");
    std::fs::write(&path, markdown(report, &names)).with_context(|| format!("cannot write {}", path.display()))
}

/// The whole report.
fn markdown(report: &Report, plots: &[&str]) -> String {
    let mut text = String::from("# Fencepost beside others\n\n");
    let results = &report.results;
    let _ = writeln!(
        text,
        "Measured on {} on {}. A block lasts {} s. There are {} rounds after one for warming up, and in each round every system has its block \
         in turn. A figure is the median of the rounds, with the least and the most in brackets. A ratio is calculated within each round, \
         and the table shows the median of these ratios. Servers and load share this machine.\n",
        date(report.began),
        machine(),
        report.block.as_secs_f64(),
        report.rounds
    );
    text.push_str(&goals_table(results));
    text.push_str(&probes_table(results));
    if !report.systems.is_empty() {
        text.push_str("## The systems\n\n| system | how its locks are taken |\n|---|---|\n");
        for (name, how) in report.systems.values() {
            let _ = writeln!(text, "| {name} | {how} |");
        }
        text.push('\n');
    }
    for workload in Workload::ALL {
        text.push_str(&section(workload, results, plots));
    }
    if !report.notes.is_empty() {
        text.push_str("## Not measured\n\n");
        for note in &report.notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    text.trim_end().to_owned() + "\n"
}

fn goals_table(results: &Results) -> String {
    let mut text = String::from("## Goals\n\n| goal | measured | |\n|---|---|---|\n");
    for verdict in goals::judge(results) {
        let met = match verdict.met {
            Some(true) => "met",
            Some(false) => "**not met**",
            None => "not measured",
        };
        let _ = writeln!(text, "| {} | {} | {met} |", verdict.goal, verdict.measured);
    }
    text + "\n"
}

fn probes_table(results: &Results) -> String {
    let mut text = String::from("## The machine during the run\n\n| probe, before every block | µs |\n|---|---|\n");
    for (figure, what) in [
        ("probe_disk_us", "a write of 4 KiB and its sync"),
        ("probe_loopback_us", "one byte there and back over loopback"),
        ("probe_commit_us", "a bare commit of three nodes: the same hops and syncs, nothing computed"),
    ] {
        let all = results.blocks.iter().filter_map(|block| block.figures.get(figure).copied());
        let _ = writeln!(text, "| {what} | {} |", Summary::of(all).map_or("-".to_owned(), show));
    }
    text + "\n"
}

fn section(workload: Workload, results: &Results, plots: &[&str]) -> String {
    let cases = results.cases(workload.id());
    if cases.is_empty() {
        return String::new();
    }
    let mut text = format!("## {}\n\n{}\n\n", workload.title(), workload.story());
    for (name, title) in plot::of(workload).iter().filter(|(name, _)| plots.contains(name)) {
        let _ = writeln!(text, "![{title}]({name})\n");
    }
    for (case, _) in &cases {
        text.push_str(&case_table(workload, results, case));
    }
    text.push_str(&counts_table(workload, results, &cases));
    text
}

fn case_table(workload: Workload, results: &Results, case: &str) -> String {
    let (id, baseline) = (workload.id(), baseline(workload));
    let systems = results.systems(id);
    let there: Vec<_> =
        systems.iter().filter(|(it, _)| results.of(id, case).any(|block| block.system == *it)).collect();
    let base = there.iter().find(|(it, _)| it == baseline).map(|(_, name)| name.as_str());
    let is_compared = base.is_some() && there.len() > 1;
    let (mut heading, mut line) = (String::from("| system |"), String::from("|---|"));
    for column in columns(workload) {
        let _ = write!(heading, " {} |", column.heading);
        line.push_str("---|");
        if is_compared && column.compared.is_some() {
            let _ = write!(heading, " {} is better by |", base.unwrap_or_default());
            line.push_str("---|");
        }
    }
    let mut text = format!("### {case}\n\n{heading}\n{line}\n");
    for (system, name) in there {
        let _ = write!(text, "| {name} |");
        for column in columns(workload) {
            let summary = results.summary(id, case, system, column.figure);
            let _ = write!(text, " {} |", summary.map_or("-".to_owned(), |it| show_figure(column.figure, it)));
            if let (true, Some(better)) = (is_compared, column.compared) {
                let (one, other) = if better == Better::More { (baseline, &**system) } else { (&**system, baseline) };
                let ratio = results.ratio(id, case, column.figure, one, other).filter(|_| system != baseline);
                let _ = write!(text, " {} |", ratio.map_or(String::new(), |ratio| format!("{} ×", show(ratio))));
            }
        }
        text.push('\n');
    }
    text + "\n"
}

/// What Fencepost writes and sends for one pair or one hand-over.
fn counts_table(workload: Workload, results: &Results, cases: &[(String, f64)]) -> String {
    let mut rows = String::new();
    for (case, _) in cases {
        for (system, name) in results.systems(workload.id()) {
            let cells = COUNTS.iter().map(|(figure, _)| results.summary(workload.id(), case, &system, figure));
            let cells: Vec<Option<Summary>> = cells.collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let _ = write!(rows, "| {case} | {name} |");
            for cell in cells {
                let _ = write!(rows, " {} |", cell.map_or("-".to_owned(), |cell| number(cell.median)));
            }
            rows.push('\n');
        }
    }
    if rows.is_empty() {
        return rows;
    }
    let headings: Vec<&str> = COUNTS.iter().map(|(_, heading)| *heading).collect();
    let of =
        if workload == Workload::HotLock { "a hand-over, the request that waits again included" } else { "a pair" };
    format!(
        "### What Fencepost writes and sends for {of}\n\n| | system | {} |\n|---|---|{}\n{rows}\n",
        headings.join(" | "),
        "---|".repeat(COUNTS.len())
    )
}

/// The progress line for a finished block.
pub(crate) fn progress(workload: Workload, block: &Block) -> String {
    let shown = columns(workload)
        .iter()
        .filter_map(|column| Some(format!("{} {}", number(*block.figures.get(column.figure)?), column.heading)));
    format!("{}, round {}, {}: {}", block.case, block.round, block.name, shown.collect::<Vec<_>>().join("; "))
}

/// Counts are shown without a fraction.
fn show_figure(figure: &str, summary: Summary) -> String {
    if figure.ends_with("_count") { count(summary.median) } else { show(summary) }
}

/// `12,345 (11,870 to 12,600)`, or only the median if least and most look the same.
pub(crate) fn show(summary: Summary) -> String {
    let Summary { median, least, most } = summary;
    match number(least) == number(most) {
        true => number(median),
        false => format!("{} ({} to {})", number(median), number(least), number(most)),
    }
}

/// Three significant digits (fewer below 0.1, more above 1,000), and commas between thousands.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 99.95 => count(value),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.unwrap_or_else(|| "an unnamed processor".to_owned());
    format!("{cores} cores of {model}, Linux {}", kernel.trim())
}

/// The day in UTC, as `2026-11-16`.
pub(crate) fn date(at: SystemTime) -> String {
    let days = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    let (mut year, mut left) = (1970, days);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::block;

    #[test]
    fn numbers_have_three_significant_digits() {
        let shown = [
            (0.0, "0"),
            (0.0123, "0.012"),
            (0.99951, "1.00"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (99.96, "100"),
            (1_234.5, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-12_345.0, "-12,345"),
        ];
        for (value, text) in shown {
            assert_eq!(number(value), text);
        }
        assert_eq!(show(Summary { median: 2.0, least: 1.0, most: 3.0 }), "2.00 (1.00 to 3.00)");
        assert_eq!(show(Summary { median: 2.0, least: 2.0, most: 2.0 }), "2.00");
    }

    #[test]
    fn dates_are_right_in_leap_years() {
        let at = |days: u64| date(UNIX_EPOCH + Duration::from_secs(days * 86_400 + 7));
        let days =
            [(0, "1970-01-01"), (58, "1970-02-28"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_773, "2026-11-16")];
        for (days, text) in days {
            assert_eq!(at(days), text);
        }
    }

    #[test]
    fn a_table_shows_ratios_to_the_baseline_that_are_above_one_where_it_is_better() {
        let figures = |rate, p50| [("pairs_per_second", rate), ("acquire_p50_ms", p50)];
        let mut report = Report::new(1, Duration::from_secs(1));
        report.results.blocks =
            vec![block("C = 1", BASELINE, 1, &figures(1_000.0, 0.5)), block("C = 1", "etcd", 1, &figures(500.0, 2.0))];
        report.notes.push("redlock was skipped: install redis-server".to_owned());
        let text = markdown(&report, &[]);
        let row = text.lines().find(|line| line.starts_with("| The etcd |")).expect("a row");
        assert_eq!(row, "| The etcd | 500 | 2.00 × | 2.00 | 4.00 × | - | - | - |");
        let row = text.lines().find(|line| line.starts_with(&format!("| The {BASELINE} |"))).expect("a row");
        assert_eq!(row, format!("| The {BASELINE} | 1,000 |  | 0.500 |  | - | - | - |"));
        assert!(text.contains("install redis-server") && text.contains("not measured"), "{text}");
    }
}
