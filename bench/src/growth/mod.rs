//! `fencepost-bench growth`: how costs grow with the number of waiters, locks and sessions. Each curve is measured on clusters of its
//! own, with real processes and real sockets, from the smallest size to the largest one that is wanted.
//!
//! Flat curves are as important here as growing ones: the cost of a hand-over must not depend on the number of waiters, and the cost
//! of an operation must not depend on the number of locks.

mod failover;
mod handover;
mod locks;
mod memory;
mod report;
mod restart;
mod storms;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fencepost::{Client, ClientBuilder, Counts, Exclusive, Guard};

use crate::alone::elsewhere::Stage;
use crate::alone::hold_all;
use crate::figures::{Block, Results};
use crate::probe::Probes;
use crate::systems::fencepost::{Cluster, NodeProgram};
use crate::usage;
use fencepost_load::count;

/// The longest wait for anything, for example until a million locks are taken.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Half of the locks that a session may hold.
const LOCKS_PER_SESSION: usize = 5_000;
/// Half of the sessions that one principal may have.
const SESSIONS_PER_CLIENT: usize = 5_000;
/// Half of the waiters that a session may have.
const WAITERS_PER_SESSION: usize = 500;
/// TTL of sessions that must not expire during the measurement, even on a slow machine.
const LONG_TTL: Duration = Duration::from_secs(3_600);

/// One curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// A hand-over, over the number of contenders.
    HandOver,
    /// A pair of acquire and release, over the number of other locks.
    Locks,
    /// Memory of a node, over locks, waiters and sessions.
    Memory,
    /// The start of a node, over the number of locks that it restores.
    Restart,
    /// The time without a grant, over many kills of a leader.
    FailOver,
    /// Sessions that open, close and expire at once, over their number.
    Storms,
}

impl Curve {
    /// In the order in which they are measured.
    pub const ALL: [Curve; 6] =
        [Curve::HandOver, Curve::Locks, Curve::Memory, Curve::Restart, Curve::FailOver, Curve::Storms];

    /// Its name in `--curves` and in `growth.jsonl`.
    pub fn id(self) -> &'static str {
        match self {
            Curve::HandOver => "handover",
            Curve::Locks => "locks",
            Curve::Memory => "memory",
            Curve::Restart => "restart",
            Curve::FailOver => "failover",
            Curve::Storms => "storms",
        }
    }

    /// The sizes up to `most`. Only `most` if all sizes are larger.
    fn sizes(self, most: usize) -> Vec<usize> {
        let all: &[usize] = match self {
            Curve::HandOver => &[2, 10, 100, 1_000, 10_000, 100_000],
            Curve::Locks => &[1_000, 10_000, 100_000, 1_000_000],
            Curve::Memory => &[1_000, 10_000, 100_000],
            Curve::Restart => &[10_000, 100_000, 1_000_000],
            // Nothing grows here. It is only repeated.
            Curve::FailOver => return vec![0],
            Curve::Storms => &[1_000, 10_000, 50_000],
        };
        let wanted: Vec<usize> = all.iter().copied().filter(|size| *size <= most).collect();
        if wanted.is_empty() { vec![most] } else { wanted }
    }
}

impl FromStr for Curve {
    type Err = String;

    fn from_str(text: &str) -> Result<Curve, String> {
        Curve::ALL.into_iter().find(|curve| curve.id() == text).ok_or_else(|| {
            let all: Vec<&str> = Curve::ALL.iter().map(|curve| curve.id()).collect();
            format!("there is no curve {text:?}: write one of {}", all.join(", "))
        })
    }
}

/// What to measure, and how long.
pub struct Options {
    /// The curves.
    pub curves: Vec<Curve>,
    /// The largest size. At least 2.
    pub most: usize,
    /// How often each point is measured.
    pub rounds: usize,
    /// How long a block of load is.
    pub block: Duration,
    /// How often the leader is killed.
    pub kills: usize,
    /// Where the results go.
    pub out: PathBuf,
    /// The `fencepost` program whose nodes are measured.
    pub program: NodeProgram,
}

/// The result of a run.
pub struct Finished {
    /// The path of the report.
    pub report: PathBuf,
    /// How many points were measured. Each round counts.
    pub points: usize,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// The state of the run, for all curves.
struct Growth<'a> {
    options: &'a Options,
    tell: &'a mut dyn FnMut(&str),
    probes: Probes,
    lines: File,
    results: Results,
    notes: Vec<String>,
}

