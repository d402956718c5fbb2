//! `fencepost bench`: loads a cluster that runs. `fencepost bench compare`: Fencepost beside other lock systems, on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fencepost_bench::catalogue::{self, Entry};
use fencepost_bench::compare::{self, Options};
use fencepost_bench::live::{self, Load, Outcome, Percentiles};
use fencepost_bench::workload::{Sizes, Workload};

use crate::command::growth;
use crate::connect::{self, ServerArgs};
use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::own::{interrupted, own_command};
use crate::{duration, settings};

const AFTER_HELP: &str = "\
Every contender takes a lock, gives it back, and takes the next; the names begin with fencepost-bench/, and nobody else's \
locks are touched. Ctrl-C ends it early, with what was measured until then.

Examples:
  fencepost bench                              64 contenders for 10 s
  fencepost bench --contenders 1               how long one acquire takes
  fencepost bench --shared-names --seconds 30  contenders that wait for each other
  fencepost bench compare --quick              Fencepost beside etcd, Redis and others: no cluster is needed
  fencepost bench growth --quick               what grows with waiters, locks and sessions, and what does not";

const COMPARE_AFTER_HELP: &str = "\
Workloads:
  w1          free locks, many names, with 1 to 1,000 contenders
  open        the same at 50, 70 and 90% of each one's peak, at instants that are fixed beforehand
  w2          one lock that all want, with 2 to 10,000 contenders
  w3          readers and writers of one name
  efficiency  free locks of the efficiency tier, beside a Redis
  w6          leader killed, lead handed over        (Fencepost alone, as those that follow)
  w8          starting again with 1,000,000 locks
  w5          10,000 sessions die at once
  w4          100,000 idle sessions with 500,000 locks

Everything runs on this machine, in temporary directories (TMPDIR) and on free ports of the loopback, and is gone at the end. \
What is not installed is skipped, and the report says what to install. The output directory gets report.md, results.jsonl with \
every block, and plots as SVG.";

/// Load a running cluster and see how fast it is; or compare Fencepost with other systems
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    compare: Option<Command>,
    /// How many take locks at a time
    #[arg(long, short, default_value_t = 64, value_name = "N", value_parser = contenders)]
    contenders: usize,
    /// For how long
    #[arg(long, short, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// All want the same eight locks, and wait for each other
    #[arg(long)]
    shared_names: bool,
    /// Each contender has a connection of its own, as programs on many machines do
    #[arg(long)]
    separate_connections: bool,
    /// Locks of the efficiency tier: in the leader's memory, without a token
    #[arg(long, conflicts_with = "separate_connections")]
    efficiency: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Compare(CompareArgs),
    Growth(growth::Args),
}

/// Compare Fencepost with other lock systems, all on this machine
///
/// Starts each system as its users would run it, gives all of them the same work in short blocks that take turns, and stops
/// them. Takes about half an hour; --quick shows in a few minutes whether everything works.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPARE_AFTER_HELP)]
struct CompareArgs {
    /// Only these systems, with commas between [default: all]
    #[arg(long, value_name = "ID,...", value_delimiter = ',', value_parser = system, help = systems_help())]
    systems: Vec<&'static Entry>,
    /// Only these workloads, with commas between [default: all]
    #[arg(long, value_name = "W,...", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// How often every block is repeated, after one for warming up [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: Option<u16>,
    /// How long a block is [default: 1.5s, with --quick 500ms]
    #[arg(long, value_name = "DURATION", value_parser = block)]
    block: Option<Duration>,
    /// Small sizes and short blocks: to see that it works; the figures say little
    #[arg(long)]
    quick: bool,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "fencepost-bench")]
    out: PathBuf,
}

fn systems_help() -> String {
    let ids: Vec<&str> = catalogue::ALL.iter().map(|entry| entry.id).collect();
    format!("Only these systems, with commas between: {} [default: all]", ids.join(", "))
}

fn contenders(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(many @ 1..=100_000) => Ok(many),
        _ => Err("say how many take locks at a time: from 1 to 100000".to_owned()),
    }
}

