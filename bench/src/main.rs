//! `fencepost-bench compare` and `fencepost-bench growth`: the command line of the benchmarks that start servers of their own.
//!
//! It is a program of its own, so that `fencepost` links neither the clients of the other systems nor the launchers of their servers. The
//! scripts `bench/compare` and `bench/growth` build it together with the `fencepost` that it measures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use fencepost_bench::catalogue::{self, Entry};
use fencepost_bench::compare;
use fencepost_bench::growth::{self, Curve};
use fencepost_bench::systems::fencepost::NodeProgram;
use fencepost_bench::workload::{Sizes, Workload};
use tokio::signal::unix::{SignalKind, signal};

const COMPARE_AFTER_HELP: &str = "\
Workloads:
  w1          free locks, many names, with 1 to 1,000 contenders
  programs    the same by programs with one thread and with several, with one connection and with four
  open        w1 at 50, 70 and 90% of each system's peak, at instants that are fixed in advance
  w2          one lock that all contenders want, with 2 to 10,000 contenders
  w3          readers and writers of one name
  efficiency  free locks of the efficiency tier, beside a Redis
  efficiency-programs  the same by programs with one thread and with several
  w6          leader killed, leadership transferred   (Fencepost alone, like the following ones)
  w8          restart with 1,000,000 locks
  w5          10,000 sessions die at once
  w4          100,000 idle sessions with 500,000 locks

Everything runs on this machine, in temporary directories (TMPDIR) and on free ports of the loopback, and is removed at the end. \
A system that is not installed is skipped, and the report says what to install. The output directory gets report.md, results.jsonl \
with every block, and plots as SVG.";

const GROWTH_AFTER_HELP: &str = "\
Curves:
  handover  a hand-over of one lock, with 2 to 100,000 contenders
  locks     a pair of acquire and release, with 1,000 to 1,000,000 other locks held
  memory    bytes of a node for a session, a lock and a waiter, with 1,000 to 100,000 of each
  restart   from the restart of a killed node to the first grant, with 10,000 to 1,000,000 locks
  failover  ms without a grant, over 30 kills of the leader of three
  storms    1,000 to 50,000 sessions that open, close and expire at once

Everything runs on this machine, in temporary directories (TMPDIR) and on free ports of the loopback, and is removed at the end. The
output directory gets growth.md, growth.jsonl with every point, and plots as SVG. The largest sizes need some gigabytes of memory;
--most leaves them out.";

/// Measure Fencepost: beside other lock systems, or how its costs grow
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The `fencepost` program whose nodes are measured
    #[arg(long, value_name = "PATH", global = true, default_value = "target/release/fencepost")]
    fencepost: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Compare(CompareArgs),
    Growth(GrowthArgs),
}

/// Compare Fencepost with other lock systems, all on this machine
///
/// Starts each system as its users would run it, gives all of them the same work in short blocks that take turns, and stops
/// them. Takes about half an hour; --quick shows in a few minutes whether everything works.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPARE_AFTER_HELP)]
struct CompareArgs {
    /// Only these systems, with commas between
    #[arg(long, value_name = "ID,...", value_delimiter = ',', value_parser = catalogue::find, help = systems_help())]
    systems: Vec<&'static Entry>,
    /// Only these workloads, with commas between [default: all]
    #[arg(long, value_name = "W,...", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// How often every block is repeated, after one for warming up [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: Option<u16>,
    /// How long a block is, in milliseconds [default: 1500, with --quick 500]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=3_600_000))]
    block_ms: Option<u32>,
    /// Small sizes and short blocks, to see whether everything works. The figures say little
    #[arg(long)]
    quick: bool,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
}

/// Measure what grows with waiters, locks and sessions, and what does not
///
/// Starts clusters of its own on this machine, one curve after the other, and stops them. Takes about half an hour; --quick shows
/// in a minute or two whether everything works.
#[derive(Debug, clap::Args)]
#[command(after_help = GROWTH_AFTER_HELP)]
struct GrowthArgs {
    /// Only these curves, with commas between [default: all]
    #[arg(long, value_name = "CURVE,...", value_delimiter = ',')]
    curves: Vec<Curve>,
    /// Leave out sizes above this [default: none, with --quick 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    most: Option<u32>,
    /// How often every point is measured [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: Option<u16>,
    /// How long a block of load is, in milliseconds [default: 3000, with --quick 500]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(10..=3_600_000))]
    block_ms: Option<u32>,
    /// How often the leader is killed [default: 30, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    kills: Option<u16>,
    /// Small sizes and short blocks, to see whether everything works. The figures say little
    #[arg(long)]
    quick: bool,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
}

fn systems_help() -> String {
    let ids: Vec<&str> = catalogue::ALL.iter().map(|entry| entry.id).collect();
    format!("Only these systems, with commas between: {} [default: all]", ids.join(", "))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command {
        Command::Compare(command) => compare(&args.fencepost, command).await,
        Command::Growth(command) => growth(&args.fencepost, command).await,
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            tell(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn compare(fencepost: &Path, args: CompareArgs) -> Result<ExitCode> {
    let quick = args.quick;
    let options = compare::Options {
        systems: args.systems,
        workloads: if args.workloads.is_empty() { Workload::ALL.to_vec() } else { args.workloads },
        rounds: args.rounds.map_or(if quick { 2 } else { 5 }, usize::from),
        block: Duration::from_millis(args.block_ms.unwrap_or(if quick { 500 } else { 1_500 }).into()),
        sizes: if quick { Sizes::quick() } else { Sizes::full() },
        out: args.out,
        program: NodeProgram::at(fencepost)?,
    };
    let Some(finished) = measured(&options.out, compare::run(&options, &mut tell)).await? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    println!("{} blocks measured; the report is {}", finished.blocks, finished.report.display());
    Ok(ExitCode::SUCCESS)
}

async fn growth(fencepost: &Path, args: GrowthArgs) -> Result<ExitCode> {
    let or = |full, quick| if args.quick { quick } else { full };
    let options = growth::Options {
        curves: if args.curves.is_empty() { Curve::ALL.to_vec() } else { args.curves },
        most: args.most.map_or(or(usize::MAX, 100), |most| most as usize),
        rounds: args.rounds.map_or(or(3, 1), usize::from),
        block: Duration::from_millis(args.block_ms.unwrap_or(if args.quick { 500 } else { 3_000 }).into()),
        kills: args.kills.map_or(or(30, 2), usize::from),
        out: args.out,
        program: NodeProgram::at(fencepost)?,
    };
    let Some(finished) = measured(&options.out, growth::run(&options, &mut tell)).await? else {
        return Ok(ExitCode::from(INTERRUPTED));
    };
    println!("{} points measured; the report is {}", finished.points, finished.report.display());
    match finished.notes.len() {
        0 => Ok(ExitCode::SUCCESS),
        missing => anyhow::bail!("{missing} curves are not complete: the report says why"),
    }
}

/// Ctrl-C ended the measurement: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Measures until it is done. `None` if a signal ended it first: dropping the measurement ends all servers that it started.
async fn measured<T>(out: &Path, measure: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    if cfg!(debug_assertions) {
        tell("this is a debug build: its figures say nothing about Fencepost");
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        finished = measure => finished.map(Some),
        _ = async { tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} } } => {
            tell(&format!("interrupted; the results until then are in {}", out.display()));
            Ok(None)
        }
    }
}

fn tell(text: &str) {
    eprintln!("fencepost-bench: {text}");
}
