//! Real servers for tests and benchmarks: each in a temporary directory, on a free port of the loopback, and gone when the
//! process that started it is gone, however that ended.
//!
//! `./test` installs the servers. Where one cannot be had, a test that needs it is skipped by name and with the reason: it is
//! written to the file that `FENCEPOST_SKIPPED` names, which `./test` prints and counts. Without that variable, a missing server
//! fails the test and says what to install.

mod cluster;
mod kinds;
mod process;

use std::io::Write;
use std::sync::OnceLock;

pub use kinds::Kind;
pub use process::Server;

/// The server of this kind that all tests of this process share; none if it cannot be had, and then the skip is written down.
///
/// # Panics
/// If it cannot be had and nobody collects what is skipped, or if it does not start.
pub fn shared(kind: Kind) -> Option<&'static Server> {
    static SERVERS: [OnceLock<Server>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    available(kind).then(|| SERVERS[kind as usize].get_or_init(|| Server::start(kind)))
}

/// A server of this kind for one test alone, which may stop it; none as for [`shared`].
///
/// # Panics
/// As [`shared`].
pub fn own(kind: Kind) -> Option<Server> {
    available(kind).then(|| Server::start(kind))
}

/// A pooler before a Postgres that gives each transaction to one of so many sessions; none as for [`shared`].
///
/// # Panics
/// As [`shared`].
pub fn pooler(postgres: &Server, sessions: u32) -> Option<Server> {
    available(Kind::PgBouncer).then(|| Server::start_pooler(postgres, sessions))
}

/// Whether the server can be had. If not, the running test is written down as skipped.
///
/// # Panics
/// If it cannot be had and nobody collects what is skipped.
pub fn available(kind: Kind) -> bool {
    let Some(missing) = kind.missing() else { return true };
    let Some(list) = std::env::var_os("FENCEPOST_SKIPPED") else {
        panic!("{missing}. ./test installs what the tests need");
    };
    // The test runner names the thread after the test.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let list = std::fs::OpenOptions::new().create(true).append(true).open(list);
    list.and_then(|mut list| writeln!(list, "{test}: {missing}")).expect("the list of skipped tests can be written");
    false
}
