//! Jobs: `fencepost run --once`, what its command gets, and the commands that list, show, await, check and change jobs.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::harness::{Dev, Finished, Link, Process, fencepost, wait_until};
use nix::sys::signal::Signal;

/// The binary, as a word of a script: its path has no spaces that matter.
const OWN: &str = env!("CARGO_BIN_EXE_fencepost");

impl Dev {
    /// Runs a script once for this key, with more arguments before the name of the job.
    fn once_with(&self, more: &[&str], key: &str, script: &str) -> Finished {
        self.fencepost(&[&["run", "--once", key], more, &["billing", "--", "sh", "-c", script, OWN]].concat())
    }

    fn once(&self, key: &str, script: &str) -> Finished {
        self.once_with(&[], key, script)
    }

    /// The position after everything that has happened: a watch that starts later misses nothing.
    fn position(&self) -> String {
        let seen = self.fencepost(&["describe", "billing", "-o", "json"]).ok().json();
        format!("{}.{}", seen["index"], u32::MAX)
    }

    fn show(&self, key: &str) -> serde_json::Value {
        self.fencepost(&["job", "show", "billing", key, "-o", "json"]).ok().json()
    }
}

#[test]
fn the_second_attempt_reads_the_checkpoint_of_the_first_and_what_is_done_is_not_done_again() {
    let dev = Dev::start();
    let first = "wc -c < $FENCEPOST_LAST_CHECKPOINT; $0 checkpoint 41 && $0 checkpoint 'up to 42' && exit 7";
    let seen = dev.once("2026-11", first).with_code(7).says("stays open: attempt 1 ended with exit code 7");
    assert_eq!(seen.stdout.trim(), "0", "without a checkpoint the file is empty");
    let shown = dev.show("2026-11");
    assert_eq!(
        (&shown["state"], &shown["is_completed"], &shown["is_held"]),
        (&"open".into(), &false.into(), &false.into())
    );
    assert_eq!(
        (&shown["attempts"], &shown["last_attempt"]["ended"]["error"]["text"]),
        (&1.into(), &"exit code 7".into()),
        "{shown}"
    );
    assert_eq!(shown["checkpoint"]["content"]["text"], "up to 42");
    assert_eq!((&shown["checkpoint"]["attempt"], &shown["completion"]), (&1.into(), &serde_json::Value::Null));

    let second = "echo $FENCEPOST_ATTEMPT $(cat $FENCEPOST_LAST_CHECKPOINT); echo 17 invoices > $FENCEPOST_RESULT";
    assert_eq!(dev.once("2026-11", second).ok().stdout.trim(), "2 up to 42");
    let again = dev.once("2026-11", "echo never").ok().says("billing 2026-11 was done before by attempt 2");
    assert_eq!(again.stdout, "");
    dev.once_with(&["--done-exit", "9"], "2026-11", "echo never").with_code(9);
    let quiet = dev.once_with(&["--quiet"], "2026-11", "echo never").ok();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    // Also where a lock would be refused.
    dev.fencepost(&["freeze", "billing", "--reason", "a test"]).ok();
    dev.once_with(&["-n"], "2026-11", "echo never").ok().says("was done before");
    dev.once_with(&["-n"], "2026-12", "echo never").with_code(124).says("billing is frozen");

    let text =
        dev.fencepost(&["job", "show", "billing", "2026-11"]).ok().says("completed, since 2").says("17 invoices");
    assert!(text.stdout.lines().all(|line| line.trim_end() == line), "{text:?}");
    assert_eq!(dev.fencepost(&["job", "show", "billing", "2026-11", "--result"]).ok().stdout, "17 invoices\n");
    dev.fencepost(&["job", "show", "billing", "2026-11", "--error"]).with_code(1).says("has no error text");
    dev.fencepost(&["job", "show", "billing", "2026-12"]).with_code(1).says("nothing is remembered of billing 2026-12");
}

