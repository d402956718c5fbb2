//! The commands that show and administer locks: each once, for people and for programs.

use std::time::Instant;

use nix::sys::signal::Signal;

use crate::harness::{Dev, Process, command, fencepost};

#[test]
fn listings_and_explanations_name_who_holds_and_who_waits() {
    let dev = Dev::start();
    dev.fencepost(&["locks"]).ok().says("nothing is held");
    dev.fencepost(&["sessions"]).ok().says("there are no sessions");
    dev.fencepost(&["why", "jobs/a"]).ok().says("jobs/a is not held.").says("No request waits");
    let holder = dev.hold("jobs/a");
    let _waiter = dev.start_client(&["run", "-w", "60s", "jobs/a", "--", "true"]);
    dev.wait_until_waiting("jobs/a", 1);

    let pid = format!("fencepost run sh, {}, pid {}, started 2", user_at_host(), holder.id());
    dev.fencepost(&["locks"]).ok().says("jobs/a").says("exclusive").says(&pid);
    dev.fencepost(&["locks", "other/"]).ok().says("nothing that begins with \"other/\"");
    let locks = dev.fencepost(&["locks", "jobs/", "-o", "json"]).ok().json();
    assert_eq!(locks["held"][0]["locks"][0]["name"], "jobs/a");
    assert_eq!(locks["held"][0]["token"], 1);
    assert_eq!(locks["waiting"][0]["locks"][0]["mode"], "exclusive");
    for row in [&locks["held"][0], &locks["waiting"][0]] {
        let client = &row["client"];
        let place = format!("{}@{}", client["user"].as_str().unwrap(), client["host"].as_str().unwrap());
        assert_eq!((place, &client["program"]), (user_at_host(), &"fencepost".into()), "{row}");
        assert!(client["started"].as_str().unwrap().ends_with('Z'), "{row}");
    }
    assert_eq!(locks["held"][0]["client"]["pid"], holder.id());

    dev.fencepost(&["sessions"]).ok().says(&pid).says("30s");
    let sessions = dev.fencepost(&["sessions", "-o", "json"]).ok().json();
    assert_eq!(sessions.as_array().unwrap().len(), 2);
    let told = |session: &serde_json::Value| session["client"]["pid"] == holder.id();
    assert!(sessions.as_array().unwrap().iter().any(told), "{sessions}");

    dev.fencepost(&["describe", "jobs/a"]).ok().says("GRANT").says("PLACE").says(&pid);
    dev.fencepost(&["why", "jobs/a"]).ok().says("is held (exclusive) by session").says(&pid).says("One request waits:");
    let why = dev.fencepost(&["why", "jobs/a", "-o", "json"]).ok().json();
    assert_eq!(why["waiting_count"], 1);
    assert_eq!(why["blockers"][0]["blocked_by"]["grant"], 1);

    dev.fencepost(&["members"]).ok().says("n1").says("voter").says("yes");
    let members = dev.fencepost(&["member", "list", "-o", "json"]).ok().json();
    assert_eq!(members["members"][0]["name"], "n1");
    dev.fencepost(&["top"]).with_code(2).says("top needs a terminal");
}

/// Logical time stands still while the cluster does; people see how long a lock was really held.
#[test]
fn ages_are_by_the_wall_clock_and_stamps_are_for_programs() {
    let dev = Dev::start();
    let _holder = dev.hold("a");
    let held = || dev.fencepost(&["locks", "-o", "json"]).ok().json()["held"][0].clone();
    let before = held();
    let paused_ms = 3_000;
    dev.process.signal(Signal::SIGSTOP);
    let stopped = Instant::now();
    crate::harness::wait_until("the pause is over", || (stopped.elapsed().as_millis() >= paused_ms).then_some(()));
    dev.process.signal(Signal::SIGCONT);
    let after = held();
    for same in ["grant", "since", "since_stamp_ms"] {
        assert_eq!(before[same], after[same], "{same}");
    }
    let age_ms = |held: &serde_json::Value| u128::from(held["age_ms"].as_u64().unwrap());
    assert!(age_ms(&after) >= age_ms(&before) + paused_ms, "{before} {after}");
    let since = after["since"].as_str().unwrap();
    assert!(since.ends_with('Z') && since.contains('T'), "{since}");
    let shown = since.replace('T', " ");
    dev.fencepost(&["describe", "a"]).ok().says(&shown[..19]).says("HELD FOR");
    dev.fencepost(&["why", "a"]).ok().says(&format!("(since {} UTC)", &shown[..19]));
    dev.fencepost(&["locks"]).ok().says("HELD FOR");
}

