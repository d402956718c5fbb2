//! Real servers and tools for tests and benchmarks. Each server runs in a temporary directory, on a free port of the loopback. It ends when the
//! process that started it ends, even if that process is killed.
//!
//! `./test` installs them. If a server or a tool is missing, a test that needs it is skipped: its name and the reason are appended to
//! the file in `FENCEPOST_SKIPPED`, which `./test` prints and counts. Without that variable, a missing one fails the test, with
//! a message that says what to install.
//!
//! # Files
//!
//! | file | what it owns |
//! |---|---|
//! | `lib.rs` | shared and separate servers for tests, and the record of skipped tests |
//! | `kinds.rs` | the kinds of servers: their programs, directories, command lines and addresses |
//! | `process.rs` | one running server: its start, its end, and the shell that removes what it leaves behind |
//! | `cluster.rs` | the settings that make several servers one cluster |
//! | `s3.py` | the S3 server: moto, without threads |

mod cluster;
mod kinds;
mod process;

use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

pub use kinds::Kind;
pub use process::Server;

/// The server of this kind that all tests of this process share. `None` if it is not installed; then the test is recorded as
/// skipped.
///
/// # Panics
/// If it is not installed and `FENCEPOST_SKIPPED` is not set, or if it does not start.
pub fn shared(kind: Kind) -> Option<&'static Server> {
    static SERVERS: [OnceLock<Server>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    available(kind).then(|| SERVERS[kind as usize].get_or_init(|| Server::start(kind)))
}

/// A server of this kind for one test only, which may stop it. `None` as for [`shared`].
///
/// # Panics
/// As [`shared`].
pub fn own(kind: Kind) -> Option<Server> {
    available(kind).then(|| Server::start(kind))
}

/// A pooler before a Postgres that runs each transaction on one of `sessions` sessions. `None` as for [`shared`].
///
/// # Panics
/// As [`shared`].
pub fn pooler(postgres: &Server, sessions: u32) -> Option<Server> {
    available(Kind::PgBouncer).then(|| Server::start_pooler(postgres, sessions))
}

/// Whether the server is installed. If not, the running test is recorded as skipped.
///
/// # Panics
/// If it is not installed and `FENCEPOST_SKIPPED` is not set.
pub fn available(kind: Kind) -> bool {
    kind.missing().is_none_or(|missing| skip(&missing))
}

/// The path of a tool, such as `promtool`. `None` if it is not installed; then the running test is recorded as skipped. `source` says
/// what to install.
///
/// # Panics
/// If it is not installed and `FENCEPOST_SKIPPED` is not set.
pub fn tool(name: &str, source: &str) -> Option<PathBuf> {
    let found = kinds::program(name);
    if found.is_none() {
        skip(&format!("{name} was not found: install {source}"));
    }
    found
}

/// Records the running test as skipped. Returns false.
fn skip(missing: &str) -> bool {
    let Some(list) = std::env::var_os("FENCEPOST_SKIPPED") else {
        panic!("{missing}. ./test installs what the tests need");
    };
    // The test runner gives the thread the name of the test.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let list = std::fs::OpenOptions::new().create(true).append(true).open(list);
    list.and_then(|mut list| writeln!(list, "{test}: {missing}")).expect("the list of skipped tests can be written");
    false
}