#[test]
fn the_command_knows_its_job_and_its_files_are_private_and_gone_at_the_end() {
    let dev = Dev::start();
    let script = "
        echo $FENCEPOST_JOB_KEY; echo $FENCEPOST_ATTEMPT; echo $FENCEPOST_LAST_CHECKPOINT; echo $FENCEPOST_RESULT
        echo $FENCEPOST_CHECKPOINT_SOCKET; echo $FENCEPOST_TOKEN; echo $FENCEPOST_LOCK; test -s $FENCEPOST_RESULT; echo $?
        stat -c %a $(dirname $FENCEPOST_RESULT); $0 run other -- env | grep -c -e JOB_KEY -e ATTEMPT -e CHECKPOINT -e RESULT";
    let seen = dev.once("a key", script).with_code(1).stdout;
    let seen: Vec<&str> = seen.lines().collect();
    let [key, attempt, checkpoint, result, socket, token, lock, empty, mode, inherited] = seen[..] else {
        panic!("{seen:?}");
    };
    assert_eq!([key, attempt, token, lock, empty, mode], ["a key", "1", "1", "billing", "1", "700"]);
    assert_eq!(inherited, "0", "a `run` inside of it is of no job");
    for file in [checkpoint, result, socket] {
        assert!(file.starts_with('/') && !Path::new(file).exists(), "{file}");
        assert!(!Path::new(file).parent().unwrap().exists(), "{file}");
    }
    // A command that is no job's must not see an inherited job.
    let mut command =
        dev.command(&["run", "a", "--", "sh", "-c", "echo ${FENCEPOST_JOB_KEY-none} ${FENCEPOST_RESULT-none}"]);
    command.env("FENCEPOST_JOB_KEY", "inherited").env("FENCEPOST_RESULT", "/dev/null");
    assert_eq!(Process::start(command).finish().ok().stdout.trim(), "none none");
}

#[test]
fn every_end_of_an_attempt_has_its_exit_code() {
    let dev = Dev::start();
    dev.once("a", "kill -KILL $$").with_code(128 + 9).says("ended with signal 9");
    assert_eq!(dev.show("a")["last_attempt"]["ended"]["error"]["text"], "signal 9");
    let run = |args: &[&str]| dev.fencepost(&[&["run", "--once", "b", "billing"], args].concat());
    run(&["--", "no-such-command"]).with_code(127).says("PATH");
    run(&["--", "/"]).with_code(126);
    assert_eq!(dev.show("b")["attempts"], 2);
    // The third attempt is one too many.
    let gave_up = dev.once_with(&["--attempts", "2"], "b", "echo never").with_code(122);
    assert_eq!(gave_up.says("has used up its attempts (2)").says("`fencepost job forget billing b`").stdout, "");
    dev.once("b", "echo never").with_code(122).says("has failed for good");
    assert_eq!((&dev.show("b")["state"], &dev.show("b")["completion"]["succeeded"]), (&"failed".into(), &false.into()));
    dev.fencepost(&["job", "forget", "billing", "b", "--yes", "--reason", "the disk was full"]).ok();
    dev.once_with(&["--attempts", "2"], "b", "true").ok();

    let holder = dev.hold("billing");
    dev.once_with(&["-n"], "c", "true").with_code(124).says("fencepost why billing");
    dev.once_with(&["-w", "50ms", "-E", "9"], "c", "true").with_code(9);
    let waiter = dev.start_client(&["run", "--once", "c", "billing", "--", "true"]);
    dev.wait_until_waiting("billing", 1);
    waiter.signal(Signal::SIGTERM);
    waiter.finish().with_code(128 + 15);
    holder.signal(Signal::SIGTERM);
    holder.finish().with_code(128 + 15);
    // It never began, so nothing is remembered.
    dev.fencepost(&["job", "show", "billing", "c"]).with_code(1);
    fencepost(&["run", "--once", "c", "--server", "127.0.0.1:1", "billing", "--", "true"]).with_code(125);
    // An outer run of the same lock.
    dev.once("d", "$0 run --once d billing -- true").with_code(124).says("would wait for itself for ever");
}

