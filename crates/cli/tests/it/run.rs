//! `fencepost run`: exit codes, environment and signals, and that the command is gone before the next holder starts.

use crate::harness::{Dev, Link, Process, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

#[test]
fn the_command_gets_the_lock_and_its_exit_code_comes_back() {
    let dev = Dev::start();
    let script = "echo $FENCEPOST_LOCK $FENCEPOST_TOKEN $FENCEPOST_DEADLINE; exit 7";
    let first = dev.fencepost(&["run", "job", "--", "sh", "-c", script]).with_code(7);
    let second = dev.fencepost(&["run", "-s", "job", "--", "sh", "-c", script]).with_code(7);
    let words = |stdout: &str| stdout.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (first, second) = (words(&first.stdout), words(&second.stdout));
    assert_eq!(first[0], "job");
    let token = |words: &[String]| words[1].parse::<u64>().unwrap();
    assert!(token(&second) > token(&first), "tokens rise");
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let deadline_ms: u128 = second[2].parse().unwrap();
    assert!(deadline_ms > now_ms && deadline_ms < now_ms + 31_000, "{deadline_ms} is within the TTL of {now_ms}");
    // The lock was released, and the session closed.
    dev.fencepost(&["run", "-n", "job", "--", "true"]).ok();
    assert_eq!(dev.fencepost(&["sessions", "-o", "json"]).ok().json().as_array().unwrap().len(), 0);
}

/// The command does not inherit the secrets of `run`. Other variables are passed on.
#[test]
fn the_command_does_not_inherit_a_secret() {
    let dev = Dev::start();
    let script = "echo ${FENCEPOST_STORE_PASSWORD-gone} $FENCEPOST_SERVER $FENCEPOST_LOG_LEVEL $PGPASSWORD";
    let mut command = dev.command(&["run", "job", "--", "sh", "-c", script]);
    command.env("FENCEPOST_STORE_PASSWORD", "hush").env("FENCEPOST_LOG_LEVEL", "warn").env("PGPASSWORD", "theirs");
    let seen = Process::start(command).finish().ok().stdout;
    assert_eq!(seen.trim(), format!("gone {} warn theirs", dev.server));
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

#[test]
fn every_outcome_has_its_exit_code() {
    let dev = Dev::start();
    dev.fencepost(&["run", "a", "--", "sh", "-c", "kill -KILL $$"]).with_code(128 + 9);
    dev.fencepost(&["run", "a", "--", "sh", "-c", "kill -TERM $$"]).with_code(128 + 15);
    dev.fencepost(&["run", "a", "--", "no-such-command"]).with_code(127).says("PATH");
    dev.fencepost(&["run", "a", "--", "/"]).with_code(126).says("check that it is a program");
    let holder = dev.hold("a");
    dev.fencepost(&["run", "-n", "a", "--", "true"]).with_code(124).says("fencepost why a");
    dev.fencepost(&["run", "-n", "-E", "9", "a", "--", "true"]).with_code(9);
    // It says on which machine the holder is.
    let timed_out = dev.fencepost(&["run", "-w", "50ms", "a", "--", "true"]).with_code(124);
    timed_out.says("fencepost: the holder is session ").says(&format!("@{}, pid {}, started 2", host(), holder.id()));
    dev.fencepost(&["run", "-w", "0", "a", "--", "true"]).with_code(124);
    dev.fencepost(&["run", "-n", "-s", "a", "--", "true"]).with_code(124);
    dev.fencepost(&["break", "a", "--yes", "--reason", "a test"]).ok();
    holder.finish().with_code(123).says("an administrator broke it: a test");
    dev.fencepost(&["run", "-n", "a", "--", "true"]).ok();
    crate::harness::fencepost(&["run", "--server", "127.0.0.1:1", "a", "--", "true"])
        .with_code(125)
        .says("fencepost dev");
}

/// 124 means that a later try may succeed. Everything else has another code.
#[test]
fn only_a_lock_that_is_not_free_has_the_code_124() {
    let dev = Dev::start();
    let run = |args: &[&str]| dev.fencepost(&[&["run"], args, &["--", "true"]].concat());
    dev.fencepost(&["freeze", "frozen", "--reason", "a test"]).ok();
    run(&["-n", "frozen"]).with_code(124).says("frozen is frozen");
    run(&["-w", "0.05", "frozen"]).with_code(124).says("fencepost why frozen");
    // A name of the other kind.
    dev.fencepost(&["limit", "pool", "2"]).ok();
    run(&["-n", "pool"]).with_code(2).says("pool is a semaphore: give --permits 1");
    run(&["a", "pool"]).with_code(2).says("pool is a semaphore");
    let _holder = dev.hold("lock");
    run(&["--limit", "2", "lock"]).with_code(2).says("lock is in use as a lock: leave --permits and --limit out");
    // Every other refusal.
    run(&["--permits", "1", "free"]).with_code(1).says("free has no limit yet: give --limit N");
    run(&["--limit", "3", "pool"]).with_code(1).says("pool has the limit 2: give --limit 2");
    run(&["--permits", "3", "pool"]).with_code(1).says("pool has only 2 permits in all");
    // The other code of -E is for 124 only.
    run(&["-n", "-E", "9", "frozen"]).with_code(9);
    run(&["-E", "9", "--permits", "1", "free"]).with_code(1);
    run(&["-E", "9", "pool"]).with_code(2);
    // The efficiency tier.
    let mut holder =
        dev.start_client(&["run", "--tier", "efficiency", "fast", "--", "sh", "-c", "echo held; exec sleep 600"]);
    holder.wait_for_line("held");
    run(&["-n", "--tier", "efficiency", "fast"]).with_code(124).says("the efficiency tier does not say");
    let timed_out =
        run(&["-w", "50ms", "--tier", "efficiency", "fast"]).with_code(124).says("does not tell who holds it");
    assert!(!timed_out.stderr.contains("fencepost why"), "it would explain the lock of the other tier: {timed_out:?}");
}

/// The names, and the token if there is one. An inherited token belongs to another lock, so the command must not see it.
#[test]
fn the_command_knows_its_locks_and_only_its_own_token() {
    let dev = Dev::start();
    let seen = |args: &[&str]| {
        let script = "echo \"$FENCEPOST_LOCK\" | tr '\\n' ,; echo \" ${FENCEPOST_TOKEN-none}\"";
        let mut command = dev.command(&[&["run"], args, &["--", "sh", "-c", script]].concat());
        command.env("FENCEPOST_TOKEN", "inherited");
        Process::start(command).finish().ok().stdout.trim().to_owned()
    };
    let token = |said: &str, locks: &str| {
        let token = said.strip_prefix(locks).unwrap_or_else(|| panic!("{said:?} should begin with {locks:?}"));
        token.trim().parse::<u64>().unwrap_or_else(|_| panic!("{said:?} has a token"))
    };
    let one = token(&seen(&["a"]), "a, ");
    let several = token(&seen(&["b", "a"]), "b,a, ");
    let shared = token(&seen(&["-s", "a", "b"]), "a,b, ");
    assert!(one < several && several < shared, "tokens rise");
    assert_eq!(seen(&["--limit", "2", "pool"]), "pool, none");
    assert_eq!(seen(&["--permits", "2", "--limit", "2", "pool"]), "pool, none");
    assert_eq!(seen(&["--tier", "efficiency", "a"]), "a, none");
    assert_eq!(seen(&["--tier", "efficiency", "-s", "a", "b"]), "a,b, none");
}

#[test]
fn several_locks_are_held_together_or_not_at_all() {
    let dev = Dev::start();
    let script = "echo held; exec sleep 600";
    let mut both = dev.start_client(&["run", "--owner", "mover", "a", "b", "--", "sh", "-c", script]);
    both.wait_for_line("held");
    dev.fencepost(&["run", "-n", "a", "--", "true"]).with_code(124);
    dev.fencepost(&["run", "-n", "c", "b", "--", "true"]).with_code(124).says("c, b was not acquired").says("why b");
    dev.fencepost(&["run", "-n", "c", "--", "true"]).ok();
    let held = dev.fencepost(&["locks", "-o", "json"]).ok().json();
    let grant = &held["held"][0];
    assert_eq!((grant["locks"].as_array().unwrap().len(), &grant["owner"]), (2, &"mover".into()), "{held}");
    dev.fencepost(&["break", "a", "--yes", "--reason", "a test"]).ok();
    both.finish().with_code(123).says("a, b was lost");
}

#[test]
fn a_semaphore_lets_as_many_commands_run_as_it_has_permits() {
    let dev = Dev::start();
    let hold = |args: &[&str]| {
        let mut holder = dev.start_client(&[&["run"], args, &["--", "sh", "-c", "echo held; exec sleep 600"]].concat());
        holder.wait_for_line("held");
        holder
    };
    let _first = hold(&["--limit", "3", "pool"]);
    let second = hold(&["--limit", "3", "--permits", "2", "pool"]);
    dev.fencepost(&["run", "-n", "--limit", "3", "pool", "--", "true"]).with_code(124).says("fencepost why pool");
    second.signal(Signal::SIGTERM);
    second.finish().with_code(128 + 15);
    dev.fencepost(&["run", "-n", "--permits", "2", "pool", "--", "true"]).ok();
}

#[test]
fn readers_share() {
    let dev = Dev::start();
    let mut reader = dev.start_client(&["run", "-s", "a", "--", "sh", "-c", "echo held; exec sleep 600"]);
    reader.wait_for_line("held");
    dev.fencepost(&["run", "-n", "-s", "a", "--", "true"]).ok();
    dev.fencepost(&["run", "-n", "a", "--", "true"]).with_code(124);
}

#[test]
fn signals_are_passed_on() {
    let dev = Dev::start();
    let table = [
        (Signal::SIGINT, "INT"),
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGWINCH, "WINCH"),
    ];
    for (signal, name) in table {
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.02; done");
        let mut run = dev.start_client(&["run", name, "--", "sh", "-c", &script]);
        run.wait_for_line("ready");
        run.signal(signal);
        run.finish().with_code(5).says(&format!("got {name}"));
    }
}

#[test]
fn a_signal_while_it_waits_takes_it_out_of_the_queue() {
    let dev = Dev::start();
    let _holder = dev.hold("a");
    let waiter = dev.start_client(&["run", "a", "--", "true"]);
    dev.wait_until_waiting("a", 1);
    waiter.signal(Signal::SIGTERM);
    waiter.finish().with_code(128 + 15);
    dev.wait_until_waiting("a", 0);
}

#[test]
fn at_the_max_hold_the_command_gets_term_and_then_kill() {
    let dev = Dev::start();
    let polite = "trap 'echo told; exit 0' TERM; while :; do sleep 0.02; done";
    dev.fencepost(&["run", "--max-hold", "1s", "a", "--", "sh", "-c", polite]).with_code(123).says("told");
    let stubborn = "trap '' TERM; while :; do sleep 0.02; done";
    dev.fencepost(&["run", "--max-hold", "1s", "a", "--", "sh", "-c", stubborn]).with_code(123).says("lost");
}

#[test]
fn a_command_whose_network_is_cut_is_gone_before_the_next_holder_starts() {
    let dev = Dev::start();
    let link = Link::to(&dev.server);
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // The command ignores TERM, and so do its children.
    let stubborn = "trap '' TERM; echo held; while :; do date +%s%N >> first; done";
    let mut command = crate::harness::command(&["run", "--ttl", "1s", "a", "--", "sh", "-c", stubborn]);
    command.env("FENCEPOST_SERVER", link.address.to_string()).current_dir(&directory);
    let mut first = Process::start(command);
    first.wait_for_line("held");
    let mut command = dev.command(&["run", "a", "--", "sh", "-c", "date +%s%N > second"]);
    command.current_dir(&directory);
    let second = Process::start(command);
    dev.wait_until_waiting("a", 1);
    link.cut();
    second.finish().ok();
    first.finish().with_code(123).says("a was lost");
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    let began: u128 = read("second").trim().parse().unwrap();
    let last: u128 = read("first").lines().filter_map(|line| line.parse().ok()).next_back().unwrap();
    assert!(last < began, "the first wrote at {last}, and the second had begun at {began}");
}

#[test]
fn a_command_dies_when_its_fencepost_run_is_killed() {
    let dev = Dev::start();
    let mut run = dev.start_client(&["run", "a", "--", "sh", "-c", "echo pid $$; exec sleep 600"]);
    let line = run.wait_for_line("pid ");
    let child = Pid::from_raw(line.strip_prefix("pid ").unwrap().parse().unwrap());
    run.signal(Signal::SIGKILL);
    // It is not our child, so another process reaps it. Until then it is a zombie (Z).
    wait_until("the command is gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        (kill(child, None).is_err() || stat.contains(") Z ")).then_some(())
    });
}

