//! `fencepost backends`: lists the lock systems that the library supports, and what each promises. It connects to none of them.

use fencepost_backends::table::{self, Row, word};
use fencepost_backends::{Kept, Promise, System};

use crate::failure::{Failure, Result};
use crate::output::{self, Format, OutputArgs};
use crate::similar;

const AFTER_HELP: &str = "\
yes  the promise is kept
if   the promise is kept on a condition: `fencepost backends NAME` shows it
no   the promise is not kept, and a request for it is refused: `fencepost backends NAME` says why

Examples:
  fencepost backends                 all systems, and what each promises
  fencepost backends redis           one of them, with conditions and reasons
  fencepost backends -o json         for programs";

/// List the lock systems that the library supports, and what each promises
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Only this system, such as redis, etcd or postgres
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
        let hint = similar::suggestion(said, known.iter().copied());
        return Err(Failure::usage(format!("unknown lock system {said:?}{hint}; write one of {}", known.join(", "))));
    }
    match (args.output.output, args.system.is_some()) {
        (Format::Json, _) => output::json(&systems.into_iter().map(table::row).collect::<Vec<Row>>()),
        (Format::Table, true) => systems.into_iter().try_for_each(describe),
        (Format::Table, false) => overview(),
    }
}

/// The promises about locks in two tables, then what only Fencepost has: one table would not fit on a terminal of 80 columns.
fn overview() -> Result {
    const { assert!(!Promise::ALL[10].is_native() && Promise::ALL[11].is_native(), "each lock promise has a column") }
    let heading = ["SYSTEM", "TIER", "LINEAR", "TOKEN", "FAIL-OVER", "RELEASE"];
    output::table(heading, &System::ALL.map(|system| row(system, Some(tier(system)), 0)), "")?;
    output::line("")?;
    let heading = ["SYSTEM", "DEADLINE", "TTL", "SHARED", "FIFO", "TOLD", "SEVERAL", "PATHS"];
    output::table(heading, &System::ALL.map(|system| row(system, None, 4)), "")?;
    output::line("")?;
    let natives = Promise::ALL.into_iter().filter(|promise| promise.is_native());
    let cell = |system: System, promise| word(system.keeps(promise)).to_owned();
    let rows = natives.map(|it| [it.name().to_owned(), cell(System::Fencepost, it), cell(System::Memory, it)]);
    output::table(["ONLY IN FENCEPOST", "FENCEPOST", "EFFICIENCY TIER"], &rows.collect::<Vec<[String; 3]>>(), "")
}

/// Whether the user means this system: by its scheme, or by the start of its name.
fn is_called(system: System, said: &str) -> bool {
    scheme(system).eq_ignore_ascii_case(said) || system.name().to_lowercase().starts_with(&said.to_lowercase())
}

/// The scheme of its addresses.
fn scheme(system: System) -> &'static str {
    system.address().split("://").next().unwrap_or_default()
}

/// One system: its name, its tier if it is given, and as many promises as the row has room for, from this one on.
fn row<const COLUMNS: usize>(system: System, tier: Option<&str>, first: usize) -> [String; COLUMNS] {
    let promises = Promise::ALL[first..].iter().map(|promise| word(system.keeps(*promise)));
    let mut cells = [system.name()].into_iter().chain(tier).chain(promises);
    std::array::from_fn(|_| cells.next().unwrap_or_default().to_owned())
}

fn tier(system: System) -> &'static str {
    if system.is_for_correctness() { "correctness" } else { "efficiency" }
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
