//! The run of `fencepost-bench compare`: starts the systems, gives each a short block of load in turn, round after round, and records
//! the figures.
//!
//! If a system cannot be started or fails in a block, the report says why, and the run goes on with the other systems.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use crate::catalogue::{self, Entry};
use crate::figures::Block;
use crate::probe::Probes;
use fencepost_load::count;
use fencepost_load::pairs::Contenders;

use crate::report::{self, Report};
use crate::system::System;
use crate::systems::fencepost::NodeProgram;
use crate::work::Work;
use crate::workload::{Shape, Sizes, Workload};
use crate::{alone, usage};

/// What to compare, and how long.
pub struct Options {
    /// The systems. Empty means all.
    pub systems: Vec<&'static Entry>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// How often each block is measured, after one block for warming up.
    pub rounds: usize,
    /// How long a block is.
    pub block: Duration,
    /// How large the workloads are.
    pub sizes: Sizes,
    /// Where the results go.
    pub out: PathBuf,
    /// The `fencepost` program whose nodes are measured.
    pub program: NodeProgram,
}

/// The result of a run.
pub struct Finished {
    /// The path of the report.
    pub report: PathBuf,
    /// How many blocks were measured.
    pub blocks: usize,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// Contenders that warm up a system after its start.
const WARM_UP_CONTENDERS: usize = 64;
/// How long they do, in blocks.
const WARM_UP_BLOCKS: u32 = 4;

/// The systems are quiet if all of them together use less than this share of a core.
const QUIET_CORES: f64 = 0.25;
/// How long the CPU time is observed each time.
const QUIET_LOOK: Duration = Duration::from_millis(500);
/// After this many observations the run goes on anyway.
const QUIET_LOOKS_MAX: usize = 20;

/// Rates of the open loop, as shares of the system's rate in a closed loop.
const SHARES_PERCENT: [u32; 3] = [50, 70, 90];

/// A started system.
struct Running {
    entry: &'static Entry,
    system: Arc<dyn System>,
}

/// The state of the run, for all measurements.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    tell: &'a mut dyn FnMut(&str),
    probes: Probes,
    lines: File,
    report: Report,
    /// Systems that could not be started. They are not tried again.
    unavailable: BTreeSet<&'static str>,
    threads: Threads,
}

/// A runtime with a thread for each core, for programs of a threaded shape.
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Result<Threads> {
        Ok(Threads(Some(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)))
    }

    /// Runs `what` in a program of this shape.
    async fn carry_out<T: Send + 'static>(
        &self,
        shape: Shape,
        what: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match &self.0 {
            Some(threads) if shape.is_threaded => threads.spawn(what).await.context("the task of the load failed")?,
            _ => what.await,
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Waiting for its threads would block this thread, which runs everything else.
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}