#[test]
fn a_job_whose_lock_is_broken_stays_open() {
    let dev = Dev::start();
    let mut run = dev.start_client(&["run", "--once", "a", "billing", "--", "sh", "-c", "echo held; exec sleep 600"]);
    run.wait_for_line("held");
    dev.fencepost(&["break", "billing", "--yes", "--reason", "a test"]).ok().says("job a");
    run.finish().with_code(123).says("was lost while attempt 1 ran, and stays open").says("broke it: a test");
    let shown = dev.show("a");
    assert_eq!(
        (&shown["state"], &shown["last_attempt"]["ended"]["how"]),
        (&"open".into(), &"broken".into()),
        "{shown}"
    );
    // Near its longest hold the command is told to end. That is no success, whatever its exit code.
    let polite = "trap 'exit 0' TERM; while :; do sleep 0.02; done";
    dev.once_with(&["--max-hold", "1s"], "a", polite).with_code(123);
    assert_eq!(dev.show("a")["state"], "open");
    dev.once("a", "true").ok();
}

/// The completion cannot be heard, and the cluster cannot be asked.
#[test]
fn a_completion_that_is_not_confirmed_is_unknown() {
    let dev = Dev::start();
    // Cuts the link, lets the command succeed, and returns when it has ended.
    let succeeds_alone = |key: &str, ttl: &str| {
        let link = Link::to(&dev.server);
        let script = "echo held; read go";
        let args = ["run", "--ttl", ttl, "--timeout", "1s", "--once", key, "billing", "--", "sh", "-c", script];
        let mut command = crate::harness::command(&args);
        let (reader, mut go) = std::io::pipe().unwrap();
        command.env("FENCEPOST_SERVER", link.address.to_string()).stdin(reader);
        let mut run = Process::start(command);
        run.wait_for_line("held");
        link.cut();
        std::io::Write::write_all(&mut go, b"\n").unwrap();
        wait_until("the command has ended", || has_no_child(&run).then_some(()));
        run
    };
    let said = succeeds_alone("a", "5s").finish().with_code(121);
    said.says("may be completed or not").says("`fencepost job show billing a`");
    // This time it did not arrive, and the next run runs it again.
    dev.once("a", "echo attempt $FENCEPOST_ATTEMPT").ok().says("attempt 2");
    // A signal ends the wait for the answer, long before the session ends.
    let run = succeeds_alone("b", "600s");
    run.signal(Signal::SIGTERM);
    run.finish().with_code(121).says("a signal ended the wait");
}

/// The cluster is away for longer than `--timeout`, and for less time than the lease.
#[test]
fn a_completion_waits_for_a_cluster_that_comes_back() {
    let dev = Dev::start();
    let link = Link::to(&dev.server);
    let script = "echo held; read go; echo done > $FENCEPOST_RESULT";
    let args = ["run", "--timeout", "1s", "--once", "a", "billing", "--", "sh", "-c", script];
    let mut command = crate::harness::command(&args);
    let (reader, mut go) = std::io::pipe().unwrap();
    command.env("FENCEPOST_SERVER", link.address.to_string()).stdin(reader);
    let mut run = Process::start(command);
    run.wait_for_line("held");
    link.interrupt();
    std::io::Write::write_all(&mut go, b"\n").unwrap();
    let cut = Instant::now();
    wait_until("the pause is over", || (cut.elapsed() >= Duration::from_secs(4)).then_some(()));
    link.mend();
    run.finish().ok();
    assert_eq!(dev.show("a")["completion"]["result"]["text"], "done\n");
}

fn has_no_child(process: &Process) -> bool {
    let children = format!("/proc/{0}/task/{0}/children", process.id());
    std::fs::read_to_string(children).unwrap_or_default().trim().is_empty()
}

