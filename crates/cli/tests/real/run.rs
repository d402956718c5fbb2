//! One run: a cluster, its clients and watchers, the injected faults, and the checked outcome.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::checker;
use super::clients::{Clients, Recorder};
use super::cluster::{Cluster, say};
use super::history::{Answer, Ask, History, Instant, LockOperation, Mode};
use super::store::Store;
use super::watcher::Watcher;
use crate::patience::wait_until;

/// W6 and I19: within this time after a kill or a heal there is a grant, and every node serves. Measured and printed in every run, but
/// asserted only with `FENCEPOST_STRICT=1`: a test must not fail because the machine has other work.
const FIRST_GRANT_GOAL: Duration = Duration::from_secs(5);
/// A grant later than this is a failure, however busy the machine is.
const FIRST_GRANT_MAX: Duration = Duration::from_secs(30);

fn first_grant_max() -> Duration {
    if std::env::var_os("FENCEPOST_STRICT").is_some() { FIRST_GRANT_GOAL } else { FIRST_GRANT_MAX }
}

/// Runs go one after the other: one run is enough load for a machine with two cores.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static TOTAL: Mutex<Figures> = Mutex::new(Figures::new());

#[derive(Clone, Debug)]
struct Figures {
    runs: usize,
    operations: usize,
    grants: usize,
    events: usize,
    expiries: usize,
    attempts: usize,
    stale_attempts: usize,
    unknown: usize,
    latest_expiry_ms: u64,
    faults: BTreeMap<&'static str, usize>,
    first_grants: BTreeMap<&'static str, Vec<Duration>>,
}

pub(crate) struct Run {
    pub(crate) cluster: Cluster,
    pub(crate) recorder: Recorder,
    title: &'static str,
    clients: Option<Clients>,
    watcher: Option<Watcher>,
    figures: Figures,
    // The last field, so that the next run begins only after everything else of this run is dropped.
    _turn: std::sync::MutexGuard<'static, ()>,
}

impl Run {
    pub(crate) fn start(title: &'static str, nodes: usize) -> Run {
        Run::start_on(title, nodes, None)
    }

    pub(crate) fn start_on(title: &'static str, nodes: usize, disk_bytes: Option<u64>) -> Run {
        // A poisoned lock means that another run failed. That does not affect this run.
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cluster = Cluster::start_on(nodes, disk_bytes);
        let recorder = Recorder::new();
        let endpoints = cluster.endpoints();
        let watcher = Watcher::start(&endpoints, &recorder);
        let clients = Clients::start(&endpoints, &cluster.directory().join("store.sqlite"), &recorder, nodes as u64);
        let (clients, watcher, figures) = (Some(clients), Some(watcher), Figures::new());
        let run = Run { cluster, recorder, title, clients, watcher, figures, _turn: turn };
        run.work(30);
        run
    }

    /// Waits until the clients were granted `grants` more locks.
    pub(crate) fn work(&self, grants: usize) {
        let given = || {
            self.recorder
                .with(|history| history.asks.iter().filter(|ask| matches!(ask.answer, Answer::Granted { .. })).count())
        };
        let wanted = given() + grants;
        wait_until("clients get locks", || (given() >= wanted).then_some(()));
    }

    /// Counts a fault that happens now. Returns the instant.
    pub(crate) fn fault(&mut self, kind: &'static str) -> Instant {
        *self.figures.faults.entry(kind).or_default() += 1;
        self.recorder.now()
    }

    /// Waits for the first grant after `instant`, and records how long it took. A majority of the nodes is up from `instant` on.
    pub(crate) fn first_grant(&mut self, after: &'static str, instant: Instant) -> Duration {
        let took = wait_until("the first grant", || self.recorder.first_grant_after(instant));
        self.figures.first_grants.entry(after).or_default().push(took);
        say(&format!("  {}: first grant {} ms after: {after}", self.title, took.as_millis()));
        if took > FIRST_GRANT_GOAL {
            say(&format!("  SLOW: the goal is {} s", FIRST_GRANT_GOAL.as_secs()));
        }
        assert!(took <= first_grant_max(), "the first grant came {took:?} after: {after}");
        took
    }

    /// Waits until the watcher has seen new events twice: the first ones may have been in flight before.
    pub(crate) fn watch_goes_on(&self) {
        let watcher = self.watcher.as_ref().expect("the watcher runs until `finish`");
        for _ in 0..2 {
            let before = watcher.seen();
            wait_until("the watcher sees something new", || (watcher.seen() > before).then_some(()));
        }
    }

    /// I19: every node that runs serves.
    pub(crate) fn every_node_serves(&self) {
        let took = self.cluster.every_node_serves(&self.cluster.running());
        assert!(took <= first_grant_max(), "I19: it took {took:?} until every node served");
    }