/// Without the check it would wait for itself, and this test would time out.
#[test]
fn a_run_inside_a_run_of_the_same_lock_is_refused_at_once() {
    let dev = Dev::start();
    fn inner<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&[env!("CARGO_BIN_EXE_fencepost"), "run"], args].concat()
    }
    let nested = |outer: &[&str], inner: &[&str]| dev.fencepost(&[&["run"], outer, &["--"], inner].concat());
    nested(&["nightly"], &inner(&["nightly", "--", "true"])).with_code(124).says("would wait for itself for ever");
    nested(&["nightly"], &inner(&["-E", "9", "-w", "600s", "nightly", "--", "true"])).with_code(9).says("(grant ");
    nested(&["nightly"], &inner(&["-n", "nightly", "--", "true"]))
        .with_code(124)
        .says("would wait for itself for ever");
    // In every mode, at every depth, and on paths.
    nested(&["-s", "nightly"], &inner(&["nightly", "--", "true"])).with_code(124).says("wait for itself");
    nested(&["nightly"], &inner(&["-s", "nightly", "--", "true"])).with_code(124).says("wait for itself");
    nested(&["/a"], &inner(&["/a/b", "--", "true"])).with_code(124).says("wait for itself");
    nested(&["/a/b"], &inner(&["/a", "--", "true"])).with_code(124).says("wait for itself");
    let deep = inner(&["nightly", "--", "true"]);
    let middle = [&inner(&["other", "--"])[..], &deep].concat();
    nested(&["nightly"], &middle).with_code(124).says("wait for itself");
    // One of several locks, whichever is not free first.
    nested(&["b"], &inner(&["a", "b", "--", "true"])).with_code(124).says("wait for itself");
    nested(&["a", "b"], &inner(&["b", "--", "true"])).with_code(124).says("wait for itself");
    let _other = dev.hold("a");
    nested(&["b"], &inner(&["a", "b", "--", "true"])).with_code(124).says("wait for itself");
    nested(&["c"], &inner(&["-n", "a", "b", "--", "true"])).with_code(124).says("fencepost why a");
    // The efficiency tier has names of its own.
    let fast = ["--tier", "efficiency", "nightly"];
    nested(&fast, &inner(&[&fast[..], &["--", "true"]].concat())).with_code(124).says("wait for itself");
    nested(&fast, &inner(&["nightly", "--", "true"])).ok();
    nested(&["nightly"], &inner(&[&fast[..], &["--", "true"]].concat())).ok();
    // Another lock is granted, and so is a shared lock inside a shared lock.
    nested(&["nightly"], &inner(&["other", "--", "true"])).ok();
    nested(&["-s", "nightly"], &inner(&["-s", "nightly", "--", "true"])).ok();
}