#[test]
fn two_hosts_at_once_run_it_once() {
    let dev = Dev::start();
    let (reader, mut go) = std::io::pipe().unwrap();
    let mut command =
        dev.command(&["run", "--once", "a", "billing", "--", "sh", "-c", "echo held; read go; echo first"]);
    command.stdin(reader);
    let mut first = Process::start(command);
    first.wait_for_line("held");
    let second = dev.start_client(&["run", "--once", "a", "billing", "--", "echo", "never"]);
    dev.wait_until_waiting("billing", 1);
    for command in ["locks", "why", "describe"] {
        let name: &[&str] = if command == "locks" { &[] } else { &["billing"] };
        dev.fencepost(&[&[command], name].concat()).ok().says("job a, attempt 1");
    }
    let locks = dev.fencepost(&["locks", "-o", "json"]).ok().json();
    assert_eq!(locks["held"][0]["job"], serde_json::json!({ "key": "a", "attempt": 1 }), "{locks}");
    assert_eq!(locks["waiting"][0]["job"], serde_json::json!({ "key": "a", "attempt": null }), "{locks}");
    let described = dev.fencepost(&["describe", "billing", "-o", "json"]).ok().json();
    assert_eq!(
        (&described["holders"][0]["job"]["attempt"], &described["waiting"][0]["job"]["key"]),
        (&1.into(), &"a".into())
    );
    dev.fencepost(&["sessions"]).ok().says("billing a, attempt 1").says("waits for billing a");
    let jobs = dev.fencepost(&["jobs", "-o", "json"]).ok().json();
    assert_eq!(
        (&jobs[0]["state"], &jobs[0]["is_held"], &jobs[0]["attempts"]),
        (&"running".into(), &true.into(), &1.into())
    );
    std::io::Write::write_all(&mut go, b"\n").unwrap();
    first.finish().ok().says("first");
    let second = second.finish().ok().says("billing a was done before by attempt 1");
    assert_eq!(second.stdout, "");
}

#[test]
fn once_per_day_runs_once_on_each_day() {
    let dev = Dev::start();
    let day = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 86_400;
    let run =
        || dev.fencepost(&["run", "--once-per", "day", "billing", "--", "sh", "-c", "echo $FENCEPOST_JOB_KEY"]).ok();
    let (first, second) = wait_until("both run on one day", || {
        let today = day();
        let both = (run(), run());
        (day() == today).then_some(both)
    });
    let key = first.stdout.trim();
    assert!(key.len() == 10 && key.starts_with("20"), "{key}");
    assert_eq!(second.says(&format!("billing {key} was done before")).stdout, "");
    let quarter = ["run", "--once-per", "15m", "billing", "--", "sh", "-c", "echo $FENCEPOST_JOB_KEY"];
    let quarter = dev.fencepost(&quarter).ok().stdout;
    assert!([":00Z", ":15Z", ":30Z", ":45Z"].iter().any(|end| quarter.trim().ends_with(end)), "{quarter}");
}

#[test]
fn a_lock_is_kept_for_at_least_the_time_that_was_asked_for() {
    let dev = Dev::start();
    let begun = Instant::now();
    dev.fencepost(&["run", "--at-least", "1s", "a", "--", "sh", "-c", "exit 3"]).with_code(3);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    // The lock is held, and its command has ended.
    let held_on = || {
        let mut run = dev.start_client(&["run", "--at-least", "600s", "a", "--", "sh", "-c", "echo done; exit 4"]);
        run.wait_for_line("done");
        wait_until("the command has ended", || has_no_child(&run).then_some(()));
        run
    };
    let first = held_on();
    dev.fencepost(&["run", "-n", "a", "--", "true"]).with_code(124);
    first.signal(Signal::SIGTERM);
    first.finish().with_code(4);
    let second = held_on();
    dev.fencepost(&["break", "a", "--yes", "--reason", "a test"]).ok();
    second.finish().with_code(4).says("a was lost before --at-least was over: an administrator broke it");
    dev.fencepost(&["run", "-n", "a", "--", "true"]).ok();
}