    /// Ends the clients and the watcher, and checks the history.
    pub(crate) fn finish(mut self) {
        // The run tests the store only if clients slept past their deadline and then wrote with a stale token.
        let store = Store::open(&self.cluster.directory().join("store.sqlite"));
        wait_until("there were two stale attempts, and clients did everything that they can do", || {
            let stale = checker::stale_attempts(&store.attempts());
            (stale >= 2 && self.recorder.with(|history| history.stalls.len() >= 2 && has_everything(history)))
                .then_some(())
        });
        let attempts = self.clients.take().expect("the clients run until `finish`").finish();
        self.every_node_serves();
        let mut watcher = self.watcher.take().expect("the watcher runs until `finish`");
        watcher.finish();
        // Each node leads in turn, and is asked for the whole event log.
        let mut read_again = 0;
        for node in self.cluster.running() {
            self.cluster.let_lead(node);
            read_again += usize::from(watcher.read_again());
        }
        assert!(read_again > 0, "no node has the whole event log");
        let history = self.recorder.with(|history| {
            history.attempts = attempts;
            history.clone()
        });
        let report = checker::check(&history);
        let mut by_answer: BTreeMap<&str, usize> = BTreeMap::new();
        for ask in &history.asks {
            let kind = match &ask.answer {
                Answer::Granted { .. } => "granted",
                Answer::Released => "released",
                Answer::Refused(_) => "refused",
                Answer::Failed(_) => "failed",
                Answer::TooLate => "too late",
                Answer::Unknown(_) => "unknown",
            };
            *by_answer.entry(kind).or_default() += 1;
        }
        let mut figures = std::mem::replace(&mut self.figures, Figures::new());
        figures.runs = 1;
        figures.operations = report.operations;
        figures.grants = report.grants;
        figures.events = report.events;
        figures.expiries = report.expiries;
        figures.attempts = report.attempts;
        figures.stale_attempts = report.stale_attempts;
        figures.unknown = report.unknown;
        figures.latest_expiry_ms = report.latest_ms;
        say(&format!("{}: {figures}", self.title));
        say(&format!(
            "  answers: {by_answer:?}; {} grants of several names, {} of permits, {} conversions, {} locks ended at their own TTL; \
             {} expiries timed; the event log was read again from {read_again} nodes",
            report.multi_locks, report.permits, report.conversions, report.lock_expiries, report.expiries_timed
        ));
        let shown = report.violations.iter().take(20).cloned().collect::<Vec<_>>().join("\n  ");
        assert!(report.violations.is_empty(), "{} violations:\n  {shown}", report.violations.len());
        assert!(report.stale_attempts > 0, "there was no stale attempt: the run did not test the store");
        let mut total = TOTAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        total.add(figures);
        say(&format!("so far: {total}"));
    }
}

/// Whether each kind of request has succeeded.
fn has_everything(history: &History) -> bool {
    let granted = |ask: &&Ask| matches!(ask.answer, Answer::Granted { .. });
    let some = |kind: fn(&LockOperation) -> bool| history.asks.iter().filter(granted).any(|ask| kind(&ask.what));
    some(|what| matches!(what, LockOperation::Acquire(taken) if taken.len() > 1))
        && some(|what| matches!(what, LockOperation::Acquire(taken) if taken[0].1.permits() > 0))
        && some(|what| matches!(what, LockOperation::Convert { mode: Mode::Exclusive, .. }))
        && some(|what| matches!(what, LockOperation::Convert { mode: Mode::Shared | Mode::Update, .. }))
}

impl Figures {
    const fn new() -> Figures {
        Figures {
            runs: 0,
            operations: 0,
            grants: 0,
            events: 0,
            expiries: 0,
            attempts: 0,
            stale_attempts: 0,
            unknown: 0,
            latest_expiry_ms: 0,
            faults: BTreeMap::new(),
            first_grants: BTreeMap::new(),
        }
    }

    fn add(&mut self, other: Figures) {
        self.runs += other.runs;
        self.operations += other.operations;
        self.grants += other.grants;
        self.events += other.events;
        self.expiries += other.expiries;
        self.attempts += other.attempts;
        self.stale_attempts += other.stale_attempts;
        self.unknown += other.unknown;
        self.latest_expiry_ms = self.latest_expiry_ms.max(other.latest_expiry_ms);
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (after, took) in other.first_grants {
            self.first_grants.entry(after).or_default().extend(took);
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Figures { runs, operations, grants, events, expiries, attempts, stale_attempts, unknown, .. } = self;
        write!(
            formatter,
            "{runs} runs, {operations} operations ({unknown} unknown), \
             {grants} grants, {events} events, {expiries} sessions expired (at most {} ms late), {attempts} attempts at the \
             store, {stale_attempts} of them stale; faults:",
            self.latest_expiry_ms
        )?;
        for (kind, count) in &self.faults {
            write!(formatter, " {count} x {kind},")?;
        }
        write!(formatter, " first grant (min/median/max ms):")?;
        for (after, took) in &self.first_grants {
            let mut took: Vec<u128> = took.iter().map(Duration::as_millis).collect();
            took.sort_unstable();
            let (least, median, most) = (took[0], took[took.len() / 2], took[took.len() - 1]);
            write!(formatter, " {after} {least}/{median}/{most},")?;
        }
        Ok(())
    }
}
