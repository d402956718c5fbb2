//! Jobs on real processes: hosts whose clocks differ by minutes run `fencepost run --once` for the same keys at the same time, while
//! jobs, their `run` and leaders are killed and answers are lost. The work is a transaction of a real store, by the store's own client.
//!
//! With the key recorded by the store (rule `once`) each effect stands exactly once. Without it, the same faults are counted, not judged.
//! To set the number of keys, for each store, with `once` and without:
//!
//! ```sh
//! FENCEPOST_SOAK_JOBS=200 cargo test -p fencepost-cli --features stores --test real jobs -- --nocapture
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fencepost_testbed::{Kind, Server, shared, tool};

use crate::clients::Random;
use crate::cluster::{Cluster, say};
use crate::patience::wait_until;
use crate::proxy::Link;

const FENCEPOST: &str = env!("CARGO_BIN_EXE_fencepost");
/// How many minutes the wall clock of each host is off.
const CLOCKS_OFF_MIN: [i64; 3] = [-7, 0, 11];
/// Locks for each kind of work. The keys are spread over them, so that one killed host does not stop all work until its lease ends.
const LOCKS: usize = 4;
/// The lease of a killed `run` ends after this time.
const TTL: &str = "2s";
/// The next fault of the cluster comes after this many completed keys.
const KEYS_PER_FAULT: usize = 6;
/// A host that has tried this often will not succeed.
const TRIES_MAX: usize = 300;

/// The moments at which a planned fault happens. Each is planned for some keys, and happens to the first process that comes there.
const MOMENTS: [&str; 6] = [
    // The job's shell is killed.
    "job-before-work",
    // The store's client is killed. Its transaction is rolled back.
    "client-in-transaction",
    // `run` is killed, and so is the job's shell. The store's client goes on and commits.
    "run-in-transaction",
    // The store's client is killed at a random time.
    "client-at-random",
    // The job's shell is killed between COMMIT and the completion.
    "job-after-commit",
    // `run` and the job's shell are killed between COMMIT and the completion.
    "run-after-commit",
];

/// The job. `$1` is the directory of planned faults: removing a file succeeds for one process. `$2` is the time of the random kill, `$3`
/// the file in which jobs of this host note their clock. The rest is the store's client. The kernel kills this shell with its `run`; it also kills itself, because not every kernel does.
const JOB: &str = r#"
faults=$1/$FENCEPOST_LOCK.$FENCEPOST_JOB_KEY random=$2 run=$PPID
echo $FENCEPOST_DEADLINE >>$3
shift 3
planned() { rm "$faults.$1" 2>/dev/null; }
if planned job-before-work; then kill -KILL $$; fi
if planned client-at-random; then set -- timeout -s KILL "$random" "$@"; fi
said=$("$@" 2>&1 <<SQL
WORK
SQL
)
code=$?
case "$code $said" in
    "0 "*) ;;
    # Committed by an earlier attempt, which could not say so: complete the job.
    *FP208*) ;;
    *) printf '%s: exit code %s: %s\n' "$FENCEPOST_JOB_KEY" "$code" "$said" >&2; exit 1 ;;
esac
if planned job-after-commit; then kill -KILL $$; fi
if planned run-after-commit; then kill -KILL $run $$; fi
"#;

/// Faults of the open transaction: both clients run the rest of such a line in a shell, whose parent is the client.
const IN_TRANSACTION: &str = r"\! rm $faults.client-in-transaction 2>/dev/null && kill -KILL \$PPID
\! rm $faults.run-in-transaction 2>/dev/null && kill -KILL $run
";

/// A store with its own command line.
struct Store {
    title: &'static str,
    /// The store's client, which reads SQL from its input.
    client: Vec<String>,
    begin: &'static str,
    /// Shows the token, and records nothing.
    write: &'static str,
    /// Shows the token and records the key.
    once: &'static str,
}

impl Store {
    fn postgres(server: &Server) -> Store {
        let admin = server.url();
        let url = format!("{}/jobs", admin.trim_end_matches("/postgres"));
        let psql = |url: &str| {
            let options =
                ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-d", url];
            options.map(str::to_owned).to_vec()
        };
        ask(&psql(&admin), "CREATE DATABASE jobs;");
        install_guard(&url);
        Store {
            title: "Postgres",
            client: psql(&url),
            begin: "BEGIN;",
            write: "SELECT fencepost.write('$FENCEPOST_LOCK', $FENCEPOST_TOKEN);",
            once: "SELECT fencepost.write('$FENCEPOST_LOCK', $FENCEPOST_TOKEN);
                   SELECT fencepost.once('$FENCEPOST_LOCK', '$FENCEPOST_JOB_KEY');",
        }
        .with_table()
    }