/// Whatever the command does with its socket and its files, `run` handles signals and tidies up.
#[test]
fn a_command_that_misuses_its_files_and_its_socket_cannot_hold_run_up() {
    let dev = Dev::start();
    let script = "rm $FENCEPOST_RESULT; mkfifo $FENCEPOST_RESULT; echo $FENCEPOST_CHECKPOINT_SOCKET; read go";
    let (reader, mut go) = std::io::pipe().unwrap();
    let start = |key: &str, stdin: std::io::PipeReader| {
        let mut command = dev.command(&["run", "--once", key, "billing", "--", "sh", "-c", script]);
        command.stdin(stdin);
        let mut run = Process::start(command);
        let socket = run.wait_for_line("/checkpoint");
        // More than are served at a time, and none says anything.
        let idle: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&socket).unwrap()).collect();
        (run, socket, idle)
    };
    let (run, socket, _idle) = start("a", reader.try_clone().unwrap());
    run.signal(Signal::SIGTERM);
    run.finish().with_code(128 + 15);
    assert!(!Path::new(&socket).parent().unwrap().exists());
    assert_eq!(dev.show("a")["last_attempt"]["ended"]["error"]["text"], "signal 15");
    let (run, socket, _idle) = start("a", reader);
    std::io::Write::write_all(&mut go, b"\n").unwrap();
    run.finish().ok().says("completed without a result");
    assert!(!Path::new(&socket).parent().unwrap().exists());
    assert_eq!(dev.show("a")["completion"]["result"]["bytes"], 0);
    assert_eq!(dev.fencepost(&["job", "show", "billing", "a", "--result"]).ok().stdout, "");
}

#[test]
fn a_checkpoint_is_stored_only_by_the_command_of_a_job_and_only_if_it_is_short() {
    let dev = Dev::start();
    fencepost(&["checkpoint", "1"]).with_code(2).says("not the command of a job").says("fencepost run --once KEY");
    dev.fencepost(&["run", "a", "--", OWN, "checkpoint", "1"]).with_code(2).says("not the command of a job");
    dev.once("a", "head -c 4097 /dev/zero | $0 checkpoint").with_code(2).says("a checkpoint has at most 4096 bytes");
    dev.once("a", "head -c 4096 /dev/zero | $0 checkpoint && exit 3").with_code(3);
    assert_eq!(dev.show("a")["checkpoint"]["content"]["bytes"], 4096);
    dev.once("a", "$0 checkpoint -5 && printf '\\377\\376' | $0 checkpoint - && exit 3").with_code(3);
    assert_eq!(dev.show("a")["checkpoint"]["content"]["hex"], "fffe");
    dev.fencepost(&["job", "show", "billing", "a"]).ok().says("fffe");
    // The lock is gone: a process that outlived its job.
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let left = "until test -e $1; do sleep 0.02; done; $0 checkpoint 6 2> $2; echo $? >> $2";
    let mut command = dev.command(&["run", "--once", "a", "billing", "--", "sh", "-c"]);
    command.arg("(sh -c \"$3\" \"$0\" \"$1\" \"$2\") </dev/null >/dev/null 2>&1 & exit 3");
    command.arg(OWN).args([path("go"), path("said")]).arg(left);
    Process::start(command).finish().with_code(3);
    std::fs::write(path("go"), "").unwrap();
    let said = wait_until("the checkpoint is refused", || {
        std::fs::read_to_string(path("said")).ok().filter(|said| said.ends_with("123\n"))
    });
    assert!(said.contains("has ended, and its lock with it"), "{said}");
    // 4 KiB of a longer result are kept.
    let long = "head -c 5000 /dev/zero | tr '\\0' x > $FENCEPOST_RESULT";
    dev.once("a", long).ok().says("the result is cut: it has more than 4096 bytes");
    assert_eq!(dev.show("a")["completion"]["result"]["bytes"], 4096);
}

#[test]
fn job_wait_returns_when_the_job_is_completed() {
    let dev = Dev::start();
    // Before its first attempt.
    let early = dev.start_client(&["job", "wait", "billing", "a"]);
    let timed_out = dev.fencepost(&["job", "wait", "billing", "a", "-w", "50ms"]).with_code(124);
    timed_out.says("no attempt has begun").says("billing a is not completed after 50ms");
    dev.once("a", "exit 3").with_code(3);
    let open = dev.start_client(&["job", "wait", "billing", "a"]);
    // Another key, and another name that begins alike.
    dev.once("b", "true").ok();
    dev.fencepost(&["run", "--once", "a", "billing2", "--", "true"]).ok();
    dev.fencepost(&["job", "wait", "billing", "a", "-w", "50ms"]).with_code(124);
    dev.once("a", "true").ok();
    early.finish().ok().says("billing a has succeeded");
    open.finish().ok();
    dev.fencepost(&["job", "wait", "billing", "a"]).ok();
    dev.once("c", "false").with_code(1);
    dev.once_with(&["--attempts", "1"], "c", "true").with_code(122);
    dev.fencepost(&["job", "wait", "billing", "c"]).with_code(122).says("billing c has failed");
}

