//! Each kind of server starts, answers on its port, and ends when it is dropped.
//!
//! A server also ends, and leaves no files, when the process that started it ends.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use fencepost_testbed::{Kind, Server, available, own, pooler, shared};

fn starts_and_ends(kind: Kind) {
    let Some(server) = own(kind) else { return };
    serves_until_dropped(vec![server]);
}

fn serves_until_dropped(servers: Vec<Server>) {
    let programs: Vec<(u16, u32)> = servers.iter().map(|server| (server.port(), server.process())).collect();
    let runs = |process: u32| std::fs::exists(format!("/proc/{process}")).expect("Linux has it");
    for (port, process) in &programs {
        TcpStream::connect(("127.0.0.1", *port)).expect("it serves");
        assert!(runs(*process), "process {process}");
    }
    drop(servers);
    for (port, process) in programs {
        TcpStream::connect(("127.0.0.1", port)).expect_err("it is gone");
        assert!(!runs(process), "process {process}");
    }
}

#[test]
fn postgres_starts_and_ends() {
    starts_and_ends(Kind::Postgres);
}

#[test]
fn mariadb_starts_and_ends() {
    starts_and_ends(Kind::MariaDb);
}

#[test]
fn redis_starts_and_ends() {
    starts_and_ends(Kind::Redis);
}

#[test]
fn redis_without_persistence_starts_and_ends() {
    starts_and_ends(Kind::RedisInMemory);
}

#[test]
fn redis_that_syncs_starts_and_ends() {
    starts_and_ends(Kind::RedisSynced);
}

#[test]
fn s3_starts_and_ends() {
    starts_and_ends(Kind::S3);
}

#[test]
fn pgbouncer_starts_before_a_postgres_and_ends() {
    let Some(postgres) = own(Kind::Postgres) else { return };
    let Some(server) = pooler(&postgres, 1) else { return };
    serves_until_dropped(vec![server]);
}

#[test]
fn a_crashed_server_starts_again_at_the_same_address() {
    let Some(mut server) = own(Kind::Postgres) else { return };
    let url = server.url();
    server.crash_and_restart();
    assert_eq!(server.url(), url);
    TcpStream::connect(("127.0.0.1", server.port())).expect("it serves");
}

#[test]
fn etcd_starts_and_ends() {
    starts_and_ends(Kind::Etcd);
}

#[test]
fn a_shared_server_serves() {
    let Some(server) = shared(Kind::Etcd) else { return };
    TcpStream::connect(("127.0.0.1", server.port())).expect("it serves");
}

#[test]
fn a_process_that_is_gone_leaves_nothing_of_its_shared_servers() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut process = Command::new(std::env::current_exe().expect("it runs"));
    process.args(["--exact", "a_shared_server_serves"]).env("TMPDIR", place.path());
    let output = process.output().expect("it can be run again");
    assert!(output.status.success(), "{output:?}");
    let until = Instant::now() + Duration::from_secs(60);
    while let Some(left) = std::fs::read_dir(place.path()).expect("it is ours").next() {
        assert!(Instant::now() < until, "it is gone in time: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn zookeeper_starts_and_ends() {
    starts_and_ends(Kind::Zookeeper);
}

#[test]
fn three_etcd_start_together_and_end() {
    if available(Kind::EtcdMember) {
        serves_until_dropped(Server::start_cluster(Kind::EtcdMember, 3));
    }
}

#[test]
fn three_zookeepers_start_together_and_end() {
    if available(Kind::ZookeeperMember) {
        serves_until_dropped(Server::start_cluster(Kind::ZookeeperMember, 3));
    }
}