/// The user that runs the tests, and this machine. Neither is in the environment of the commands.
fn user_at_host() -> String {
    let id = nix::unistd::Uid::current();
    let user = nix::unistd::User::from_uid(id).unwrap().map_or(id.to_string(), |user| user.name);
    format!("{user}@{}", nix::unistd::gethostname().unwrap().to_str().unwrap())
}

#[test]
fn locks_of_many_sessions_are_joined_with_their_clients() {
    let dev = Dev::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _held = runtime.block_on(async {
        let client = fencepost::Client::connect(&format!("fencepost://{}", dev.server)).await.unwrap();
        let mut held = Vec::new();
        // More than are looked up one by one.
        for number in 0..25 {
            let facts = format!("name=worker {number}\r\nhost = rack-{number}\r\nnonsense");
            let session = client.session().metadata(facts).open().unwrap();
            held.push(session.lock(format!("job/{number}")).acquire().await.unwrap());
        }
        held
    });
    let locks = dev.fencepost(&["locks", "job/", "-o", "json"]).ok().json();
    let held = locks["held"].as_array().unwrap();
    assert_eq!(held.len(), 25);
    for row in held {
        let number = row["locks"][0]["name"].as_str().unwrap().strip_prefix("job/").unwrap();
        assert_eq!(
            row["client"],
            serde_json::json!({ "name": format!("worker {number}"), "host": format!("rack-{number}") })
        );
    }
    dev.fencepost(&["locks"]).ok().says("(worker 24, on rack-24)");
}

#[test]
fn the_reason_of_an_act_reaches_the_clients_that_it_hits() {
    let dev = Dev::start();
    let holder = dev.hold("a");
    let waiter = dev.start_client(&["run", "-w", "60s", "a", "--", "true"]);
    dev.wait_until_waiting("a", 1);
    let locks = dev.fencepost(&["locks", "-o", "json"]).ok().json();
    let waits = locks["waiting"][0]["session"].as_str().unwrap();
    dev.fencepost(&["evict", waits, "--yes", "--reason", "too many workers"]).ok();
    waiter.finish().says("evicted by an administrator: too many workers");
    let holds = locks["held"][0]["session"].as_str().unwrap();
    dev.fencepost(&["evict", holds, "--yes", "--reason", "a\nlong reason"]).ok();
    holder.finish().with_code(123).says("an administrator evicted its session: a long reason");

    let address = format!("fencepost://{}", dev.server);
    let program = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = fencepost::Client::connect(&address).await.unwrap();
            let _held = client.semaphore("pool").limit(3).permits(2).acquire().await.unwrap();
            client.semaphore("pool").limit(3).permits(3).wait_forever().acquire().await.map(drop)
        })
    });
    dev.wait_until_waiting("pool", 1);
    dev.fencepost(&["limit", "pool", "2", "--reason", "licences were sold"]).ok();
    let refused = program.join().unwrap().expect_err("it wants more than the new limit").to_string();
    assert_eq!(refused, "an administrator lowered the limit of pool to 2: licences were sold");
}

#[test]
fn acts_have_an_author() {
    let dev = Dev::start();
    let mut watch = dev.start_client(&["watch", "a", "-o", "json"]);
    let author = format!("unverified {}", user_at_host());
    let told = crate::harness::wait_until("the watch sees something", || {
        dev.fencepost(&["freeze", "a", "--reason", "a test"]).ok();
        watch.line_if_any("frozen")
    });
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["by"], &told["reason"]), (&author.as_str().into(), &"a test".into()), "{told}");
    dev.fencepost(&["freezes"]).ok().says(&author);
    dev.fencepost(&["why", "a"]).ok().says(&author);
}

