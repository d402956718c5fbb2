//! The report of the curves: for each an explanation, a plot and a table. It is written from the points alone and measures nothing.

use std::fmt::Write;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::Curve;
use crate::figures::{Block, Results, Summary};
use crate::plot::{self, Series};
use fencepost_load::count;

use crate::report::{date, machine, number, show};

/// Width of a row in the table of gaps, in milliseconds.
const GAP_STEP_MS: f64 = 250.0;

/// How the report shows a curve.
struct Shown {
    title: &'static str,
    story: &'static str,
    /// What the sizes count: heading of the first column, and label of the axis.
    size: &'static str,
    /// Figures and their headings.
    columns: &'static [(&'static str, &'static str)],
    plots: &'static [Plot],
}

struct Plot {
    file: &'static str,
    title: &'static str,
    /// Figures and their names in the plot.
    lines: &'static [(&'static str, &'static str)],
}

const fn shown(curve: Curve) -> Shown {
    match curve {
        Curve::HandOver => Shown {
            title: "A hand-over, over the number of contenders",
            story: "Three nodes. All contenders want one lock through real clients: one holds it, the others wait, and each asks for it again as \
                    soon as it has given it back. A hand-over counts from the call of release until the next holder has the lock. Log entries and \
                    pushes are those of the whole cluster. They include the request of the contender that waits again.",
            size: "contenders",
            columns: &[
                ("handovers_per_second", "hand-overs/s"),
                ("handover_p50_ms", "p50, ms"),
                ("handover_p99_ms", "p99, ms"),
                ("servers_cpu_us", "CPU a hand-over, servers, µs"),
                ("entries_per_operation", "log entries a hand-over"),
                ("pushes_per_operation", "pushes a hand-over"),
            ],
            plots: &[Plot {
                file: "growth-handover.svg",
                title: "A hand-over, ms",
                lines: &[("handover_p50_ms", "p50"), ("handover_p99_ms", "p99")],
            }],
        },
        Curve::Locks => Shown {
            title: "A pair of acquire and release, over the locks that others hold",
            story: "Three nodes. 64 contenders take and release free locks in a closed loop. Other sessions hold the number of locks in the first column, and do nothing.",
            size: "locks held",
            columns: &[
                ("pairs_per_second", "pairs/s"),
                ("acquire_p50_ms", "acquire p50, ms"),
                ("acquire_p99_ms", "p99, ms"),
                ("servers_cpu_us", "CPU a pair, servers, µs"),
                ("all_cpu_us", "CPU a pair, with the load, µs"),
            ],
            plots: &[Plot {
                file: "growth-locks.svg",
                title: "Processor time a pair, µs",
                lines: &[("servers_cpu_us", "servers"), ("all_cpu_us", "with the load")],
            }],
        },
        Curve::Memory => Shown {
            title: "Memory of a node",
            story: "One node gets the number of locks in the first column, then as many waiters for one more lock, then as many sessions that have held \
                    a lock and hold none now. Bytes are the growth of the process, as the kernel counts it: they include the log in memory, recent events, buffers, \
                    and memory that the allocator keeps. The next column has the bytes written to the log for each. `cargo test -p fencepost-core \
                    --test memory` counts exactly what the lock state alone allocates.",
            size: "of each",
            columns: &[
                ("lock_bytes", "bytes a lock"),
                ("lock_log_bytes", "of log"),
                ("waiter_bytes", "bytes a waiter"),
                ("waiter_log_bytes", "of log"),
                ("session_bytes", "bytes a session"),
                ("session_log_bytes", "of log"),
                ("resident_bytes", "the whole process, bytes"),
            ],
            plots: &[Plot {
                file: "growth-memory.svg",
                title: "Bytes of the process for each",
                lines: &[("session_bytes", "session"), ("lock_bytes", "lock"), ("waiter_bytes", "waiter")],
            }],
        },
        Curve::Restart => Shown {
            title: "A restart, over the number of locks to restore",
            story: "One node is killed with -9 and started again. Times count from the start of the process until it listens, and until a client is \
                    granted a lock. The holders of the locks reconnect meanwhile.",
            size: "locks",
            columns: &[
                ("locks_count", "locks held when it was killed"),
                ("disk_bytes", "log and snapshots, bytes"),
                ("listens_ms", "listens after, ms"),
                ("serves_ms", "first grant after, ms"),
            ],
            plots: &[Plot {
                file: "growth-restart.svg",
                title: "From the start to the first grant, ms",
                lines: &[("serves_ms", "first grant"), ("listens_ms", "listens")],
            }],
        },
        Curve::FailOver => Shown {
            title: "The leader is killed, again and again",
            story: "Three nodes. The leader is killed with -9 while a client takes and releases a lock in a loop. The gap is the time from the kill to the \
                    next grant. Then the node is started again. When all three nodes vote, the next leader is killed.",
            size: "",
            columns: &[("gap_ms", "ms without a grant")],
            plots: &[],
        },
        Curve::Storms => Shown {
            title: "Sessions that open, close and expire at once",
            story: "Three nodes. The number of sessions in the first column open at once, each with a lock of its own. Then all are closed at once. Then as many others fall \
                    silent at once. Opening and closing end when every client has its answer. Expiry counts from the last deadline until all sessions \
                    are gone. Entries are the log entries that are written meanwhile.",
            size: "sessions",
            columns: &[
                ("open_ms", "all open after, ms"),
                ("open_entries_count", "entries"),
                ("close_ms", "all closed after, ms"),
                ("close_entries_count", "entries"),
                ("expire_ms", "all expired, ms after the last deadline"),
                ("expire_entries_count", "entries"),
            ],
            plots: &[Plot {
                file: "growth-storms.svg",
                title: "Until all sessions are open, or closed, ms",
                lines: &[("open_ms", "open"), ("close_ms", "closed")],
            }],
        },
    }
}