/// Compares, and writes `results.jsonl`, `report.md` and plots. Calls `tell` with progress lines.
///
/// # Errors
/// If nothing could be measured, or the results cannot be written.
pub async fn run(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<Finished> {
    fencepost_load::raise_file_limit();
    let out = &options.out;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
    let lines = out.join("results.jsonl");
    let lines = File::create(&lines).with_context(|| format!("cannot write {}", lines.display()))?;
    let report = Report::new(options.rounds, options.block);
    let (probes, threads, unavailable) = (Probes::new()?, Threads::start()?, BTreeSet::new());
    let mut run = Run { options, tell, probes, lines, report, unavailable, threads };
    let mut running = Vec::new();
    for workload in Workload::ALL {
        if !options.workloads.contains(&workload) {
            continue;
        }
        (run.tell)(&format!("{}: {}", workload.id(), workload.title()));
        match workload {
            Workload::Idle | Workload::Dying | Workload::Failover | Workload::Restart => {
                running.clear();
                run.alone(workload).await;
            }
            _ => run.beside(workload, &mut running).await?,
        }
        // After each workload, so that an interrupted run leaves a report, too.
        report::write(&run.report, out)?;
    }
    drop(running);
    let Report { results, notes, .. } = run.report;
    anyhow::ensure!(!results.blocks.is_empty(), "nothing could be measured: {}", notes.join("; "));
    Ok(Finished { report: out.join("report.md"), blocks: results.blocks.len(), notes })
}

impl Run<'_> {
    /// Notes for the report what could not be measured.
    fn note(&mut self, note: String) {
        (self.tell)(&format!("  {note}"));
        self.report.notes.push(note);
    }

    fn is_chosen(&self, id: &str) -> bool {
        self.options.systems.is_empty() || self.options.systems.iter().any(|entry| entry.id == id)
    }

    /// Runs a workload for Fencepost alone.
    async fn alone(&mut self, workload: Workload) {
        let id = alone::system(workload);
        if !self.is_chosen(id) {
            return self.note(format!("{} was not measured: it needs {id}, which --systems leaves out", workload.id()));
        }
        if let Err(error) = alone::measure(self, workload).await {
            self.note(format!("{} was not measured completely: {error:#}", workload.id()));
        }
    }

    /// Runs a workload that several systems take part in.
    async fn beside(&mut self, workload: Workload, running: &mut Vec<Running>) -> Result<()> {
        self.start(workload, running).await;
        let sizes = &self.options.sizes;
        let pairs = |sizes: &[usize]| -> Vec<_> {
            let case = |&many: &usize| Case::new(format!("C = {}", count(many as f64)), many, many);
            sizes.iter().map(case).collect()
        };
        let programs = || -> Vec<_> {
            let shaped = |case: Case| Case { shapes: &Shape::ALL, ..case };
            pairs(&sizes.programs).into_iter().map(shaped).collect()
        };
        match workload {
            Workload::Uncontended => self.cases(workload, &pairs(&sizes.contenders), |_| Work::Closed, running).await,
            Workload::Efficiency => self.cases(workload, &pairs(&sizes.efficiency), |_| Work::Closed, running).await,
            Workload::Programs | Workload::EfficiencyPrograms => {
                self.cases(workload, &programs(), |_| Work::Closed, running).await
            }
            Workload::HotLock => {
                let case = |&many: &usize| Case::new(format!("N = {}", count(many as f64)), many, many);
                let cases: Vec<Case> = sizes.waiters.iter().map(case).collect();
                self.cases(workload, &cases, |_| Work::HotLock, running).await
            }
            Workload::Shared => self.cases(workload, &pairs(&[sizes.readers]), |_| Work::Shared, running).await,
            Workload::OpenLoop => {
                let many = sizes.open;
                let peaks = self.peaks(many, running).await?;
                for share in SHARES_PERCENT {
                    let case = Case::new(format!("{share}% of the peak"), share as usize, many);
                    let work = |id: &str| Work::Open {
                        per_second: peaks.get(id).copied().unwrap_or(1.0) * f64::from(share) / 100.0,
                        seed: u64::from(share),
                    };
                    self.case(workload, &case, &work, running).await?;
                }
                Ok(())
            }
            _ => unreachable!("`alone/` runs this workload, because only Fencepost takes part in it"),
        }
    }

    /// Starts the systems that the workload needs, and ends all others.
    async fn start(&mut self, workload: Workload, running: &mut Vec<Running>) {
        running.retain(|it| it.entry.workloads.contains(&workload));
        for entry in catalogue::ALL {
            let is_needed = entry.workloads.contains(&workload) && self.is_chosen(entry.id);
            let is_there = running.iter().any(|it| it.entry.id == entry.id) || self.unavailable.contains(entry.id);
            if !is_needed || is_there {
                continue;
            }
            (self.tell)(&format!("  starting {}", entry.id));
            match self.start_warm(entry).await {
                Ok(system) => {
                    self.report.systems.insert(entry.id, (system.name().to_owned(), system.how().to_owned()));
                    running.push(Running { entry, system });
                }
                Err(error) => {
                    self.unavailable.insert(entry.id);
                    self.note(format!("{} was skipped: {error:#}", entry.id));
                }
            }
        }
    }

    /// Starts a system and loads it for a while, so that JIT compilers (of a JVM) are warm before the first measured block.
    async fn start_warm(&self, entry: &'static Entry) -> Result<Arc<dyn System>> {
        let system = entry.start(&self.options.program).await?;
        let many = WARM_UP_CONTENDERS.min(system.contenders_max());
        let ready = contenders(system.clone(), Shape::PLAIN, many).await?;
        Work::Closed.perform(ready, "bench/warm-up", self.options.block * WARM_UP_BLOCKS).await?;
        Ok(system)
    }

    async fn cases(
        &mut self,
        workload: Workload,
        cases: &[Case],
        work: impl Fn(&str) -> Work,
        running: &[Running],
    ) -> Result<()> {
        for case in cases {
            self.case(workload, case, &work, running).await?;
        }
        Ok(())
    }

    /// Measures a case: in each round, every system has one block. Each round begins with another system.
    async fn case(
        &mut self,
        workload: Workload,
        case: &Case,
        work: &dyn Fn(&str) -> Work,
        running: &[Running],
    ) -> Result<()> {
        let mut seats = Vec::new();
        for it in running {
            let wait = workload == Workload::HotLock;
            let most =
                if wait { it.entry.waiters_max.min(it.system.contenders_max()) } else { it.system.contenders_max() };
            // The rate of an open loop does not depend on the number of contenders, so fewer will do.
            let many = if workload == Workload::OpenLoop { case.many.min(most) } else { case.many };
            if many > most {
                self.note(format!(
                    "{} with {}: {} is measured with at most {most} contenders",
                    workload.id(),
                    case.label,
                    it.entry.id
                ));
            } else if workload == Workload::Shared && !it.system.can_share() {
                self.note(format!(
                    "{}: {} is left out, because this benchmark has no shared locks for it",
                    workload.id(),
                    it.entry.id
                ));
            } else {
                for &shape in case.shapes {
                    let connecting = contenders(it.system.clone(), shape, many);
                    match self.threads.carry_out(shape, connecting).await {
                        Ok(contenders) => seats.push((it, shape, Some(contenders))),
                        Err(error) => self.failed(workload, case, it, &error),
                    }
                }
            }
        }
        self.wait_until_quiet(running).await;
        for round in 0..=self.options.rounds {
            for place in 0..seats.len() {
                let at = (place + round) % seats.len();
                let (it, shape, contenders) = &mut seats[at];
                let Some(ready) = contenders.take() else { continue };
                let (it, shape): (&Running, Shape) = (it, *shape);
                match self.block(workload, case, work(it.entry.id), (it, shape), ready, round).await {
                    Ok(ready) => seats[at].2 = Some(ready),
                    // Its contenders are lost, so the system takes no further part in this case.
                    Err(error) => self.failed(workload, case, it, &error),
                }
            }
        }
        Ok(())
    }

    /// Waits until the systems are idle. After their last request some still work on a backlog, a compaction or expired leases, and
    /// the kernel writes unsynced data. That must not slow down the block of another system.
    async fn wait_until_quiet(&mut self, running: &[Running]) {
        // If the command is missing, the machine is only less quiet.
        let _ = tokio::process::Command::new("sync").status().await;
        let processes: Vec<u32> = running.iter().flat_map(|it| it.system.processes()).collect();
        for _ in 0..QUIET_LOOKS_MAX {
            let before = usage::processor_us(&processes);
            tokio::time::sleep(QUIET_LOOK).await;
            let busy = Duration::from_micros(usage::processor_us(&processes).saturating_sub(before));
            if busy < QUIET_LOOK.mul_f64(QUIET_CORES) {
                return;
            }
        }
        (self.tell)("  some systems are still busy with earlier work: the next figures may be worse than usual");
    }

    fn failed(&mut self, workload: Workload, case: &Case, it: &Running, error: &anyhow::Error) {
        self.note(format!("{} with {}: {} failed: {error:#}", workload.id(), case.label, it.entry.id));
    }

    /// Runs one block of one system. Round 0 is for warming up: it is shorter, and its figures are not recorded.
    async fn block(
        &mut self,
        workload: Workload,
        case: &Case,
        work: Work,
        (it, shape): (&Running, Shape),
        contenders: Contenders,
        round: usize,
    ) -> Result<Contenders> {
        let length = if round == 0 { self.options.block / 2 } else { self.options.block };
        let mut figures = self.probed()?;
        let prefix = format!("bench/{}", workload.id());
        let counts = it.system.counts().await;
        let (servers, load) = (usage::processor_us(&it.system.processes()), usage::own_processor_us());
        let performing = async move { work.perform(contenders, &prefix, length).await };
        let (contenders, done) = self.threads.carry_out(shape, performing).await?;
        let servers = usage::processor_us(&it.system.processes()).saturating_sub(servers);
        let load = usage::own_processor_us().saturating_sub(load);
        if round > 0 {
            let operations = done.operations.max(1) as f64;
            figures.extend(done.figures.iter().map(|(name, value)| ((*name).to_owned(), *value)));
            figures.insert("operations_count".to_owned(), done.operations as f64);
            figures.insert("servers_cpu_us".to_owned(), servers as f64 / operations);
            figures.insert("all_cpu_us".to_owned(), (servers + load) as f64 / operations);
            for (name, after) in it.system.counts().await {
                if let Some(before) = counts.get(&name) {
                    figures.insert(format!("{name}_per_operation"), (after - before) / operations);
                }
            }
            let (label, parameter) = (case.label(shape), case.parameter as f64);
            self.record(workload, &label, parameter, (it.entry.id, it.system.name()), round, figures)?;
        }
        Ok(contenders)
    }

    /// Probes the speed of the machine at the moment.
    pub(crate) fn probed(&mut self) -> Result<BTreeMap<String, f64>> {
        let taken = self.probes.take()?;
        let us = |took: Duration| took.as_nanos() as f64 / 1e3;
        Ok(BTreeMap::from([
            ("probe_disk_us".to_owned(), us(taken.disk)),
            ("probe_loopback_us".to_owned(), us(taken.loopback)),
            ("probe_commit_us".to_owned(), us(taken.commit)),
        ]))
    }

    /// Records a block, and prints a progress line.
    pub(crate) fn record(
        &mut self,
        workload: Workload,
        case: &str,
        parameter: f64,
        (system, name): (&str, &str),
        round: usize,
        figures: BTreeMap<String, f64>,
    ) -> Result<()> {
        let (workload_id, case) = (workload.id().to_owned(), case.to_owned());
        let (system, name) = (system.to_owned(), name.to_owned());
        let block = Block { workload: workload_id, case, parameter, system, name, round, figures };
        writeln!(self.lines, "{}", serde_json::to_string(&block)?).context("cannot write results.jsonl")?;
        (self.tell)(&format!("  {}", report::progress(workload, &block)));
        self.report.results.blocks.push(block);
        Ok(())
    }

    /// Prints a progress line.
    pub(crate) fn tell(&mut self, text: &str) {
        (self.tell)(text);
    }

    /// Adds a system to the report that was not started from the catalogue.
    pub(crate) fn describe(&mut self, id: &'static str, name: &str, how: &str) {
        self.report.systems.entry(id).or_insert_with(|| (name.to_owned(), how.to_owned()));
    }

    /// Pairs per second of each system in a closed loop with `many` contenders: the best of three blocks.
    async fn peaks(&mut self, many: usize, running: &[Running]) -> Result<BTreeMap<&'static str, f64>> {
        let mut peaks = BTreeMap::new();
        for it in running {
            let mut best: f64 = 0.0;
            let many = many.min(it.system.contenders_max());
            let mut ready = match contenders(it.system.clone(), Shape::PLAIN, many).await {
                Ok(ready) => ready,
                // The same error comes again in the cases, and they report it.
                Err(_) => continue,
            };
            for _ in 0..3 {
                let (again, done) = match Work::Closed.perform(ready, "bench/peak", self.options.block).await {
                    Ok(done) => done,
                    Err(_) => break,
                };
                let figure = done.figures.iter().find(|(name, _)| *name == "pairs_per_second");
                best = best.max(figure.map_or(0.0, |(_, value)| *value));
                ready = again;
            }
            (self.tell)(&format!("  {}: {} pairs/s in a closed loop", it.system.name(), count(best)));
            peaks.insert(it.entry.id, best);
        }
        Ok(peaks)
    }
}