#[test]
fn piped_output_has_no_colours() {
    let dev = Dev::start();
    let _holder = dev.hold("a");
    assert!(!dev.fencepost(&["locks"]).ok().stdout.contains('\x1b'), "no colours in a pipe");
}

#[test]
fn a_watch_prints_events_and_continues_after_a_position() {
    let dev = Dev::start();
    let mut watch = dev.start_client(&["watch", "a"]);
    // The watch reports its start on standard error only. So act until it prints an event.
    let first = crate::harness::wait_until("the watch sees something", || {
        dev.fencepost(&["run", "a", "--", "true"]).ok();
        watch.line_if_any("granted")
    });
    let position = first.split_whitespace().next().unwrap().to_owned();
    assert!(first.contains("a (exclusive)"), "{first}");
    let time = first.split_whitespace().nth(1).unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && time.len() == 24, "{first}");
    assert!(first.contains("client=\"fencepost run true"), "{first}");

    let mut again = dev.start_client(&["watch", "a", "--after", &position, "-o", "json"]);
    let next = again.wait_for_line("released");
    let next: serde_json::Value = serde_json::from_str(&next).unwrap();
    assert_eq!(next["event"], "released");
    assert_eq!(next["names"][0], "a");
    assert_ne!(next["position"], position);
    assert!(next["time"].as_str().unwrap().ends_with('Z'), "{next}");

    // This session was open before the watch began.
    let holder = dev.hold("a");
    let pid = holder.id();
    let held = dev.fencepost(&["describe", "a", "-o", "json"]).ok().json();
    let token = held["holders"][0]["token"].as_u64().unwrap();
    let position = again.wait_for_line(&format!("\"token\":{token}"));
    let position: serde_json::Value = serde_json::from_str(&position).unwrap();
    let mut late = dev.start_client(&["watch", "a", "--after", position["position"].as_str().unwrap(), "-o", "json"]);
    // A killed client closes nothing: its session stays until it expires.
    drop(holder);
    dev.fencepost(&["break", "a", "--yes", "--reason", "a test"]).ok();
    let broken = late.wait_for_line("\"broken\"");
    let broken: serde_json::Value = serde_json::from_str(&broken).unwrap();
    assert_eq!(broken["client"]["pid"], pid, "{broken}");

    // Numbers are numbers, and what is not there is null.
    let _holder = dev.hold("a");
    let _waiter = dev.start_client(&["run", "a", "--", "true"]);
    let queued: serde_json::Value = serde_json::from_str(&late.wait_for_line("\"queued\"")).unwrap();
    assert!(queued["arrival"].is_u64(), "{queued}");
    for (permits, limit) in [("3", serde_json::json!(3)), ("--none", serde_json::Value::Null)] {
        dev.fencepost(&["limit", "a pool", permits]).ok();
        let changed: serde_json::Value = serde_json::from_str(&late.wait_for_line("\"limit\"")).unwrap();
        assert_eq!(changed.get("limit"), Some(&limit), "{changed}");
    }
}

