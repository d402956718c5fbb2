//! Each kind of server starts, answers on its port, and is gone when it is dropped, or when its process is gone.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use fencepost_testbed::{Kind, own, pooler, shared};

fn starts_and_ends(kind: Kind) {
    let Some(server) = own(kind) else { return };
    let port = server.port();
    TcpStream::connect(("127.0.0.1", port)).expect("it serves");
    drop(server);
    TcpStream::connect(("127.0.0.1", port)).expect_err("it is gone");
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
fn s3_starts_and_ends() {
    starts_and_ends(Kind::S3);
}

#[test]
fn pgbouncer_starts_before_a_postgres_and_ends() {
    let Some(postgres) = own(Kind::Postgres) else { return };
    let Some(server) = pooler(&postgres, 1) else { return };
    let port = server.port();
    TcpStream::connect(("127.0.0.1", port)).expect("it serves");
    drop(server);
    TcpStream::connect(("127.0.0.1", port)).expect_err("it is gone");
}

#[test]
fn a_server_that_crashes_starts_again_where_it_was() {
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