pub(super) fn title(curve: Curve) -> &'static str {
    shown(curve).title
}

/// The progress line for a measured point.
pub(super) fn progress(curve: Curve, block: &Block) -> String {
    let Shown { size, columns, .. } = shown(curve);
    let figures = columns
        .iter()
        .filter_map(|(figure, heading)| Some(format!("{} {heading}", number(*block.figures.get(*figure)?))));
    let case = if size.is_empty() { String::new() } else { format!("{} {size}, ", block.case) };
    format!("{case}round {}: {}", block.round, figures.collect::<Vec<_>>().join("; "))
}

/// Writes `growth.md` and the plots.
///
/// # Errors
/// If the directory cannot be written.
pub(super) fn write(results: &Results, notes: &[String], out: &Path) -> Result<()> {
    let save = |name: &str, text: &str| {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let mut plots = Vec::new();
    for curve in Curve::ALL {
        for plot in shown(curve).plots {
            let series = series(curve, results, plot);
            if !series.is_empty() {
                save(plot.file, &plot::draw(plot.title, shown(curve).size, &series))?;
                plots.push(plot.file);
            }
        }
    }
    save("growth.md", &markdown(results, notes, &plots))
}

/// The points of a curve: each size, with the blocks of its rounds.
fn points(curve: Curve, results: &Results) -> Vec<(f64, Vec<&Block>)> {
    let of = |case: &str| results.blocks.iter().filter(|it| it.workload == curve.id() && it.case == case).collect();
    results.cases(curve.id()).into_iter().map(|(case, size)| (size, of(&case))).collect()
}

fn summary(rounds: &[&Block], figure: &str) -> Option<Summary> {
    Summary::of(rounds.iter().filter_map(|block| block.figures.get(figure).copied()))
}

fn series(curve: Curve, results: &Results, plot: &Plot) -> Vec<Series> {
    let line = |(figure, name): &(&str, &str)| {
        let points = points(curve, results).into_iter().filter_map(|(size, rounds)| {
            let Summary { median, least, most } = summary(&rounds, figure)?;
            // A logarithmic axis has no zero.
            (least > 0.0).then_some((size, median, least, most))
        });
        Series { name: (*name).to_owned(), points: points.collect() }
    };
    plot.lines.iter().map(line).filter(|series| !series.points.is_empty()).collect()
}

fn markdown(results: &Results, notes: &[String], plots: &[&str]) -> String {
    let mut text = String::from("# How Fencepost grows\n\n");
    let _ = writeln!(
        text,
        "Measured on {} on {}. Nodes and load share this machine. A figure is the median of the rounds, with the least and the most in brackets.\n",
        date(SystemTime::now()),
        machine()
    );
    text.push_str("| probe of this machine during the run | µs |\n|---|---|\n");
    for (figure, what) in [
        ("probe_disk_us", "a write of 4 KiB and its sync"),
        ("probe_loopback_us", "one byte there and back over loopback"),
        ("probe_commit_us", "a bare commit of three nodes: the same hops and syncs, nothing computed"),
    ] {
        let all: Vec<&Block> = results.blocks.iter().collect();
        let _ = writeln!(text, "| {what} | {} |", summary(&all, figure).map_or("-".to_owned(), show));
    }
    text.push('\n');
    for curve in Curve::ALL {
        text.push_str(&section(curve, results, plots));
    }
    if !notes.is_empty() {
        text.push_str("## Not measured\n\n");
        for note in notes {
            let _ = writeln!(text, "- {note}");
        }
    }
    text.trim_end().to_owned() + "\n"
}

fn section(curve: Curve, results: &Results, drawn: &[&str]) -> String {
    let points = points(curve, results);
    if points.is_empty() {
        return String::new();
    }
    let Shown { title, story, size, columns, plots } = shown(curve);
    let mut text = format!("## {title}\n\n{story}\n\n");
    for plot in plots.iter().filter(|plot| drawn.contains(&plot.file)) {
        let _ = writeln!(text, "![{}]({})\n", plot.title, plot.file);
    }
    if curve == Curve::FailOver {
        return text + &gaps(&points[0].1);
    }
    let headings: Vec<&str> = columns.iter().map(|(_, heading)| *heading).collect();
    let _ = writeln!(text, "| {size} | {} |\n|---|{}", headings.join(" | "), "---|".repeat(columns.len()));
    for (size, rounds) in points {
        let cells = columns.iter().map(|(figure, _)| summary(&rounds, figure).map_or("-".to_owned(), show));
        let _ = writeln!(text, "| {} | {} |", count(size), cells.collect::<Vec<_>>().join(" | "));
    }
    text + "\n"
}

/// The median, worst and shortest gap, and a histogram.
fn gaps(rounds: &[&Block]) -> String {
    let all: Vec<f64> = rounds.iter().filter_map(|block| block.figures.get("gap_ms").copied()).collect();
    let Some(Summary { median, least, most }) = Summary::of(all.iter().copied()) else { return String::new() };
    let mut text = format!(
        "{} kills: median {} ms, worst {} ms, shortest {} ms.\n\n| ms without a grant | kills | |\n|---|---|---|\n",
        all.len(),
        number(median),
        number(most),
        number(least)
    );
    let step = |gap: f64| (gap / GAP_STEP_MS).floor() as usize;
    for at in step(least)..=step(most) {
        let many = all.iter().filter(|gap| step(**gap) == at).count();
        let (from, to) = (at as f64 * GAP_STEP_MS, (at + 1) as f64 * GAP_STEP_MS);
        let _ = writeln!(text, "| {} to {} | {many} | {} |", count(from), count(to), "█".repeat(many));
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn block(curve: Curve, size: usize, round: usize, figures: &[(&str, f64)]) -> Block {
        let figures: BTreeMap<_, _> = figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Block {
            workload: curve.id().to_owned(),
            case: count(size as f64),
            parameter: size as f64,
            system: "fencepost-3".to_owned(),
            name: "Fencepost x3".to_owned(),
            round,
            figures,
        }
    }

    #[test]
    fn a_row_has_the_median_of_its_rounds_and_a_curve_that_was_not_measured_has_no_section() {
        let rounds = [(1, 0.4), (2, 0.6), (3, 0.5)];
        let blocks = rounds.map(|(round, p50)| block(Curve::HandOver, 1_000, round, &[("handover_p50_ms", p50)]));
        let text = markdown(&Results { blocks: blocks.to_vec() }, &["locks was not measured".to_owned()], &[]);
        assert!(text.contains("| 1,000 | - | 0.500 (0.400 to 0.600) | - | - | - | - |"), "{text}");
        assert!(text.contains("- locks was not measured") && !text.contains(title(Curve::Storms)), "{text}");
    }

    #[test]
    fn gaps_are_counted_by_their_length_and_the_worst_is_named() {
        let blocks: Vec<Block> = [1_010.0, 1_240.0, 1_900.0]
            .into_iter()
            .enumerate()
            .map(|(kill, gap)| block(Curve::FailOver, 0, kill + 1, &[("gap_ms", gap)]))
            .collect();
        let text = markdown(&Results { blocks }, &[], &[]);
        assert!(text.contains("3 kills: median 1,240 ms, worst 1,900 ms, shortest 1,010 ms."), "{text}");
        assert!(text.contains("| 1,000 to 1,250 | 2 | ██ |") && text.contains("| 1,250 to 1,500 | 0 |  |"), "{text}");
    }

    #[test]
    fn every_plot_has_the_lines_that_were_measured() {
        let figures = [("open_ms", 10.0), ("close_ms", 0.0)];
        let blocks = vec![block(Curve::Storms, 100, 1, &figures), block(Curve::Storms, 1_000, 1, &figures)];
        let results = Results { blocks };
        let plot = &shown(Curve::Storms).plots[0];
        let series = series(Curve::Storms, &results, plot);
        assert_eq!(series.len(), 1, "a logarithmic axis has no zero");
        let svg = plot::draw(plot.title, "sessions", &series);
        assert!(svg.matches("<polyline").count() == 1 && !svg.contains("NaN"), "{svg}");
    }
}