#[test]
fn administrators_break_evict_freeze_thaw_and_limit() {
    let dev = Dev::start();
    let holder = dev.hold("a");
    dev.fencepost(&["break", "a", "--reason", "x"]).with_code(2).says("grant 1 of a").says("pass --yes");
    dev.fencepost(&["break", "--grant", "1", "--yes", "--reason", "x"]).ok().says("grant 1 of a");
    holder.finish().with_code(123);
    dev.fencepost(&["break", "--grant", "1", "--yes", "--reason", "x"]).with_code(1).says("fencepost locks");
    dev.fencepost(&["break", "a", "--yes", "--reason", "x"]).with_code(1).says("a is not held");

    let holder = dev.hold("a");
    let sessions = dev.fencepost(&["sessions", "-o", "json"]).ok().json();
    let session = sessions[0]["session"].as_str().unwrap();
    dev.fencepost(&["evict", &session[..8], "--reason", "x"]).with_code(2).says("pass --yes");
    dev.fencepost(&["evict", &session[..8], "--yes", "--reason", "x"]).ok().says("which holds 1");
    holder.finish().with_code(123).says("an administrator evicted its session: x");
    dev.fencepost(&["evict", session, "--yes", "--reason", "x"]).with_code(1).says("fencepost sessions");

    let freeze = dev.fencepost(&["freeze", "--prefix", "a", "--reason", "a test"]).ok().stdout;
    dev.fencepost(&["run", "-n", "ab", "--", "true"]).with_code(124);
    dev.fencepost(&["why", "ab"]).ok().says("frozen").says("a test");
    dev.fencepost(&["freezes"]).ok().says("a*");
    dev.fencepost(&["thaw", &freeze[..10]]).ok();
    dev.fencepost(&["run", "-n", "ab", "--", "true"]).ok();
    dev.fencepost(&["thaw", &freeze[..10]]).with_code(1).says("fencepost freezes");
    dev.fencepost(&["freeze", "b", "--reason", "a test"]).ok();
    dev.fencepost(&["thaw", "--name", "b"]).ok();
    dev.fencepost(&["thaw", "--name", "b"]).with_code(1);

    dev.fencepost(&["limit", "pool", "3"]).ok();
    dev.fencepost(&["describe", "pool"]).ok().says("0 of 3");
    dev.fencepost(&["run", "-n", "pool", "--", "true"]).with_code(2).says("semaphore");
    dev.fencepost(&["limit", "pool", "--none"]).ok();
    dev.fencepost(&["run", "-n", "pool", "--", "true"]).ok();
}

#[test]
fn systems_are_listed_with_their_promises_and_reasons() {
    fencepost(&["backends"]).ok().says("redlock").says("zookeeper").says("FAIL-OVER").says("correctness");
    let overview = fencepost(&["backends"]).ok().says("ONLY IN FENCEPOST").says("semaphores");
    for line in overview.stdout.lines() {
        assert!(line.chars().count() <= 80, "it fits on a terminal of 80 columns: {line}");
    }
    fencepost(&["backends", "redis"]).ok().says("redis://host:6379/").says("no   fencing token").says("fail-over");
    fencepost(&["backends", "redis"]).ok().says("no   semaphores").says("the library asks this system for locks only");
    fencepost(&["backends", "postgres"]).ok().says("advisory").says("postgres+row://").says("if there is one primary");
    let systems = fencepost(&["backends", "-o", "json"]).ok().json();
    let etcd = systems.as_array().unwrap().iter().find(|system| system["system"] == "etcd").expect("it is listed");
    assert_eq!(etcd["tier"], "correctness");
    assert!(etcd["promises"].as_array().unwrap().iter().any(|it| it["promise"] == "shared" && it["kept"] == "yes"));
    fencepost(&["backends", "memcached"]).with_code(2).says("write one of fencepost").says("etcd");
}

/// Addresses as people write them reach the same cluster: with and without a scheme, from a flag and from the environment.
#[test]
fn every_form_of_an_address_reaches_the_cluster() {
    let dev = Dev::start();
    let port = dev.server.rsplit_once(':').unwrap().1;
    let forms = [
        dev.server.clone(),
        format!("localhost:{port}"),
        format!("fencepost://{}", dev.server),
        format!("fencepost://{}/", dev.server),
        format!("http://{}", dev.server),
        format!("127.0.0.1:1,{}", dev.server),
    ];
    for form in &forms {
        fencepost(&["locks", "--server", form]).ok();
        fencepost(&["members", "--server", form]).ok();
        let mut command = command(&["run", "a", "--", "true"]);
        command.env("FENCEPOST_SERVER", form);
        Process::start(command).finish().ok();
    }
    fencepost(&["bench", "--seconds", "1", "--contenders", "1", "--server", &forms[2]]).ok();
    // Without a port it is 7420, where no node listens on this address.
    fencepost(&["locks", "--server", "127.0.0.9"]).with_code(125).says("127.0.0.9:7420");
}

#[test]
fn list_is_another_name_for_locks() {
    let dev = Dev::start();
    let _holder = dev.hold("a");
    assert!(dev.fencepost(&["list"]).ok().stdout.contains("a     exclusive"));
    fencepost(&["--help"]).ok().says("list");
}

