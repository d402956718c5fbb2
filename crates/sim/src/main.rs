//! The command line of the simulation: one seed with a trace, many seeds with a summary, or a scenario.
//!
//! This file owns the arguments and their checks. The files in `command/` run what was chosen and print the result. Nothing here
//! decides what happens in a run: the library does, from the seed.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use fencepost_sim::run::Subject;
use fencepost_sim::scenario::{SCENARIOS, Scenario};
use fencepost_sim::world::Plan;

mod command {
    pub(crate) mod many;
    pub(crate) mod one;
    pub(crate) mod replay;
}

/// Simulates a whole cluster with its clients from one seed, and checks its promises while it runs
#[derive(Debug, Parser)]
#[command(name = "fencepost-sim", version)]
struct Arguments {
    /// Run this seed and print its trace
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run this many seeds and print a summary
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    seeds: Option<u64>,
    /// The first seed of --seeds
    #[arg(long, value_name = "N", default_value_t = 1, requires = "seeds", conflicts_with = "seed")]
    first: u64,
    /// Run each seed twice, and fail if the two runs differ
    #[arg(long)]
    twice: bool,
    /// Nodes at the start (default: 3, and 5 for every third seed; 1, 3 or 5 in lease runs)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=9), conflicts_with = "scenario")]
    nodes: Option<u64>,
    /// Simulated seconds with faults, before everything is healed
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "scenario")]
    seconds: Option<u64>,
    /// Make every seed a lease run (by default every eighth is one): the leader changes often, holders go silent, nothing else fails
    #[arg(long, conflicts_with = "scenario")]
    leases: bool,
    /// Upgrade the nodes one by one to a release with a made-up format version, with all other faults
    #[cfg(feature = "made-up-version")]
    #[arg(long, conflicts_with_all = ["scenario", "leases"])]
    upgrades: bool,
    /// Play a scenario: a name from --scenarios, or a file of your own (name.toml)
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// List the scenarios
    #[arg(long, conflicts_with_all = ["seed", "seeds", "scenario"])]
    scenarios: bool,
    /// Also write the trace to this file, as JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "scenarios"])]
    json: Option<PathBuf>,
}

/// What to run, from the command line.
pub(crate) struct RunOptions {
    nodes: Option<u64>,
    seconds: Option<u64>,
    leases: bool,
    #[cfg(feature = "made-up-version")]
    upgrades: bool,
    twice: bool,
    /// The scenario, with the name that the command line gave.
    story: Option<(String, Scenario)>,
}

impl RunOptions {
    /// The subject that this seed runs.
    pub(crate) fn subject(&self, seed: u64) -> Subject<'_> {
        match &self.story {
            Some((_, scenario)) => Subject::Scenario(scenario),
            None => {
                let plan = if self.leases { Plan::of_leases(seed) } else { Plan::of_seed(seed) };
                #[cfg(feature = "made-up-version")]
                let plan = if self.upgrades { Plan::of_upgrades(seed) } else { plan };
                let (nodes, seconds) = (self.nodes.unwrap_or(plan.nodes), self.seconds.unwrap_or(plan.seconds));
                Subject::Chance(Plan { nodes, seconds, ..plan })
            }
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.scenarios {
        return list();
    }
    let story = arguments.scenario.as_deref().map(|name| match story(name) {
        Ok(scenario) => (name.to_owned(), scenario),
        Err(wrong) => refuse(&wrong),
    });
    let Arguments { nodes, seconds, leases, twice, .. } = arguments;
    let options = RunOptions {
        nodes,
        seconds,
        leases,
        #[cfg(feature = "made-up-version")]
        upgrades: arguments.upgrades,
        twice,
        story,
    };
    match (arguments.seed, arguments.seeds) {
        (_, Some(seeds)) => command::many::run(&options, arguments.first, seeds),
        (None, None) if options.story.is_none() => {
            refuse("nothing to run: use --seed N, --seeds N, --scenario NAME, or --scenarios for a list")
        }
        (seed, None) => command::one::run(&options, seed.unwrap_or(1), arguments.json.as_deref()),
    }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("0 would run nothing: use 1 or more".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("use a whole number".to_owned()),
    }
}

fn story(name: &str) -> Result<Scenario, String> {
    if !name.ends_with(".toml") {
        return Scenario::named(name).map_err(|wrong| wrong.to_string());
    }
    let text = std::fs::read_to_string(name).map_err(|wrong| format!("{name} cannot be read: {wrong}"))?;
    Scenario::parse(&text).map_err(|wrong| format!("{name} is not a valid scenario: {wrong}"))
}

/// Prints what is wrong with the command line, in clap's format, and exits.
pub(crate) fn refuse(wrong: &str) -> ! {
    Arguments::command().error(ErrorKind::ValueValidation, wrong).exit()
}

fn list() -> ExitCode {
    let width = SCENARIOS.map(|(name, _)| name.len()).into_iter().max().unwrap_or(0);
    for (name, text) in SCENARIOS {
        let title = Scenario::parse(text).map_or_else(|wrong| wrong.to_string(), |scenario| scenario.title);
        println!("{name:width$}  {title}");
    }
    ExitCode::SUCCESS
}