fn system(text: &str) -> std::result::Result<&'static Entry, String> {
    catalogue::find(text)
}

pub(crate) fn block(text: &str) -> std::result::Result<Duration, String> {
    let block = duration::parse(text)?;
    if block < Duration::from_millis(10) || block > Duration::from_secs(3_600) {
        return Err("a block is from 10ms to 1h long: write 1.5s, say".to_owned());
    }
    Ok(block)
}

/// Gives the exit code.
pub(crate) async fn run(args: Args) -> Result<u8> {
    match args.compare {
        Some(Command::Compare(args)) => compare(args).await,
        Some(Command::Growth(args)) => growth::run(args).await,
        None => load(args).await,
    }
}

async fn load(args: Args) -> Result<u8> {
    let (builder, nodes) = args.server.builder()?;
    let builder = builder.name("fencepost bench");
    let mut interrupted = std::pin::pin!(interrupted()?);
    let client = tokio::select! {
        connected = builder.clone().connect() => connected.map_err(|error| connect::unreachable(&nodes, error))?,
        code = &mut interrupted => return Ok(code),
    };
    let load = Load {
        contenders: args.contenders,
        length: Duration::from_secs(args.seconds),
        shared_names: args.shared_names,
        separate_connections: args.separate_connections,
        efficiency: args.efficiency,
        // Two who do this at a time do not stand in each other's way.
        prefix: format!("fencepost-bench/{}-{}", settings::host_name(), std::process::id()),
    };
    let mut code = 0;
    let stop = async { code = interrupted.await };
    let outcome =
        live::run(builder, client, &load, stop, &mut |text| output::say(&format!("fencepost: {text}"))).await?;
    match args.output.output {
        Format::Json => output::json(&outcome)?,
        Format::Table => print(&outcome)?,
    }
    Ok(code)
}

fn print(outcome: &Outcome) -> Result {
    let Outcome { contenders, seconds, pairs, pairs_per_second, acquire_ms, release_ms } = outcome;
    output::line(&format!(
        "{pairs} locks taken and given back by {contenders} contenders in {seconds:.1} s: {pairs_per_second:.0} pairs/s"
    ))?;
    let row = |what: &str, took: &Percentiles| {
        let Percentiles { p50, p90, p99, p999, longest } = took;
        let ms = |ms: &f64| format!("{ms:.3} ms");
        [what.to_owned(), ms(p50), ms(p90), ms(p99), ms(p999), ms(longest)]
    };
    let rows = [row("acquire", acquire_ms), row("release", release_ms)];
    output::table(["", "P50", "P90", "P99", "P99.9", "LONGEST"], &rows, "")
}

async fn compare(args: CompareArgs) -> Result<u8> {
    let quick = args.quick;
    let options = Options {
        systems: args.systems,
        workloads: if args.workloads.is_empty() { Workload::ALL.to_vec() } else { args.workloads },
        rounds: args.rounds.map_or(if quick { 2 } else { 5 }, usize::from),
        block: args.block.unwrap_or(Duration::from_millis(if quick { 500 } else { 1_500 })),
        sizes: if quick { Sizes::quick() } else { Sizes::full() },
        out: args.out,
        command: Arc::new(|| own_command("serve")),
    };
    let mut tell = |text: &str| output::say(&format!("fencepost: {text}"));
    let finished = measured(&options.out, compare::run(&options, &mut tell)).await?;
    output::line(&format!("{} blocks measured; the report is {}", finished.blocks, finished.report.display()))?;
    Ok(0)
}

/// Measures until it is done, or until somebody breaks it off: whatever was started ends when the measurement is dropped.
pub(crate) async fn measured<T>(out: &Path, measure: impl Future<Output = anyhow::Result<T>>) -> Result<T> {
    if cfg!(debug_assertions) {
        output::say("fencepost: this is a debug build: its figures say nothing about Fencepost");
    }
    let interrupted = interrupted()?;
    tokio::select! {
        finished = measure => Ok(finished?),
        code = interrupted => {
            let message = format!("broken off; what was measured until then is in {}", out.display());
            Err(Failure { code, message })
        }
    }
}
