//! `fencepost bench growth`: how the cost of one thing grows with the number of others, on clusters of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencepost_bench::growth::{self, Curve, Options};

use crate::command::bench::{block, measured};
use crate::failure::{Failure, Result};
use crate::output;
use crate::own::own_command;

const AFTER_HELP: &str = "\
Curves:
  handover  a hand-over of one lock, with 2 to 100,000 who want it
  locks     a pair of acquire and release, with 1,000 to 1,000,000 other locks held
  memory    bytes of a node for a session, a lock and a waiter, with 1,000 to 100,000 of each
  restart   from the start of a killed node to the first grant, with 10,000 to 1,000,000 locks
  failover  ms without a grant, over 30 kills of the leader of three
  storms    1,000 to 50,000 sessions that open, close and expire at once

Everything runs on this machine, in temporary directories (TMPDIR) and on free ports of the loopback, and is gone at the end. The
output directory gets growth.md, growth.jsonl with every point, and plots as SVG. The largest sizes need some gigabytes of memory;
--most leaves them out.";

/// See what grows with waiters, locks and sessions, and what does not
///
/// Starts clusters of its own on this machine, one curve after the other, and stops them. Takes about half an hour; --quick shows
/// in a minute or two whether everything works.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Only these curves, with commas between [default: all]
    #[arg(long, value_name = "CURVE,...", value_delimiter = ',')]
    curves: Vec<Curve>,
    /// Leave out sizes above this [default: none, with --quick 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    most: Option<u32>,
    /// How often every point is measured [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: Option<u16>,
    /// How long a block of load is [default: 3s, with --quick 500ms]
    #[arg(long, value_name = "DURATION", value_parser = block)]
    block: Option<Duration>,
    /// How often the leader is killed [default: 30, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    kills: Option<u16>,
    /// Small sizes and short blocks: to see that it works; the figures say little
    #[arg(long)]
    quick: bool,
    /// Where the report goes
    #[arg(long, value_name = "DIR", default_value = "fencepost-growth")]
    out: PathBuf,
}

/// Gives the exit code.
pub(crate) async fn run(args: Args) -> Result<u8> {
    let or = |full, quick| if args.quick { quick } else { full };
    let options = Options {
        curves: if args.curves.is_empty() { Curve::ALL.to_vec() } else { args.curves },
        most: args.most.map_or(or(usize::MAX, 100), |most| most as usize),
        rounds: args.rounds.map_or(or(3, 1), usize::from),
        block: args.block.unwrap_or(Duration::from_millis(if args.quick { 500 } else { 3_000 })),
        kills: args.kills.map_or(or(30, 2), usize::from),
        out: args.out,
        command: Arc::new(|| own_command("serve")),
    };
    let mut tell = |text: &str| output::say(&format!("fencepost: {text}"));
    let finished = measured(&options.out, growth::run(&options, &mut tell)).await?;
    output::line(&format!("{} points measured; the report is {}", finished.points, finished.report.display()))?;
    match finished.notes.len() {
        0 => Ok(0),
        missing => Err(Failure::failed(format!("{missing} curves are not complete: the report says why"))),
    }
}