/// Measures, and writes `growth.jsonl`, `growth.md` and plots. Calls `tell` with progress lines.
///
/// # Errors
/// If nothing could be measured, or the results cannot be written.
pub async fn run(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Finished> {
    let out = &options.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
    let lines = out.join("growth.jsonl");
    let lines = File::create(&lines).with_context(|| format!("cannot write {}", lines.display()))?;
    let (results, notes) = (Results::default(), Vec::new());
    let mut growth = Growth { options, tell, probes: Probes::new()?, lines, results, notes };
    for curve in Curve::ALL.into_iter().filter(|curve| options.curves.contains(curve)) {
        (growth.tell)(&format!("{}: {}", curve.id(), report::title(curve)));
        let measured = match curve {
            Curve::HandOver => handover::measure(&mut growth).await,
            Curve::Locks => locks::measure(&mut growth).await,
            Curve::Memory => memory::measure(&mut growth).await,
            Curve::Restart => restart::measure(&mut growth).await,
            Curve::FailOver => failover::measure(&mut growth).await,
            Curve::Storms => storms::measure(&mut growth).await,
        };
        if let Err(error) = measured {
            let note = format!("{} was not measured completely: {error:#}", curve.id());
            (growth.tell)(&format!("  {note}"));
            growth.notes.push(note);
        }
        // After each curve, so that an interrupted run leaves a report, too.
        report::write(&growth.results, &growth.notes, out)?;
    }
    let Growth { results, notes, .. } = growth;
    anyhow::ensure!(!results.blocks.is_empty(), "nothing could be measured: {}", notes.join("; "));
    Ok(Finished { report: out.join("growth.md"), points: results.blocks.len(), notes })
}

impl Growth<'_> {
    fn sizes(&self, curve: Curve) -> Vec<usize> {
        curve.sizes(self.options.most)
    }

    async fn cluster(&self, nodes: usize) -> Result<Cluster> {
        Cluster::start(nodes, self.options.program.clone()).await
    }

    fn tell(&mut self, text: &str) {
        (self.tell)(&format!("  {text}"));
    }

    /// Probes the speed of the machine at the moment. Call it while nothing else is measured.
    fn probed(&mut self) -> Result<BTreeMap<String, f64>> {
        let taken = self.probes.take()?;
        let us = |took: Duration| took.as_nanos() as f64 / 1e3;
        Ok(BTreeMap::from([
            ("probe_disk_us".to_owned(), us(taken.disk)),
            ("probe_loopback_us".to_owned(), us(taken.loopback)),
            ("probe_commit_us".to_owned(), us(taken.commit)),
        ]))
    }

    /// Records a point, and prints a progress line.
    fn record(
        &mut self,
        curve: Curve,
        nodes: usize,
        size: usize,
        round: usize,
        figures: BTreeMap<String, f64>,
    ) -> Result<()> {
        let block = Block {
            workload: curve.id().to_owned(),
            case: count(size as f64),
            parameter: size as f64,
            system: format!("fencepost-{nodes}"),
            name: format!("Fencepost x{nodes}"),
            round,
            figures,
        };
        writeln!(self.lines, "{}", serde_json::to_string(&block)?).context("cannot write growth.jsonl")?;
        let text = report::progress(curve, &block);
        self.tell(&text);
        self.results.blocks.push(block);
        Ok(())
    }
}

/// Processor time and counters at one moment. `each` returns what was spent since then.
struct Spent {
    servers_us: u64,
    load_us: u64,
    counts: BTreeMap<String, f64>,
}

impl Spent {
    fn from(cluster: &Cluster) -> Spent {
        Spent {
            servers_us: usage::processor_us(&cluster.processes()),
            load_us: usage::own_processor_us(),
            counts: cluster.counts(),
        }
    }

    /// What was spent since then, divided by the number of operations.
    fn each(&self, cluster: &Cluster, operations: u64) -> BTreeMap<String, f64> {
        let now = Spent::from(cluster);
        let operations = operations.max(1) as f64;
        let servers = now.servers_us.saturating_sub(self.servers_us) as f64;
        let load = now.load_us.saturating_sub(self.load_us) as f64;
        let mut figures = BTreeMap::from([
            ("servers_cpu_us".to_owned(), servers / operations),
            ("all_cpu_us".to_owned(), (servers + load) / operations),
        ]);
        for (name, after) in now.counts {
            if let Some(before) = self.counts.get(&name) {
                figures.insert(format!("{name}_per_operation"), (after - before) / operations);
            }
        }
        figures
    }
}

/// A builder of clients with a long call timeout: their calls must not fail because many others are pending.
fn patient(cluster: &Cluster) -> ClientBuilder {
    cluster.builder().call_timeout(PATIENCE)
}

/// Number of log entries so far.
fn entries(cluster: &Cluster) -> f64 {
    cluster.counts().get("entries").copied().unwrap_or_default()
}

/// Waits until the cluster's counts satisfy `holds`. Returns when that was seen.
async fn until_counted(control: &Client, what: &str, holds: impl Fn(&Counts) -> bool) -> Result<Instant> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        // Without a leader there may be no answer. Then look again.
        if control.status().await.is_ok_and(|status| holds(&status.counts)) {
            return Ok(Instant::now());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    bail!("waited {} s in vain for {what}", PATIENCE.as_secs())
}

/// Takes locks until the number is the first size, then the next one, and so on. Each size is a stage.
async fn hold_in_stages(builder: ClientBuilder, sizes: Vec<usize>, mut stage: Stage) -> Result<Vec<Guard<Exclusive>>> {
    let client = builder.name("growth: holders").session_ttl(LONG_TTL).connect().await?;
    let mut held: Vec<Guard<Exclusive>> = Vec::new();
    for size in sizes {
        while held.len() < size {
            let session = client.session().open()?;
            let names = (held.len()..size.min(held.len() + LOCKS_PER_SESSION)).map(|at| format!("growth/held/{at}"));
            held.extend(hold_all(&session, names.collect()).await?);
        }
        stage.done().await;
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_at_the_largest_that_is_wanted_and_there_is_always_one() {
        assert_eq!(Curve::HandOver.sizes(1_000), [2, 10, 100, 1_000]);
        assert_eq!(Curve::Locks.sizes(1_000_000).len(), 4);
        assert_eq!(Curve::Restart.sizes(500), [500]);
    }

    #[test]
    fn a_curve_is_found_by_its_id_and_an_unknown_id_lists_all_ids() {
        for curve in Curve::ALL {
            assert_eq!(curve.id().parse(), Ok(curve));
        }
        assert!("speed".parse::<Curve>().is_err_and(|error| error.contains("storms")));
    }
}