/// Programs read JSON: a truth value is `true` or `false`, and a number has no quotes.
#[test]
fn truth_values_are_booleans_in_every_json() {
    fn texts<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>) {
        match value {
            serde_json::Value::String(text) => found.push(text),
            serde_json::Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
            serde_json::Value::Object(values) => values.values().for_each(|value| texts(value, found)),
            _ => {}
        }
    }
    let dev = Dev::start();
    let _holder = dev.hold("a");
    dev.fencepost(&["limit", "pool", "3"]).ok();
    dev.fencepost(&["freeze", "b", "--reason", "a test"]).ok();
    let outputs: &[&[&str]] = &[
        &["locks"],
        &["sessions"],
        &["members"],
        &["describe", "a"],
        &["describe", "pool"],
        &["why", "a"],
        &["freezes"],
        &["config", "view"],
    ];
    for args in outputs {
        let json = dev.fencepost(&[*args, &["-o", "json"]].concat()).ok().json();
        let mut found = Vec::new();
        texts(&json, &mut found);
        assert!(!found.iter().any(|text| ["true", "false", "yes", "no"].contains(text)), "{args:?}: {json}");
    }
    let settings = dev.fencepost(&["config", "view", "-o", "json"]).ok().json();
    let value = |key: &str| settings.as_array().unwrap().iter().find(|it| it["key"] == key).unwrap()["value"].clone();
    assert_eq!(value("insecure"), false);
    assert_eq!(value("snapshot-every-entries"), 100_000);
    assert_eq!(value("ca"), serde_json::Value::Null);
    assert_eq!(value("listen-client"), "127.0.0.1:7420");
}

#[test]
fn a_closed_standard_output_is_not_a_failure() {
    let mut command = crate::harness::command(&["completion", "bash"]);
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let stderr = child.wait_with_output().unwrap();
    assert!(stderr.stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr.stderr));
}

#[test]
fn text_of_users_cannot_control_a_terminal() {
    let dev = Dev::start();
    let mut command = dev.command(&["freeze", "a", "--reason", "\x1b[2J"]);
    command.env("NO_COLOR", "1");
    Process::start(command).finish().ok();
    let shown = dev.fencepost(&["freezes"]).ok().stdout;
    assert!(!shown.contains('\x1b') && shown.contains("\\u{1b}[2J"), "{shown:?}");
}

#[test]
fn why_shows_a_suspected_deadlock_between_sessions() {
    let dev = Dev::start();
    let address = format!("fencepost://{}", dev.server);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    // Two programs take two locks in opposite order, without owners.
    let programs = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let first = fencepost::Client::builder().name("first").address(&address).unwrap().connect().await.unwrap();
            let second = fencepost::Client::connect(&address).await.unwrap();
            let _held = (first.lock("a").acquire().await.unwrap(), second.lock("b").acquire().await.unwrap());
            tokio::select! {
                it = first.lock("b").wait_forever().acquire() => panic!("b is held: {it:?}"),
                it = second.lock("a").wait_forever().acquire() => panic!("a is held: {it:?}"),
                _ = stopped => {}
            }
        });
    });
    dev.wait_until_waiting("a", 1);
    dev.wait_until_waiting("b", 1);
    let said =
        dev.fencepost(&["why", "a"]).ok().says("A deadlock is suspected.").says("give each unit of work an owner");
    let circle: Vec<&str> = said.stdout.lines().filter(|line| line.contains(", held by session")).collect();
    assert_eq!(circle.len(), 2, "{}", said.stdout);
    assert!(circle[0].contains("waits for a, held by") && circle[1].contains("waits for b, held by"), "{circle:?}");
    assert!(circle[1].contains("(first, program it-"), "{circle:?}");
    let why = dev.fencepost(&["why", "b", "-o", "json"]).ok().json();
    let links = why["suspected_deadlock"].as_array().unwrap();
    assert_eq!((links.len(), &links[0]["waits_for"], &links[1]["waits_for"]), (2, &"b".into(), &"a".into()), "{why}");
    stop.send(()).unwrap();
    programs.join().unwrap();
}
