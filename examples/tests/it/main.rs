//! Runs every example as a user does: as a process, against a real server. What it prints is what its page promises.
//!
//! Fencepost runs in this process; Postgres and Redis are real servers of the testbed.

mod program;

use std::path::Path;

use fencepost::blocking::Client;
use fencepost::{Event, Watch};
use fencepost_testbed::{Kind, shared};
use fencepost_testing::TestServer;
use program::{PATIENCE, Program};

/// No server can listen on port 0.
const NO_SERVER: &str = "127.0.0.1:0";

/// A program of this crate, by its name.
macro_rules! program {
    ($name:literal) => {
        Program::new(env!(concat!("CARGO_BIN_EXE_", $name)))
    };
}

fn client_of(server: &TestServer) -> Client {
    Client::connect(&format!("fencepost://{}", server.address())).unwrap()
}

fn is_free(client: &Client, name: &str) -> bool {
    client.try_acquire(client.lock(name)).unwrap().is_some()
}

#[test]
fn first_lock_shows_its_token_and_releases() {
    let server = TestServer::start();
    let said = program!("first_lock").server(&server).start().ended_well();
    let [held, validity, released] = &said[..] else { panic!("{said:?}") };
    assert_eq!((held.as_str(), released.as_str()), ("wallet:7 is held with token 1", "released"));
    let seconds = validity.strip_prefix("certainly held for ").and_then(|rest| rest.strip_suffix(" more seconds"));
    assert!((1..=30).contains(&seconds.unwrap().parse::<u32>().unwrap()), "{validity}");
    assert!(is_free(&client_of(&server), "wallet:7"));
}

#[test]
fn a_worker_that_lost_its_lock_writes_nothing_more() {
    let server = TestServer::start();
    let client = client_of(&server);
    let mut worker = program!("stops_when_lost").server(&server).start();
    assert_eq!(worker.line(), "page 1 is written with token 1");
    let grant = client.wait_for(client.explain("nightly")).unwrap().what.holders[0].holder.grant;
    client.wait_for(client.admin().reason("test").break_grant(grant)).unwrap();
    let (success, said, complaint) = worker.ended();
    assert!(
        !success && complaint.contains("stopped before the report was finished: an administrator broke it"),
        "{complaint}"
    );
    // The worker may write more pages before it hears of the loss, but not the whole report.
    for (page, line) in (2..).zip(&said) {
        assert_eq!(line, &format!("page {page} is written with token 1"));
    }
    assert!(said.len() < 49, "{said:?}");
}

#[test]
fn the_next_candidate_leads_when_the_leader_resigns() {
    let server = TestServer::start();
    let mut ann = program!("leader_election").argument("ann").server(&server).start();
    assert_eq!(ann.line(), "ann leads in epoch 1");
    let mut ben = program!("leader_election").argument("ben").server(&server).start();
    assert_eq!(ben.line(), "ben waits: ann leads");
    ann.interrupt();
    assert_eq!(ann.ended_well(), ["ann resigned"]);
    assert_eq!(ben.line(), "ben leads in epoch 2");

    let mut eve = program!("leader_election").argument("eve").server(&server).start();
    assert_eq!(eve.line(), "eve waits: ben leads");
    eve.interrupt();
    assert_eq!(eve.ended_well(), ["eve withdraws"]);
    ben.interrupt();
    assert_eq!(ben.ended_well(), ["ben resigned"]);
}

#[test]
fn a_semaphore_lets_two_uploads_run_at_a_time() {
    let server = TestServer::start();
    let mut said = program!("semaphore").server(&server).start().ended_well();
    let summary = said.pop().unwrap();
    assert!(["6 uploads, at most 1 at a time", "6 uploads, at most 2 at a time"].contains(&&*summary), "{summary}");
    said.sort();
    assert_eq!(said, (1..=6).map(|number| format!("upload {number} is done")).collect::<Vec<_>>());
}

#[test]
fn the_permits_of_other_processes_count() {
    let server = TestServer::start();
    let client = client_of(&server);
    let permit = || client.acquire_permits(client.semaphore("uploads").limit(2)).unwrap();
    let (one, _other) = (permit(), permit());
    let mut watch = client.wait_for(client.watch("uploads").start()).unwrap();
    let program = program!("semaphore").server(&server).start();
    (0..6).for_each(|_| next_queued(&client, &mut watch));
    one.release().unwrap();
    let mut expected: Vec<String> = (1..=6).map(|number| format!("upload {number} is done")).collect();
    expected.push("6 uploads, at most 1 at a time".to_owned());
    assert_eq!(program.ended_well(), expected);
}