    fn mariadb(server: &Server) -> Store {
        let mariadb = |database: &str| {
            let port = format!("--port={}", server.port());
            let options = ["mariadb", "--no-defaults", "--host=127.0.0.1", &port, "--user=root", "--batch"];
            options.into_iter().chain(["--skip-column-names", database]).map(str::to_owned).collect::<Vec<_>>()
        };
        let rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, CREATE ROUTINE, ALTER ROUTINE, EXECUTE";
        let prepare = format!("CREATE DATABASE jobs; CREATE USER guard_jobs; GRANT {rights} ON jobs.* TO guard_jobs;");
        ask(&mariadb("mysql"), &prepare);
        install_guard(&format!("mysql://guard_jobs@127.0.0.1:{}/jobs", server.port()));
        Store {
            title: "MariaDB",
            client: mariadb("jobs"),
            begin: "START TRANSACTION;",
            write: "CALL fencepost_write('$FENCEPOST_LOCK', $FENCEPOST_TOKEN);",
            once: "CALL fencepost_once('$FENCEPOST_LOCK', '$FENCEPOST_JOB_KEY', $FENCEPOST_TOKEN);",
        }
        .with_table()
    }

    fn with_table(self) -> Store {
        ask(&self.client, "CREATE TABLE effects (lock_name VARCHAR(64) NOT NULL, job_key VARCHAR(64) NOT NULL);");
        self
    }

    /// The script of the job, with the key recorded by the store or not.
    // Rule: same-transaction
    fn job(&self, records_key: bool) -> String {
        let guard = if records_key { self.once } else { self.write };
        let effect = "INSERT INTO effects VALUES ('$FENCEPOST_LOCK', '$FENCEPOST_JOB_KEY');";
        JOB.replace("WORK", &format!("{}\n{guard}\n{effect}\n{IN_TRANSACTION}COMMIT;", self.begin))
    }

    /// How often the effect stands, for each lock and key.
    fn effects(&self) -> BTreeMap<(String, String), usize> {
        let rows = "SELECT CONCAT(lock_name, ' ', job_key, ' ', COUNT(*)) FROM effects GROUP BY lock_name, job_key;";
        let effect = |row: &str| {
            let mut words = row.split(' ').map(str::to_owned);
            let mut word = || words.next().expect("the row has three words");
            ((word(), word()), word().parse().expect("a count"))
        };
        ask(&self.client, rows).lines().map(effect).collect()
    }
}

