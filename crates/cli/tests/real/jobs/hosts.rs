//! Hosts whose clocks differ by minutes run `fencepost run --once` for the same keys at the same time, while jobs, their `run` and leaders
//! are killed and answers are lost. The work is a transaction of a real store, by the store's own client.
//!
//! With the key recorded by the store (rule `once`) each effect stands exactly once. Without it, the same faults are counted, not judged.
//! To set the number of keys, for each store, with `once` and without:
//!
//! ```sh
//! FENCEPOST_SOAK_JOBS=200 cargo test -p fencepost-cli --features stores --test real three_hosts -- --nocapture
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use fencepost_testbed::{Kind, shared, tool};

use super::clocks::Clocks;
use super::store::{MOMENTS, Store};
use super::{Process, TRIES_MAX, TTL, assert_completed, fencepost};
use crate::clients::Random;
use crate::cluster::{Cluster, say};
use crate::patience::wait_until;
use crate::proxy::Link;

/// How many minutes the wall clock of each host is off.
const CLOCKS_OFF_MIN: [i64; 3] = [-7, 0, 11];
/// Locks for each kind of work. The keys are spread over them, so that one killed host does not stop all work until its lease ends.
const LOCKS: usize = 4;
/// The next fault of the cluster comes after this many completed keys.
const KEYS_PER_FAULT: usize = 6;
fn keys() -> usize {
    std::env::var("FENCEPOST_SOAK_JOBS").map_or(20, |text| text.parse().expect("a whole number"))
}

#[test]
fn three_hosts_with_clocks_minutes_apart_do_each_job_once_in_postgres() {
    let Some(clocks) = Clocks::prepare() else { return };
    if let (Some(server), Some(_)) = (shared(Kind::Postgres), tool("psql", "the Debian package postgresql-client")) {
        three_hosts(&Store::postgres(server), &clocks);
    }
}

#[test]
fn three_hosts_with_clocks_minutes_apart_do_each_job_once_in_mariadb() {
    let Some(clocks) = Clocks::prepare() else { return };
    if let (Some(server), Some(_)) = (shared(Kind::MariaDb), tool("mariadb", "the Debian package mariadb-client")) {
        three_hosts(&Store::mariadb(server), &clocks);
    }
}

/// Runs all keys with `once` and without at the same time, and checks the effects.
fn three_hosts(store: &Store, clocks: &Clocks) {
    let began = Instant::now();
    let mut cluster = Cluster::start_with_doors(3);
    let hosts = Hosts::new(&cluster, store, clocks);
    let progress = Progress { keys_done: AtomicUsize::new(0), lanes_left: AtomicUsize::new(2 * LOCKS) };
    let (faults, ends) = std::thread::scope(|scope| {
        let mut lanes = Vec::new();
        for records_key in [true, false] {
            for lock in 0..LOCKS {
                let lane = Lane { hosts: &hosts, records_key, lock, progress: &progress };
                lanes.push(scope.spawn(move || lane.run()));
            }
        }
        let faults = disturb(&mut cluster, &progress);
        let mut ends: BTreeMap<String, usize> = BTreeMap::new();
        for lane in lanes {
            for (end, count) in lane.join().expect("the lane prints why it failed") {
                *ends.entry(end).or_default() += count;
            }
        }
        (faults, ends)
    });
    let happened = hosts.planned - std::fs::read_dir(&hosts.faults).expect("the test owns it").count();
    let effects = store.effects();
    let times = |records_key: bool| {
        let times = |number| {
            let id = (lock_name(records_key, number % LOCKS), key_name(number));
            effects.get(&id).copied().unwrap_or_default()
        };
        (0..keys()).map(times).collect::<Vec<usize>>()
    };
    let (with, without) = (times(true), times(false));
    let by_host: Vec<usize> = CLOCKS_OFF_MIN
        .into_iter()
        .enumerate()
        .map(|(host, off_min)| clocks.check(&hosts.noted(host), off_min))
        .collect();
    say(&format!(
        "{}: the effect stands once for {} of {} keys with `once`; without it, more than once for {} of {}, {} times at most; \
         {happened} of {} planned kills; of the cluster: {faults:?}; how `run` ended: {ends:?}; attempts by host: {by_host:?}; {:.1} s",
        store.title,
        with.iter().filter(|times| **times == 1).count(),
        with.len(),
        without.iter().filter(|times| **times > 1).count(),
        without.len(),
        without.iter().max().expect("there are keys"),
        hosts.planned,
        began.elapsed().as_secs_f64()
    ));
    assert!(with.iter().all(|times| *times == 1), "the effect of each key stands exactly once: {with:?}");
    assert!(without.iter().all(|times| *times > 0), "no key was left out: {without:?}");
    assert!(happened > 0, "no planned kill happened: the run did not test the store");
    assert!(
        by_host.iter().filter(|attempts| **attempts > 0).count() > 1,
        "hosts with different clocks did the work: {by_host:?}"
    );
    for (records_key, number) in [true, false].into_iter().flat_map(|it| (0..keys()).map(move |number| (it, number))) {
        assert_completed(&cluster, &lock_name(records_key, number % LOCKS), &key_name(number));
    }
}

