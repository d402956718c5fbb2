//! The run: starts the systems, lets each have a short block in turn, round after round, and writes down what came of it.
//!
//! A system that cannot be started, or that fails in a block, is named in the report with the reason, and the others go on.

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
    /// The ids of the systems; none means all.
    pub systems: Vec<&'static Entry>,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// How often each block is repeated, after one that is thrown away.
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

/// What became of it.
pub struct Finished {
    /// The report, as a file.
    pub report: PathBuf,
    /// How many blocks were measured.
    pub blocks: usize,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// What a system is loaded with after its start, and for how many blocks.
const WARM_UP_CONTENDERS: usize = 64;
const WARM_UP_BLOCKS: u32 = 4;

/// Together, the systems are quiet when they use less than so much of a core,
const QUIET_CORES: f64 = 0.25;
/// looked at for so long,
const QUIET_LOOK: Duration = Duration::from_millis(500);
/// and so often at most.
const QUIET_LOOKS_MAX: usize = 20;

/// The closed loop tells how fast a system can be; the open one asks for these shares of it.
const SHARES_PERCENT: [u32; 3] = [50, 70, 90];

/// A system that runs.
struct Running {
    entry: &'static Entry,
    system: Arc<dyn System>,
}

/// What is going on, for everybody who measures.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    tell: &'a mut dyn FnMut(&str),
    probes: Probes,
    lines: File,
    report: Report,
    /// Which could not be started. They are not tried again.
    unavailable: BTreeSet<&'static str>,
    threads: Threads,
}

/// A runtime with a thread for each core, for programs that have one.
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Result<Threads> {
        Ok(Threads(Some(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)))
    }

    /// Carries it out in a program of this shape.
    async fn carry_out<T: Send + 'static>(
        &self,
        shape: Shape,
        what: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        match &self.0 {
            Some(threads) if shape.is_threaded => threads.spawn(what).await.context("the load broke off")?,
            _ => what.await,
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Waiting for its threads would block this one, which runs the rest.
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}

/// Compares, and writes `results.jsonl`, `report.md` and plots. What happens meanwhile is told line by line.
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
        // After each, so that whoever breaks off has what was measured until then.
        report::write(&run.report, out)?;
    }
    drop(running);
    let Report { results, notes, .. } = run.report;
    anyhow::ensure!(!results.blocks.is_empty(), "nothing could be measured: {}", notes.join("; "));
    Ok(Finished { report: out.join("report.md"), blocks: results.blocks.len(), notes })
}

impl Run<'_> {
    /// What could not be done, for the report.
    fn note(&mut self, note: String) {
        (self.tell)(&format!("  {note}"));
        self.report.notes.push(note);
    }

    fn is_chosen(&self, id: &str) -> bool {
        self.options.systems.is_empty() || self.options.systems.iter().any(|entry| entry.id == id)
    }

    /// A workload for Fencepost alone.
    async fn alone(&mut self, workload: Workload) {
        let id = alone::system(workload);
        if !self.is_chosen(id) {
            return self.note(format!("{} was not measured: it needs {id}, which --systems leaves out", workload.id()));
        }
        if let Err(error) = alone::measure(self, workload).await {
            self.note(format!("{} was not measured to its end: {error:#}", workload.id()));
        }
    }

    /// A workload for many systems.
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
            _ => unreachable!("it is for Fencepost alone"),
        }
    }

    /// Starts what the workload needs and does not run, and ends what it does not need.
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

    /// Starts a system and loads it for a while, so that whoever compiles what is used most (a JVM) has done so before it counts.
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

    /// Round after round, every system has its block; who begins changes from round to round.
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
            // An open loop asks at the same instants, however many there are to ask.
            let many = if workload == Workload::OpenLoop { case.many.min(most) } else { case.many };
            if many > most {
                self.note(format!(
                    "{} with {}: {} is measured with at most {most}",
                    workload.id(),
                    case.label,
                    it.entry.id
                ));
            } else if workload == Workload::Shared && !it.system.can_share() {
                self.note(format!("{}: {} has no shared locks here", workload.id(), it.entry.id));
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
                    // Its contenders are gone, and with them its part in this case.
                    Err(error) => self.failed(workload, case, it, &error),
                }
            }
        }
        Ok(())
    }

    /// Some go on for a while when nobody asks any more: a backlog, a compaction, leases that run out, and the kernel writes what
    /// nobody has synced. That is not to count against the others.
    async fn wait_until_quiet(&mut self, running: &[Running]) {
        // Without that command it is only less quiet.
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
        (self.tell)("  some are still busy with what was before");
    }

    fn failed(&mut self, workload: Workload, case: &Case, it: &Running, error: &anyhow::Error) {
        self.note(format!("{} with {}: {} failed: {error:#}", workload.id(), case.label, it.entry.id));
    }

    /// One block of one system. The first round is for warming up: shorter, and thrown away.
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

    /// What the machine gives at the moment.
    pub(crate) fn probed(&mut self) -> Result<BTreeMap<String, f64>> {
        let taken = self.probes.take()?;
        let us = |took: Duration| took.as_nanos() as f64 / 1e3;
        Ok(BTreeMap::from([
            ("probe_disk_us".to_owned(), us(taken.disk)),
            ("probe_loopback_us".to_owned(), us(taken.loopback)),
            ("probe_commit_us".to_owned(), us(taken.commit)),
        ]))
    }

    /// Writes a block down and tells about it.
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

    /// Says what is going on, without writing it down.
    pub(crate) fn tell(&mut self, text: &str) {
        (self.tell)(text);
    }

    /// Enters a system that was not started from the catalogue.
    pub(crate) fn describe(&mut self, id: &'static str, name: &str, how: &str) {
        self.report.systems.entry(id).or_insert_with(|| (name.to_owned(), how.to_owned()));
    }

    /// What each system does in a closed loop with so many contenders: the best of three blocks.
    async fn peaks(&mut self, many: usize, running: &[Running]) -> Result<BTreeMap<&'static str, f64>> {
        let mut peaks = BTreeMap::new();
        for it in running {
            let mut best: f64 = 0.0;
            let many = many.min(it.system.contenders_max());
            let mut ready = match contenders(it.system.clone(), Shape::PLAIN, many).await {
                Ok(ready) => ready,
                // The case that follows says so.
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

/// What is set within a workload.
struct Case {
    label: String,
    parameter: usize,
    /// How many contenders.
    many: usize,
    /// By which programs. If there are several, each is a case of the report.
    shapes: &'static [Shape],
}

impl Case {
    fn new(label: String, parameter: usize, many: usize) -> Case {
        Case { label, parameter, many, shapes: &[Shape::PLAIN] }
    }

    /// As it stands in the report.
    fn label(&self, shape: Shape) -> String {
        if self.shapes.len() == 1 { self.label.clone() } else { format!("{}, {}", self.label, shape.label()) }
    }
}

/// So many connect at a time.
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