#[test]
fn an_administrator_completes_and_forgets_jobs() {
    let dev = Dev::start();
    let mut watch = dev.start_client(&["watch", "billing", "-o", "json", "--after", &dev.position()]);
    let mut run = dev.start_client(&["run", "--once", "a", "billing", "--", "sh", "-c", "echo held; exec sleep 600"]);
    run.wait_for_line("held");
    let waiter = dev.start_client(&["run", "--once", "a", "billing", "--", "echo", "never"]);
    dev.wait_until_waiting("billing", 1);
    let act = |what: &str, more: &[&str]| {
        dev.fencepost(&[&["job", what, "billing", "a", "--reason", "by hand"], more].concat())
    };
    act("forget", &["--yes"]).with_code(1).says("billing a is held: end it with `fencepost break --grant 1`");
    act("complete", &[]).with_code(2).says("It loses its lock: session").says("pass --yes");
    act("complete", &["--yes"]).ok().says("completed: billing a");
    act("complete", &["--yes"]).ok().says("nothing was done");
    run.finish().with_code(123);
    waiter.finish().ok().says("completed by the administrator");
    dev.fencepost(&["jobs"]).ok().says("completed by an administrator");
    let shown = dev.show("a");
    assert!(shown["completion"]["by_administrator"].is_string() && shown["completion"]["token"].is_null(), "{shown}");
    act("forget", &["--yes"]).ok().says("forgotten: billing a");
    act("forget", &["--yes"]).with_code(1).says("nothing is remembered of billing a");
    dev.once("a", "$0 checkpoint 1").ok();
    let mut seen = |event: &str| -> serde_json::Value {
        serde_json::from_str(&watch.wait_for_line(&format!("\"event\":\"{event}\""))).unwrap()
    };
    assert_eq!(
        (&seen("job begun")["attempt"], &seen("job completed by an administrator")["reason"]),
        (&1.into(), &"by hand".into())
    );
    assert_eq!(seen("job completed")["key"], "a");
    assert_eq!(seen("job was completed")["names"][0], "billing");
    assert_eq!(seen("job forgotten")["key"], "a");
    assert_eq!(seen("job checkpointed")["attempt"], 1);
    let completed = seen("job completed");
    assert_eq!((&completed["succeeded"], completed["token"].is_u64()), (&true.into(), true), "{completed}");
}

#[test]
fn watch_tells_people_of_jobs_in_words() {
    let dev = Dev::start();
    let mut watch = dev.start_client(&["watch", "--after", &dev.position()]);
    dev.once("a key", "$0 checkpoint secret; exit 3").with_code(3);
    assert!(watch.wait_for_line("job begun").contains("billing  grant=1  key=\"a key\"  attempt=1"));
    assert!(!watch.wait_for_line("job checkpointed").contains("secret"));
}

#[test]
fn job_check_tells_a_monitor_whether_a_job_ran_in_time() {
    let dev = Dev::start();
    let check = |name: &str, within: &str| dev.fencepost(&["job", "check", name, "--within", within]);
    check("billing", "26h").with_code(1).says("billing: no job of this name has succeeded");
    dev.once("a", "false").with_code(1);
    dev.once_with(&["--attempts", "1"], "a", "true").with_code(122);
    dev.fencepost(&["run", "--once", "a", "billing2", "--", "true"]).ok();
    check("billing", "26h").with_code(1);
    dev.once("b", "true").ok();
    let said = check("billing", "26h").ok().says("billing: in time: b was completed");
    assert_eq!(said.stdout.lines().count(), 1);
    check("billing", "0").with_code(1).says("not in time (0ms): b was completed");
    let json = dev.fencepost(&["job", "check", "billing", "--within", "26h", "-o", "json"]).ok().json();
    assert_eq!((&json["in_time"], &json["key"], &json["within_ms"]), (&true.into(), &"b".into(), &93_600_000.into()));
    check("bill", "26h").with_code(1);
    fencepost(&["job", "check", "billing", "--within", "26h", "--server", "127.0.0.1:1"]).with_code(125);
}

