//! One running example: its lines as they come, and its end. Every wait has a deadline.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fencepost_testing::TestServer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a test waits for something that must happen. Far longer than it takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A program that is about to start. It sees no setting but those that the test gives.
pub(crate) struct Program(Command);

impl Program {
    pub(crate) fn new(path: &str) -> Program {
        let mut command = Command::new(path);
        for (setting, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FENCEPOST_")) {
            command.env_remove(setting);
        }
        Program(command)
    }

    pub(crate) fn set(mut self, setting: &str, value: &str) -> Program {
        self.0.env(setting, value);
        self
    }

    pub(crate) fn server(self, server: &TestServer) -> Program {
        self.set("FENCEPOST_SERVER", &server.address().to_string())
    }

    pub(crate) fn argument(mut self, argument: &str) -> Program {
        self.0.arg(argument);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        let started = self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = started.expect("cargo has built it");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut errors = child.stderr.take().expect("it is piped");
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|said| line.send(said)));
        let (say, complaint) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            say.send(text)
        });
        Running { child, lines, complaint }
    }
}

/// A running program. Dropping it ends it.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// What it wrote to standard error, once it has ended.
    complaint: mpsc::Receiver<String>,
}

impl Running {
    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let _ = self.child.kill();
            panic!("no line came. Standard error: {:?}", self.complaint.recv_timeout(PATIENCE))
        })
    }

    /// Ctrl-C.
    pub(crate) fn interrupt(&self) {
        let process = i32::try_from(self.child.id()).expect("a process id");
        kill(Pid::from_raw(process), Signal::SIGINT).expect("it runs");
    }

    /// The lines that were not read yet, after a success.
    pub(crate) fn ended_well(self) -> Vec<String> {
        let (success, lines, complaint) = self.ended();
        assert!(success && complaint.is_empty(), "it failed after {lines:?}: {complaint}");
        lines
    }

    /// Standard error, after a failure that printed nothing else.
    pub(crate) fn failed(self) -> String {
        let (success, lines, complaint) = self.ended();
        assert!(!success && lines.is_empty(), "it printed {lines:?} and {complaint}");
        complaint
    }

    /// Whether it succeeded, the lines that were not read yet, and standard error.
    pub(crate) fn ended(mut self) -> (bool, Vec<String>, String) {
        // It has closed its standard error, so it has ended, or is about to.
        let complaint = self.complaint.recv_timeout(PATIENCE).expect("it ends in time");
        let status = self.child.wait().expect("it is our child");
        (status.success(), self.lines.iter().collect(), complaint)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A program that has ended needs no kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
