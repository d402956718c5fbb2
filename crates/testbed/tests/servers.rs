//! Each kind of server starts, answers on its port, and is gone when it is dropped.

use std::net::TcpStream;

use fencepost_testbed::{Kind, own, pooler};

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
fn zookeeper_starts_and_ends() {
    starts_and_ends(Kind::Zookeeper);
}