#[test]
fn jobs_are_listed_by_name_and_key_and_by_prefix() {
    let dev = Dev::start();
    dev.fencepost(&["jobs"]).ok().says("there are no jobs");
    for key in ["2", "1"] {
        dev.once(key, "true").ok();
    }
    dev.fencepost(&["run", "--once", "1", "shipping", "--", "true"]).ok();
    let keys = |prefix: &str| {
        let jobs = dev.fencepost(&["jobs", prefix, "-o", "json"]).ok().json();
        let jobs =
            jobs.as_array().unwrap().iter().map(|job| format!("{} {}", job["name"], job["key"]).replace('"', ""));
        jobs.collect::<Vec<_>>()
    };
    assert_eq!(keys(""), ["billing 1", "billing 2", "shipping 1"]);
    assert_eq!(keys("bill"), ["billing 1", "billing 2"]);
    dev.fencepost(&["jobs", "other"]).ok().says("there are no jobs of names that begin with \"other\"");
    dev.fencepost(&["jobs", "ship"]).ok().says("shipping  1    completed  1");
}

/// A grant that has begun no attempt: the job has no record yet.
#[test]
fn a_job_that_is_held_and_not_begun_is_listed() {
    let dev = Dev::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _held = runtime.block_on(async {
        let client = fencepost::Client::connect(&format!("fencepost://{}", dev.server)).await.unwrap();
        client.lock("billing").once("a").acquire().await.unwrap()
    });
    dev.fencepost(&["jobs"]).ok().says("billing  a    held   0");
    let jobs = dev.fencepost(&["jobs", "-o", "json"]).ok().json();
    assert_eq!((&jobs[0]["state"], &jobs[0]["is_held"]), (&"held".into(), &true.into()), "{jobs}");
    dev.fencepost(&["job", "show", "billing", "a"]).ok().says("held, and no attempt has begun");
    assert_eq!(dev.show("a")["holder"]["grant"], 1);
    dev.fencepost(&["sessions"]).ok().says("billing a");
    assert_eq!(
        dev.fencepost(&["locks", "-o", "json"]).ok().json()["held"][0]["job"]["attempt"],
        serde_json::Value::Null
    );
}

#[test]
fn a_host_that_dies_leaves_its_checkpoint_to_the_next_one() {
    let dev = Dev::start();
    let directory = tempfile::tempdir().unwrap();
    let script = "$0 checkpoint 42; echo held; exec sleep 600";
    let mut command = dev.command(&["run", "--ttl", "1s", "--once", "a", "billing", "--", "sh", "-c", script, OWN]);
    // What a process that is killed leaves behind.
    command.env("TMPDIR", directory.path());
    let mut first = Process::start(command);
    first.wait_for_line("held");
    first.signal(Signal::SIGKILL);
    let second = dev.once("a", "echo $FENCEPOST_ATTEMPT $(cat $FENCEPOST_LAST_CHECKPOINT); exit 3").with_code(3);
    assert_eq!(second.stdout.trim(), "2 42");
    let mut command = dev.command(&["run", "--ttl", "1s", "--once", "a", "billing", "--", "sh", "-c", script, OWN]);
    command.env("TMPDIR", directory.path());
    let mut third = Process::start(command);
    third.wait_for_line("held");
    third.signal(Signal::SIGKILL);
    wait_until("the lease is over", || {
        let jobs = dev.fencepost(&["jobs", "-o", "json"]).ok().json();
        (jobs[0]["last_attempt"]["ended"]["how"] == "session expired").then_some(())
    });
    dev.fencepost(&["jobs"]).ok().says("session expired");
}