/// One case of a workload: its parameters.
struct Case {
    label: String,
    parameter: usize,
    /// Number of contenders.
    many: usize,
    /// The shapes of the load program: its threads and connections. If there are several, each is a case of the report.
    shapes: &'static [Shape],
}

impl Case {
    fn new(label: String, parameter: usize, many: usize) -> Case {
        Case { label, parameter, many, shapes: &[Shape::PLAIN] }
    }

    /// The name of the case in the report.
    fn label(&self, shape: Shape) -> String {
        if self.shapes.len() == 1 { self.label.clone() } else { format!("{}, {}", self.label, shape.label()) }
    }
}

/// Contenders that connect at the same time.
const CONNECTING_MAX: usize = 32;

async fn contenders(system: Arc<dyn System>, shape: Shape, many: usize) -> Result<Contenders> {
    let mut programs = Vec::new();
    for _ in 0..shape.connections {
        programs.push(system.program().await?);
    }
    let mut contenders = Vec::new();
    for first in (0..many).step_by(CONNECTING_MAX) {
        let next = first..many.min(first + CONNECTING_MAX);
        let connecting = next.map(|at| programs[at % programs.len()].contender());
        contenders.extend(futures_util::future::try_join_all(connecting).await?);
    }
    Ok(contenders)
}