fn lock_name(records_key: bool, lock: usize) -> String {
    format!("{}-{lock}", if records_key { "billing" } else { "bare" })
}

fn key_name(number: usize) -> String {
    format!("2026-11.{number}")
}

/// What all lanes share.
struct Hosts<'a> {
    server: String,
    clocks: &'a Clocks,
    client: Vec<String>,
    /// The scripts with the key recorded by the store, and without.
    jobs: [String; 2],
    /// The directory of planned faults, one empty file for each.
    faults: PathBuf,
    planned: usize,
    /// For the files of jobs: a killed `run` leaves them behind.
    temporary: PathBuf,
    logs: PathBuf,
}

impl Hosts<'_> {
    fn new<'a>(cluster: &Cluster, store: &Store, clocks: &'a Clocks) -> Hosts<'a> {
        let [faults, temporary] = ["faults", "tmp"].map(|name| cluster.directory().join(name));
        for directory in [&faults, &temporary] {
            std::fs::create_dir(directory).expect("the test owns the directory");
        }
        let mut planned = 0;
        // The same faults with `once` and without. Every seventh key has none; some have two.
        let mut random = Random(20);
        for number in 0..keys() {
            let mut moments = BTreeSet::from([MOMENTS.get(number % (MOMENTS.len() + 1))]);
            if random.below(3) == 0 {
                moments.insert(MOMENTS.get(random.below(MOMENTS.len() as u64) as usize));
            }
            for (moment, records_key) in moments.into_iter().flatten().flat_map(|it| [(it, true), (it, false)]) {
                let file = format!("{}.{}.{moment}", lock_name(records_key, number % LOCKS), key_name(number));
                File::create(faults.join(file)).expect("the test owns the directory");
                planned += 1;
            }
        }
        Hosts {
            server: cluster.doors().join(","),
            clocks,
            client: store.client.clone(),
            jobs: [true, false].map(|records_key| store.job(records_key)),
            faults,
            planned,
            temporary,
            logs: cluster.directory().to_owned(),
        }
    }

    /// Where the jobs of a host note what its clock shows.
    fn noted(&self, host: usize) -> PathBuf {
        self.logs.join(format!("clock-{host}"))
    }
}

/// How far the lanes are.
struct Progress {
    keys_done: AtomicUsize,
    lanes_left: AtomicUsize,
}

/// The keys of one lock, one after the other. All hosts start each key at the same time, and try again until it is done.
struct Lane<'a> {
    hosts: &'a Hosts<'a>,
    records_key: bool,
    lock: usize,
    progress: &'a Progress,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.progress.lanes_left.fetch_sub(1, SeqCst);
    }
}