/// Waits until a request begins to wait.
fn next_queued(client: &Client, watch: &mut Watch) {
    let queued = async { while !matches!(watch.next().await.unwrap().unwrap().event, Event::Queued { .. }) {} };
    client.wait_for(async { tokio::time::timeout(PATIENCE, queued).await }).expect("a request waits");
}

#[test]
fn several_locks_do_not_deadlock() {
    let server = TestServer::start();
    let said = program!("several_locks").server(&server).start().ended_well();
    assert_eq!(said, ["20 transfers in each direction, and no deadlock", "account:3 has 140, account:7 has 60"]);
}

#[test]
fn postgres_refuses_the_late_write() {
    let Some(postgres) = shared(Kind::Postgres) else { return };
    let server = TestServer::start();
    let run = |server| program!("fenced_postgres").server(server).set("FENCEPOST_POSTGRES", &postgres.url()).start();
    for (first, second) in [(1, 2), (3, 4)] {
        let said = run(&server).ended_well();
        let [reads, writes, refused, balance] = &said[..] else { panic!("{said:?}") };
        assert_eq!(reads, "the first worker reads 500");
        assert_eq!(writes, "the second worker takes 50 off, and writes 450");
        let stale = format!("stale fencing token {first} for wallet:7: token {second} has been seen");
        assert!(refused.starts_with(&format!("the first worker's write is refused: {stale}")), "{refused}");
        assert_eq!(balance, "the balance is 450");
    }
    // Another cluster begins with token 1 again, and the database has seen 4.
    let complaint = run(&TestServer::start()).failed();
    assert!(complaint.contains("give it an empty database"), "{complaint}");
}

#[test]
fn without_a_database_the_program_says_what_to_set() {
    let server = TestServer::start();
    let complaint = program!("fenced_postgres").server(&server).start().failed();
    assert!(complaint.contains("FENCEPOST_POSTGRES is not set: write postgres://"), "{complaint}");
    let nowhere = format!("postgres://postgres@{NO_SERVER}/postgres");
    let complaint = program!("fenced_postgres").server(&server).set("FENCEPOST_POSTGRES", &nowhere).start().failed();
    assert!(complaint.contains("check FENCEPOST_POSTGRES"), "{complaint}");
}

#[test]
fn the_blocking_library_holds_and_releases() {
    let server = TestServer::start();
    let said = program!("blocking").server(&server).start().ended_well();
    let expected = [
        "the main thread holds wallet:7 with token 1",
        "another thread does not get it",
        "page 1 is written with token 1",
        "page 2 is written with token 1",
        "released",
    ];
    assert_eq!(said, expected);
    assert!(is_free(&client_of(&server), "wallet:7"));
}

#[test]
fn redis_gives_efficiency_and_refuses_correctness() {
    let Some(redis) = shared(Kind::Redis) else { return };
    let said = program!("efficiency_over_redis").set("FENCEPOST_REDIS", &redis.url()).start().ended_well();
    let [held, second, refused] = &said[..] else { panic!("{said:?}") };
    assert_eq!((held.as_str(), second.as_str()), ("thumbnails/42 is held: true", "a second worker gets it: false"));
    assert!(refused.starts_with("wallet:7 is refused: redis does not promise \"fencing token\""), "{refused}");
}

#[test]
fn without_a_server_every_program_says_what_to_do() {
    let programs = [
        program!("first_lock"),
        program!("stops_when_lost"),
        program!("leader_election"),
        program!("semaphore"),
        program!("several_locks"),
        program!("fenced_postgres"),
        program!("blocking"),
    ];
    // All at a time: each tries twice before it ends.
    let programs = programs.map(|program| program.set("FENCEPOST_SERVER", NO_SERVER).start());
    let redis = program!("efficiency_over_redis").set("FENCEPOST_REDIS", &format!("redis://{NO_SERVER}/")).start();
    for program in programs {
        let complaint = program.failed();
        let advice = "no connection: start a server with `fencepost dev`, or set FENCEPOST_SERVER";
        assert!(complaint.contains(advice), "{complaint}");
    }
    let complaint = redis.failed();
    assert!(complaint.contains("start a server with `redis-server`, or set FENCEPOST_REDIS"), "{complaint}");
}

#[test]
fn the_page_names_every_program() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(examples.join("README.md")).unwrap();
    let programs = std::fs::read_dir(examples.join("src/bin")).unwrap().map(|entry| entry.unwrap().file_name());
    let link = |file: &str| format!("[`{}`](src/bin/{file})", file.trim_end_matches(".rs"));
    let mut links: Vec<String> = programs.map(|file| link(file.to_str().unwrap())).collect();
    links.retain(|link| !page.contains(link));
    assert!(links.is_empty(), "examples/README.md lacks {links:?}");
}