/// A permit that another command holds will be free one day. A permit that an outer `run` holds will not.
#[test]
fn permits_inside_permits_are_refused_if_they_can_never_be_had() {
    let dev = Dev::start();
    dev.fencepost(&["limit", "pool", "3"]).ok();
    let nested = |outer: &str, inner: &[&str]| {
        let own = [env!("CARGO_BIN_EXE_fencepost"), "run"];
        dev.fencepost(&[&["run", "--permits", outer, "pool", "--"], &own[..], inner, &["pool", "--", "true"]].concat())
    };
    nested("1", &["--permits", "2"]).ok();
    nested("2", &["--permits", "2"]).with_code(124).says("wait for itself");
    let mut other = dev.start_client(&["run", "--permits", "1", "pool", "--", "sh", "-c", "echo held; exec sleep 600"]);
    other.wait_for_line("held");
    nested("2", &["-w", "50ms", "--permits", "1"])
        .with_code(124)
        .says("as of now it is held by")
        .says("`fencepost why pool`");
    nested("1", &["--permits", "3"]).with_code(124).says("wait for itself");
}

#[test]
fn a_reader_inside_a_reader_is_refused_when_a_writer_waits_between_them() {
    let dev = Dev::start();
    // The inner `run` starts after the writer waits.
    let script = "echo held; read go; exec \"$0\" run -s a -- true";
    let mut command = dev.command(&["run", "-s", "a", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_fencepost")]);
    let (reader, mut go) = std::io::pipe().unwrap();
    command.stdin(reader);
    let mut outer = Process::start(command);
    outer.wait_for_line("held");
    let writer = dev.start_client(&["run", "a", "--", "true"]);
    dev.wait_until_waiting("a", 1);
    std::io::Write::write_all(&mut go, b"\n").unwrap();
    // The inner reader must not pass the writer, which waits for the outer reader.
    outer.finish().with_code(124).says("wait for itself");
    writer.finish().ok();
}

#[test]
fn a_command_left_in_the_background_gets_the_lock_that_it_once_ran_under() {
    let dev = Dev::start();
    let own = env!("CARGO_BIN_EXE_fencepost");
    let directory = tempfile::tempdir().unwrap();
    let (go, done) = (directory.path().join("go"), directory.path().join("done"));
    // It waits until its parent has released the lock, and keeps no pipe of the test open.
    let script =
        "(until test -e \"$1\"; do sleep 0.05; done; \"$0\" run -w 30s a -- touch \"$2\") </dev/null >/dev/null 2>&1 &";
    let (go_at, done_at) = (go.display().to_string(), done.display().to_string());
    dev.fencepost(&["run", "a", "--", "sh", "-c", script, own, &go_at, &done_at]).ok();
    // Another holder has the lock now, so the first try is busy and the command must wait.
    let holder = dev.hold("a");
    std::fs::write(&go, "").unwrap();
    dev.wait_until_waiting("a", 1);
    drop(holder);
    dev.fencepost(&["break", "a", "--yes", "--reason", "a test"]).ok();
    wait_until("the command in the background ran", || done.exists().then_some(()));
}
