//! `fencepost backends`: the lock systems that the library speaks to, and what each of them promises.

use fencepost_backends::table::{self, Row, word};
use fencepost_backends::{Kept, Promise, System};

use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};

const AFTER_HELP: &str = "\
yes  the promise is kept
if   it is kept on a condition: `fencepost backends NAME` says on which
no   it is not kept, and asking for it is refused: `fencepost backends NAME` says why

Examples:
  fencepost backends                 all systems, in one table
  fencepost backends redis           one of them, with conditions and reasons
  fencepost backends -o json         for programs";

/// Show which lock systems the library speaks to, and what each promises
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Only this system: redis, etcd, postgres and so on
    system: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &Args) -> Result {
    let fits = |system: &System| args.system.as_ref().is_none_or(|said| is_called(*system, said));
    let systems: Vec<System> = System::ALL.into_iter().filter(fits).collect();
    if systems.is_empty() {
        let mut known: Vec<&str> = System::ALL.into_iter().map(scheme).collect();
        known.dedup();
        let said = args.system.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!("{said:?} is no lock system: known are {}", known.join(", "))));
    }
    match (args.output.output, args.system.is_some()) {
        (Format::Json, _) => output::json(&systems.into_iter().map(table::row).collect::<Vec<Row>>()),
        (Format::Table, true) => systems.into_iter().try_for_each(describe),
        (Format::Table, false) => {
            let heading = [
                "SYSTEM",
                "TIER",
                "LINEAR",
                "TOKEN",
                "FAIL-OVER",
                "RELEASE",
                "DEADLINE",
                "TTL",
                "SHARED",
                "FIFO",
                "TOLD",
                "SEVERAL",
            ];
            let rows: Vec<[String; 12]> = systems.into_iter().map(row).collect();
            output::table(heading, &rows, "")
        }
    }
}

/// Whether somebody means this system by what was said.
fn is_called(system: System, said: &str) -> bool {
    scheme(system).eq_ignore_ascii_case(said) || system.name().to_lowercase().starts_with(&said.to_lowercase())
}

/// How its addresses begin.
fn scheme(system: System) -> &'static str {
    system.address().split("://").next().unwrap_or_default()
}

fn row(system: System) -> [String; 12] {
    let tier = if system.is_for_correctness() { "correctness" } else { "efficiency" };
    let mut cells = Promise::ALL.iter().map(|promise| word(system.keeps(*promise)).to_owned());
    let mut cell = || cells.next().unwrap_or_default();
    let [a, b, c, d, e, f, g, h, i, j] = std::array::from_fn(|_| cell());
    [system.name().to_owned(), tier.to_owned(), a, b, c, d, e, f, g, h, i, j]
}

fn describe(system: System) -> Result {
    output::line(system.name())?;
    output::line(&format!("  address  {}", system.address()))?;
    output::line(&format!("  how      {}", system.how()))?;
    output::line(&format!("  tier     {}", system.tier()))?;
    output::line(&format!("  token    {}", system.token().unwrap_or("none")))?;
    for promise in Promise::ALL {
        let kept = system.keeps(promise);
        let remark = match kept {
            Kept::Always => promise.meaning().to_owned(),
            Kept::If(condition) => format!("if {condition}: {}", promise.meaning()),
            Kept::Never(why) => why.to_owned(),
        };
        output::line(&format!("  {:<3}  {:<26}{remark}", word(kept), promise.name()))?;
    }
    Ok(())
}