/// Runs SQL with a store's client. Returns what it prints.
fn ask(client: &[String], sql: &str) -> String {
    use std::io::Write;
    let mut command = Command::new(&client[0]);
    command.args(&client[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the client of the store is installed");
    child.stdin.take().expect("piped").write_all(sql.as_bytes()).expect("the client reads its input");
    let output = child.wait_with_output().expect("it is our child");
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the rows are text")
}

fn install_guard(url: &str) {
    let output = fencepost().args(["fence", "init", url]).output().expect("the binary is built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The program, without settings that the test inherits.
fn fencepost() -> Command {
    let mut command = Command::new(FENCEPOST);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_")) {
        command.env_remove(name);
    }
    command
}

/// A process that is killed if the test ends before it does.
struct Process(Child);

impl Process {
    fn start(mut command: Command, log: &Path) -> Process {
        let log = File::options().create(true).append(true).open(log).expect("the test owns the directory");
        let err = log.try_clone().expect("files can be shared");
        Process(command.stdin(Stdio::null()).stdout(log).stderr(err).spawn().expect("the binary is built"))
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("it is our child")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // It is dead, or was waited for before.
        let _ = self.0.wait();
    }
}

/// The hosts' wall clocks, by libfaketime.
struct Clocks {
    /// The libraries to preload.
    preload: String,
    /// The test's wall clock when it began.
    began_s: i64,
}

impl Clocks {
    /// `None` if libfaketime is not installed; then the test is skipped.
    fn prepare() -> Option<Clocks> {
        let faketime = tool("faketime", "the Debian package faketime")?;
        let output = Command::new(faketime).args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"]).output();
        let preload = String::from_utf8(output.expect("faketime is a program").stdout).expect("a path is text");
        Some(Clocks { preload: preload.trim().to_owned(), began_s: now_s() })
    }

    /// Sets the wall clock of a process and its children. Clocks that count from the start of a machine stay as they are.
    fn set(&self, command: &mut Command, off_min: i64) {
        command.env("LD_PRELOAD", &self.preload).env("FAKETIME", format!("{off_min:+}m"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// Checks that `run` saw its host's clock: each job noted the FENCEPOST_DEADLINE that `run` computed. Returns how many did.
    fn check(&self, noted: &Path, off_min: i64) -> usize {
        let noted = std::fs::read_to_string(noted).unwrap_or_default();
        let possible = self.began_s + 60 * off_min - 60..=now_s() + 60 * off_min + 60;
        for line in noted.lines() {
            let deadline_s = line.parse::<i64>().expect("milliseconds") / 1_000;
            assert!(possible.contains(&deadline_s), "a clock that is {off_min} minutes off shows {deadline_s}");
        }
        noted.lines().count()
    }
}

impl Drop for Clocks {
    /// Removes what libfaketime shares between a process and its children. A killed process leaves it behind.
    fn drop(&mut self) {
        for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            let process = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                // Another test may remove it at the same time.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is past 1970").as_secs() as i64
}

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
    let mut cluster = Cluster::start_with_doors();
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

fn assert_completed(cluster: &Cluster, name: &str, key: &str) {
    let view = wait_until("the job can be read", || cluster.ask(async |client| client.job(name, key).await.ok()));
    let completion = view.what.record.as_ref().and_then(|record| record.completion.as_ref());
    assert!(completion.is_some_and(|completion| completion.succeeded), "{name} {key} is completed: {view:?}");
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
}

impl Hosts<'_> {
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

/// What kills an attempt of the job of 100 steps, between a step and its checkpoint or at any time after the step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kill {
    /// The job's shell.
    Job,
    /// `run` and the job's shell.
    Run,
    /// `run`, by the test, as soon as the test sees the step.
    RunFromOutside,
}

/// `$1` is the directory of planned kills, `$2` the program, `$3` the file of steps.
const STEPS: &str = r#"
kills=$1 fencepost=$2 steps=$3 run=$PPID
planned() { [ -e "$kills/$1" ] && rm "$kills/$1"; }
step=$(cat "$FENCEPOST_LAST_CHECKPOINT")
step=${step:-0}
while [ "$step" -lt 100 ]; do
    step=$((step + 1))
    echo "$step" >>"$steps"
    if planned "job.$step"; then kill -KILL $$; fi
    if planned "run.$step"; then kill -KILL $run $$; fi
    # 125: it is not known whether the checkpoint is stored, try again.
    until "$fencepost" checkpoint "$step"; do [ $? -eq 125 ] || exit 1; done
done
"#;

#[test]
fn a_job_of_100_steps_survives_10_kills_and_repeats_10_steps_at_most() {
    let began = Instant::now();
    let cluster = Cluster::start_on(3, None);
    let [kills, temporary, steps, log] =
        ["kills", "tmp", "steps", "run.log"].map(|name| cluster.directory().join(name));
    for directory in [&kills, &temporary] {
        std::fs::create_dir(directory).expect("the test owns the directory");
    }
    let mut random = Random(100);
    let mut from_outside = Vec::new();
    for number in 0..10 {
        // One step in each ten, so that all kills differ.
        let step = 10 * number + 1 + random.below(10);
        let kill = [Kill::Job, Kill::Run, Kill::Job, Kill::RunFromOutside, Kill::Job][number as usize % 5];
        let file = match kill {
            Kill::Job => format!("job.{step}"),
            Kill::Run => format!("run.{step}"),
            Kill::RunFromOutside => {
                from_outside.push(step);
                continue;
            }
        };
        File::create(kills.join(file)).expect("the test owns the directory");
    }
    let planned_outside = from_outside.len();
    let done = || -> Vec<u64> {
        let text = std::fs::read_to_string(&steps).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let start = || {
        let mut command = fencepost();
        command.args(["run", "--server", &cluster.endpoints().join(","), "--ttl", TTL, "--once", "v2", "migration"]);
        command.args(["--", "sh", "-c", STEPS, "job"]).arg(&kills).arg(FENCEPOST).arg(&steps);
        command.env("TMPDIR", &temporary);
        Process::start(command, &log)
    };
    let mut interruptions = Vec::new();
    loop {
        let mut run = start();
        let status = wait_until("the run ends", || {
            if from_outside.first().is_some_and(|step| done().contains(step)) {
                from_outside.remove(0);
                run.kill();
            }
            run.ended()
        });
        if status.success() {
            break;
        }
        interruptions.push(status.to_string());
        assert!(interruptions.len() < TRIES_MAX, "the job is not done: {interruptions:?}");
    }
    let done = done();
    let left = std::fs::read_dir(&kills).expect("the test owns the directory").count() + from_outside.len();
    let mut ends = String::new();
    interruptions.iter().for_each(|end| write!(ends, " {end},").expect("a string has room"));
    say(&format!(
        "a job of 100 steps: {} steps done, {} interruptions ({planned_outside} from outside):{ends} {:.1} s",
        done.len(),
        interruptions.len(),
        began.elapsed().as_secs_f64()
    ));
    assert_eq!(left, 0, "all 10 kills happened");
    assert_eq!(done.iter().copied().collect::<BTreeSet<u64>>(), (1..=100).collect(), "every step was done");
    // A busy machine can lose a lease, which is one interruption more.
    assert!(interruptions.len() >= 10 && done.len() <= 100 + interruptions.len(), "{interruptions:?}: {done:?}");
    assert_completed(&cluster, "migration", "v2");
}
