//! Runs the simulation: one seed with a trace to read, many with a summary, or a story.

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

/// A whole cluster with its clients from one seed, and everything that it promises checked while it runs
#[derive(Debug, Parser)]
#[command(name = "fencepost-sim", version)]
struct Arguments {
    /// Run this seed and print its trace
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run so many seeds and print a summary
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    seeds: Option<u64>,
    /// The first of the seeds
    #[arg(long, value_name = "N", default_value_t = 1, requires = "seeds", conflicts_with = "seed")]
    first: u64,
    /// Run each seed twice, and fail if the two runs differ
    #[arg(long)]
    twice: bool,
    /// Nodes in the beginning (default: 3, and 5 for every third seed; 1, 3 or 5 in runs about leases)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=9), conflicts_with = "scenario")]
    nodes: Option<u64>,
    /// Seconds of the world in which things go wrong, before everything is healed
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "scenario")]
    seconds: Option<u64>,
    /// Let every seed be about leases, as every eighth is anyway: only the lead changes, all the time, and holders go silent
    #[arg(long, conflicts_with = "scenario")]
    leases: bool,
    /// Upgrade the nodes one by one to a release with a made-up format version, while things go wrong as ever
    #[cfg(feature = "made-up-version")]
    #[arg(long, conflicts_with_all = ["scenario", "leases"])]
    upgrades: bool,
    /// Play a story: one of those that --scenarios lists, or a file of your own (name.toml)
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// List the stories
    #[arg(long, conflicts_with_all = ["seed", "seeds", "scenario"])]
    scenarios: bool,
    /// Write the trace to this file as JSON, too
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "scenarios"])]
    json: Option<PathBuf>,
}

/// What was asked for, with everything that it needs.
pub(crate) struct RunOptions {
    nodes: Option<u64>,
    seconds: Option<u64>,
    leases: bool,
    #[cfg(feature = "made-up-version")]
    upgrades: bool,
    twice: bool,
    /// The story, by the name that was asked for.
    story: Option<(String, Scenario)>,
}

impl RunOptions {
    /// What this seed runs.
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
            refuse("nothing to run: say --seed N, --seeds N, --scenario NAME, or --scenarios for a list")
        }
        (seed, None) => command::one::run(&options, seed.unwrap_or(1), arguments.json.as_deref()),
    }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("that would run nothing: say 1 or more".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("say a whole number".to_owned()),
    }
}

fn story(name: &str) -> Result<Scenario, String> {
    if !name.ends_with(".toml") {
        return Scenario::named(name).map_err(|wrong| wrong.to_string());
    }
    let text = std::fs::read_to_string(name).map_err(|wrong| format!("{name} cannot be read: {wrong}"))?;
    Scenario::parse(&text).map_err(|wrong| format!("{name} is no scenario: {wrong}"))
}

/// Says what is wrong with the command line, as clap does, and exits.
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
