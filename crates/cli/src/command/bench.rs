//! `fencepost bench`: puts load on a running cluster, and prints throughput and latencies. `fencepost-load` makes the load.

use std::time::Duration;

use fencepost_load::live::{self, Load, Outcome, Percentiles};

use crate::connect::{self, ServerArgs};
use crate::failure::Result;
use crate::output::{self, Format, OutputArgs};
use crate::own::interrupted;
use crate::settings;

const AFTER_HELP: &str = "\
Every contender takes a lock, gives it back, and takes the next. All names begin with fencepost-bench/, so other locks \
are not touched. Ctrl-C ends it early, and prints what was measured until then.

Examples:
  fencepost bench                              64 contenders for 10 s
  fencepost bench --contenders 1               how long one acquire takes
  fencepost bench --shared-names --seconds 30  contenders that wait for each other

bench/compare in the source tree measures Fencepost beside etcd, ZooKeeper, Redis and Postgres.";

/// Measure how fast a running cluster is
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// How many contenders take locks at the same time
    #[arg(long, short, default_value_t = 64, value_name = "N", value_parser = contenders)]
    contenders: usize,
    /// How long to measure, in seconds
    #[arg(long, short, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// All contenders want the same eight locks, and wait for each other
    #[arg(long)]
    shared_names: bool,
    /// Each contender has a connection of its own, as programs on many machines do
    #[arg(long)]
    separate_connections: bool,
    /// Locks of the efficiency tier: in the leader's memory, without a token
    #[arg(long, conflicts_with = "separate_connections")]
    efficiency: bool,
    /// Each lock is for a job of its own, which is begun and completed. The cluster remembers each for a minute
    #[arg(long, conflicts_with_all = ["efficiency", "shared_names"])]
    jobs: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

fn contenders(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(many @ 1..=100_000) => Ok(many),
        _ => Err("write a number from 1 to 100000".to_owned()),
    }
}

/// Returns the exit code.
pub(crate) async fn run(args: Args) -> Result<u8> {
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
        jobs: args.jobs,
        // Unique, so that two benchmarks at the same time do not block each other.
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