impl Lane<'_> {
    /// Returns how often `run` ended in which way.
    fn run(self) -> BTreeMap<String, usize> {
        let mut ends = BTreeMap::new();
        let mut random = Random(1_000 + 2 * self.lock as u64 + u64::from(self.records_key));
        for number in (0..keys()).filter(|number| number % LOCKS == self.lock) {
            self.run_key(&key_name(number), &mut random, &mut ends);
            self.progress.keys_done.fetch_add(1, SeqCst);
        }
        ends
    }

    fn run_key(&self, key: &str, random: &mut Random, ends: &mut BTreeMap<String, usize>) {
        // For each third key, the `run` of one host is killed at a random time.
        let killed = random.below(3 * CLOCKS_OFF_MIN.len() as u64) as usize;
        let mut kill_at = Some(Instant::now() + Duration::from_millis(random.below(400)));
        let mut start = |host: usize| self.start(key, host, 5 + random.below(100));
        let mut hosts: BTreeMap<usize, Process> = (0..CLOCKS_OFF_MIN.len()).map(|host| (host, start(host))).collect();
        for _ in 0..TRIES_MAX {
            let (host, status) = wait_until("a run ends", || {
                if kill_at.is_some_and(|at| at <= Instant::now()) {
                    kill_at = None;
                    hosts.get_mut(&killed).into_iter().for_each(Process::kill);
                }
                hosts.iter_mut().find_map(|(host, process)| Some((*host, process.ended()?)))
            });
            *ends.entry(status.to_string()).or_default() += 1;
            if !status.success() {
                hosts.insert(host, start(host));
                continue;
            }
            hosts.remove(&host);
            if hosts.is_empty() {
                return;
            }
        }
        panic!("{key} was not done in {TRIES_MAX} tries: {ends:?}");
    }

    fn start(&self, key: &str, host: usize, random_ms: u64) -> Process {
        let lock = lock_name(self.records_key, self.lock);
        let mut command = fencepost();
        command.args(["run", "--server", &self.hosts.server, "--ttl", TTL, "--quiet", "--once", key, &lock, "--"]);
        command.args(["sh", "-c", &self.hosts.jobs[usize::from(!self.records_key)], "job"]);
        command.arg(&self.hosts.faults).arg(format!("{}", random_ms as f64 / 1_000.0));
        command.arg(self.hosts.noted(host)).args(&self.hosts.client).env("TMPDIR", &self.hosts.temporary);
        self.hosts.clocks.set(&mut command, CLOCKS_OFF_MIN[host]);
        Process::start(command, &self.hosts.logs.join(format!("{lock}.log")))
    }
}

/// Disturbs the cluster, each time when some more keys are done, until the lanes have ended. Returns what happened how often.
fn disturb(cluster: &mut Cluster, progress: &Progress) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let over = || progress.lanes_left.load(SeqCst) == 0;
    for round in 0.. {
        for _ in 0..KEYS_PER_FAULT {
            let before = progress.keys_done.load(SeqCst);
            wait_until("a key is done", || (over() || progress.keys_done.load(SeqCst) > before).then_some(()));
        }
        if over() {
            break;
        }
        let lead = cluster.leader(0);
        let kind = match round % 5 {
            0 | 2 => {
                // Another node may lead by now. Then this door has nothing to say.
                let until = Instant::now() + Duration::from_secs(10);
                let lost = cluster.door(lead.node).cut_answers(|| over() || Instant::now() > until);
                if lost { "answers cut" } else { "no answer to cut" }
            }
            1 | 3 => {
                cluster.kill(lead.node);
                cluster.leader(lead.term);
                cluster.restart(lead.node);
                "leader killed"
            }
            _ => {
                cluster.isolate(lead.node, Link::Closed);
                cluster.leader(lead.term);
                cluster.heal();
                "leader cut off"
            }
        };
        *counts.entry(kind).or_default() += 1;
    }
    counts
}
