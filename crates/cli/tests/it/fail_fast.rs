//! A command for a cluster that does not run fails at once and says what to do; `dev --background` starts one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpSocket;

use crate::harness::{Finished, Process, command, wait_until};

/// Far above what two refusals and the start of a process take, and below the five seconds that a command looks for a leader.
const AT_ONCE: Duration = Duration::from_secs(4);

/// An address that refuses connections while the socket lives: bound, but not listening.
fn refuses() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = socket.local_addr().expect("it is bound");
    (socket, address)
}

fn timed(server: &str, args: &[&str]) -> (Finished, Duration) {
    let begun = Instant::now();
    let mut command = command(args);
    command.env("FENCEPOST_SERVER", server);
    (Process::start(command).finish(), begun.elapsed())
}

#[test]
fn every_command_fails_at_once_and_names_the_addresses_and_what_to_do() {
    let (_socket, address) = refuses();
    let server = address.to_string();
    let commands: [&[&str]; 6] = [
        &["locks"],
        &["members"],
        &["why", "a"],
        &["run", "a", "--", "true"],
        &["run", "-n", "a", "--", "true"],
        &["run", "--tier", "efficiency", "a", "--", "true"],
    ];
    for args in commands {
        let (finished, took) = timed(&server, args);
        let finished = finished.with_code(125).says(&server).says("connection refused");
        finished.says("`fencepost dev`").says("--server").says("--timeout");
        assert!(took < AT_ONCE, "{args:?} took {took:?}");
    }
}

#[test]
fn a_timeout_or_a_wait_makes_a_command_go_on() {
    let (_socket, address) = refuses();
    let server = address.to_string();
    let commands: [&[&str]; 5] = [
        &["locks", "--timeout", "900ms"],
        &["members", "--timeout", "900ms"],
        &["run", "--timeout", "900ms", "a", "--", "true"],
        &["run", "-w", "900ms", "a", "--", "true"],
        &["run", "-w", "900ms", "--tier", "efficiency", "a", "--", "true"],
    ];
    for args in commands {
        let (finished, took) = timed(&server, args);
        finished.with_code(125).says("connection refused");
        assert!(took >= Duration::from_millis(900), "{args:?} took {took:?}");
    }
    timed(&server, &["locks", "--timeout", "soon"]).0.with_code(2).says("timeout = \"soon\" (flag --timeout)");
}

/// A node in the background. It is killed when it is dropped.
pub(crate) struct Background {
    pid: Pid,
    pub(crate) server: String,
}

impl Background {
    fn start(args: &[&str]) -> Background {
        let args = [&["dev", "--background", "--listen", "127.0.0.1:0"], args].concat();
        Background::of(&Process::start(command(&args)).finish().ok().stdout)
    }

    /// Reads what it said when it started.
    pub(crate) fn of(said: &str) -> Background {
        let between = |before, after| said.split(before).nth(1).and_then(|rest: &str| rest.split(after).next());
        let pid = between("`kill ", "`").and_then(|pid| pid.parse().ok()).unwrap_or_else(|| panic!("no pid in {said}"));
        Background { pid: Pid::from_raw(pid), server: between("ready: ", " ").expect("an address").to_owned() }
    }

    fn runs(&self) -> bool {
        kill(self.pid, None).is_ok()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = kill(self.pid, Signal::SIGKILL);
    }
}

#[test]
fn a_node_in_the_background_serves_when_the_command_returns_and_ends_as_it_says() {
    let node = Background::start(&[]);
    timed(&node.server, &["run", "a", "--", "true"]).0.ok();
    kill(node.pid, Signal::SIGTERM).expect("it runs");
    wait_until("it has ended", || (!node.runs()).then_some(()));
}

#[test]
fn a_cluster_in_the_background_keeps_its_data_and_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data").display().to_string();
    let node = Background::start(&["--data", &data]);
    timed(&node.server, &["freeze", "a", "--reason", "x"]).0.ok();
    assert!(directory.path().join("data/dev.log").exists());
    kill(node.pid, Signal::SIGTERM).expect("it runs");
    wait_until("it has ended", || (!node.runs()).then_some(()));
    let again = Background::start(&["--data", &data]);
    timed(&again.server, &["freezes"]).0.ok().says("a ");
}

#[test]
fn a_node_in_the_background_whose_port_is_taken_says_so_and_does_not_run() {
    let node = Background::start(&[]);
    let refused = Process::start(command(&["dev", "--background", "--listen", &node.server])).finish();
    let refused = refused.with_code(125).says(&node.server).says("If a `fencepost dev` already runs");
    assert!(!refused.stdout.contains("ready"), "{refused:?}");
    assert!(node.runs(), "the other one is not touched");
}
